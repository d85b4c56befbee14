"""Step Functions: what the project's state machines rely on, each with the fault in moto that it guards against."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local_cloud.support import Cloud, eventually, unique

DONE = {"Type": "Succeed"}
NAP = {"Type": "Wait", "Seconds": 30, "Next": "Done"}
SYNC2 = "arn:aws:states:::states:startExecution.sync:2"


def passing(output: Any, **more: Any) -> dict[str, Any]:
    return {"Type": "Pass", "Output": output, "End": True, **more}


def test_values_of_any_kind_pass_through_jsonata_unchanged(cloud: Cloud) -> None:
    given = {"text": 'a "quote", a \\ and a\nline', "null": None, "list": [], "number": 3, "truth": False}
    machine = cloud.machine(
        {
            "Keep": {"Type": "Pass", "Assign": {"kept": "{% $states.input %}"}, "Output": {}, "Next": "Give"},
            "Give": passing({"kept": "{% $kept %}", "text": "{% $kept.text & '!' %}", "sum": "{% $kept.number + 1 %}"}),
        }
    )
    output = json.loads(machine.run(given)["output"])
    assert output == {"kept": given, "text": given["text"] + "!", "sum": 4}
    assert isinstance(output["sum"], int)


def test_a_field_that_is_not_there_is_a_query_evaluation_error(cloud: Cloud) -> None:
    ended = cloud.machine({"Give": passing("{% $states.input.nothing %}")}).run()
    assert (ended["status"], ended["error"]) == ("FAILED", "States.QueryEvaluationError")
    assert "$states.input.nothing" in ended["cause"]


def test_the_context_object_has_the_documented_fields(cloud: Cloud) -> None:
    machine = cloud.machine(
        {
            "Give": passing(
                {
                    "name": "{% $states.context.Execution.Name %}",
                    "started": "{% $states.context.Execution.StartTime %}",
                    "state": "{% $states.context.State.Name %}",
                }
            )
        }
    )
    ended = machine.run()
    output = json.loads(ended["output"])
    assert output["name"] == ended["name"] and output["state"] == "Give"
    assert output["started"].endswith("Z") and "T" in output["started"]


def test_a_catch_to_its_own_state_goes_back_to_it(cloud: Cloud) -> None:
    machine = cloud.machine(
        {
            "Begin": {"Type": "Pass", "Assign": {"tries": 0}, "Next": "Look"},
            "Look": cloud.call(
                {"op": "{% $tries < 2 ? 'fail' : 'echo' %}", "value": "{% $tries %}"},
                Catch=[{"ErrorEquals": ["FatalError"], "Assign": {"tries": "{% $tries + 1 %}"}, "Next": "Look"}],
                Output="{% $states.result.Payload %}",
                Next="Done",
            ),
            "Done": DONE,
        }
    )
    assert json.loads(machine.run()["output"]) == 2


def test_a_lambda_error_is_retried_by_its_name_and_counted(cloud: Cloud) -> None:
    retry = {"ErrorEquals": ["TransientError"], "IntervalSeconds": 1, "MaxAttempts": 3, "BackoffRate": 1}
    payload = {"op": "transient", "id": unique("t")}
    output = {"tries": "{% $states.result.Payload %}", "retries": "{% $states.context.State.RetryCount %}"}
    machine = cloud.machine({"Call": cloud.call(payload, Retry=[retry], Output=output, End=True)})
    assert json.loads(machine.run()["output"]) == {"tries": 3, "retries": 2}


@pytest.mark.parametrize(
    ("operation", "error"),
    [("fail", "FatalError"), ("exit", "Runtime.ExitError"), ("sleep", "Sandbox.Timedout")],
)
def test_lambda_failures_reach_the_catcher_by_their_aws_names(cloud: Cloud, operation: str, error: str) -> None:
    machine = cloud.machine(
        {
            "Call": cloud.call(
                {"op": operation, "seconds": 9},
                Catch=[{"ErrorEquals": [error], "Output": "{% $states.errorOutput.Error %}", "Next": "Done"}],
                Next="Done",
            ),
            "Done": DONE,
        }
    )
    assert json.loads(machine.run()["output"]) == error


def test_states_all_does_not_catch_a_runtime_error(cloud: Cloud) -> None:
    broken = {**cloud.call({}), "TimeoutSecondsPath": "$.nothing", "QueryLanguage": "JSONPath"}
    broken["Parameters"] = {"FunctionName.$": "$.nothing"}
    del broken["Arguments"]
    catch = [{"ErrorEquals": ["States.ALL"], "Next": "Done"}]
    machine = cloud.machine(
        {"Call": {**broken, "Catch": catch, "Next": "Done"}, "Done": DONE}, QueryLanguage="JSONPath"
    )
    assert machine.run()["error"] == "States.Runtime"


def test_task_failed_catches_every_failure_but_a_timeout(cloud: Cloud) -> None:
    def caught(state: dict[str, Any]) -> str:
        catch = [{"ErrorEquals": ["States.TaskFailed"], "Output": {}, "Next": "Done"}]
        return str(cloud.machine({"Call": {**state, "Catch": catch, "Next": "Done"}, "Done": DONE}).run()["status"])

    assert caught(cloud.call({"op": "fail"})) == "SUCCEEDED"
    assert caught(cloud.call("{% $states.input.nothing %}")) == "SUCCEEDED"
    assert caught(cloud.callback(unique("n"), TimeoutSeconds=1)) == "FAILED"


def test_a_dynamic_timeout_ends_a_nap_with_six_history_events(cloud: Cloud) -> None:
    machine = cloud.machine(
        {
            "Begin": {"Type": "Pass", "Assign": {"looks": 0, "interval": 1}, "Next": "Look"},
            "Look": cloud.callback(
                unique("n"),
                "{% $looks < 2 ? 'none' : 'success' %}",
                TimeoutSeconds="{% $interval %}",
                Catch=[{"ErrorEquals": ["States.Timeout"], "Assign": {"looks": "{% $looks + 1 %}"}, "Next": "Look"}],
                Output="{% $states.result %}",
                Next="Done",
            ),
            "Done": DONE,
        }
    )
    execution = machine.start()
    assert json.loads(cloud.ended(execution)["output"]) == {"answered": True}
    naps = [index for index, kind in enumerate(cloud.history(execution)) if kind == "TaskTimedOut"]
    assert len(naps) == 2 and naps[1] - naps[0] == 6


def test_a_failed_token_carries_its_error_and_its_cause(cloud: Cloud) -> None:
    catch = [{"ErrorEquals": ["JobFailed"], "Output": "{% $states.errorOutput %}", "Next": "Done"}]
    machine = cloud.machine(
        {"Wait": cloud.callback(unique("n"), "failure", TimeoutSeconds=5, Catch=catch, Next="Done"), "Done": DONE}
    )
    assert json.loads(machine.run()["output"]) == {"Error": "JobFailed", "Cause": "exit code 137"}


def test_each_retry_of_a_callback_waits_for_a_token_of_its_own(cloud: Cloud) -> None:
    note = unique("n")
    retry = {"ErrorEquals": ["JobFailed"], "IntervalSeconds": 1, "MaxAttempts": 1, "BackoffRate": 1}
    machine = cloud.machine({"Wait": cloud.callback(note, TimeoutSeconds=9, Retry=[retry], End=True)})
    states = cloud.client("stepfunctions")
    execution = machine.start()
    first = eventually(lambda: cloud.note(note))["event"]["token"]
    states.send_task_failure(taskToken=first, error="JobFailed", cause="the first attempt")
    second = eventually(lambda: (n := cloud.note(note)) and n["event"]["token"] != first and n)["event"]["token"]
    states.send_task_success(taskToken=second, output='"second"')
    assert json.loads(cloud.ended(execution)["output"]) == "second"


def code_of(call: Any, **arguments: str) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return str(refused.value.response["Error"]["Code"])


def test_a_token_is_taken_once_and_not_after_its_task_or_execution_has_ended(cloud: Cloud) -> None:
    states = cloud.client("stepfunctions")
    note = unique("n")
    machine = cloud.machine(
        {
            "Wait": cloud.callback(
                note, TimeoutSeconds=1, Catch=[{"ErrorEquals": ["States.Timeout"], "Next": "Nap"}], Next="Nap"
            ),
            "Nap": NAP,
            "Done": DONE,
        }
    )
    execution = machine.start()
    token = eventually(lambda: cloud.note(note))["event"]["token"]
    eventually(lambda: "TaskTimedOut" in cloud.history(execution))
    assert code_of(states.send_task_success, taskToken=token, output="{}") == "TaskTimedOut"
    states.stop_execution(executionArn=execution)
    assert code_of(states.send_task_success, taskToken=token, output="{}") == "TaskTimedOut"
    assert code_of(states.send_task_failure, taskToken=token) == "TaskTimedOut"
    assert code_of(states.send_task_heartbeat, taskToken=token) == "TaskTimedOut"
    assert code_of(states.send_task_success, taskToken="never-was-one", output="{}") == "InvalidToken"


def test_an_answered_token_is_not_answered_again_while_its_execution_runs(cloud: Cloud) -> None:
    states, note = cloud.client("stepfunctions"), unique("n")
    machine = cloud.machine({"Wait": cloud.callback(note, TimeoutSeconds=9, Next="Nap"), "Nap": NAP, "Done": DONE})
    execution = machine.start()
    token = eventually(lambda: cloud.note(note))["event"]["token"]
    assert code_of(states.send_task_success, taskToken=token, output="no JSON") == "InvalidOutput"
    states.send_task_success(taskToken=token, output="{}")
    assert code_of(states.send_task_success, taskToken=token, output="{}") == "TaskTimedOut"
    states.stop_execution(executionArn=execution)


@pytest.mark.parametrize("waiting", ["wait", "callback", "call", "retry"])
def test_stopping_ends_every_kind_of_wait_at_once(cloud: Cloud, waiting: str) -> None:
    retry = {"ErrorEquals": ["FatalError"], "IntervalSeconds": 60, "MaxAttempts": 1}
    catch = [{"ErrorEquals": ["States.ALL"], "Next": "Done"}]
    state = {
        "wait": {"Type": "Wait", "Seconds": 60, "Next": "Done"},
        "callback": cloud.callback(unique("n"), TimeoutSeconds=60, Catch=catch, Next="Done"),
        "call": cloud.call({"op": "sleep", "seconds": 1.9}, Catch=catch, Next="Done"),
        "retry": cloud.call({"op": "fail"}, Retry=[retry], Catch=catch, Next="Done"),
    }[waiting]
    reached = {"wait": "WaitStateEntered", "callback": "TaskSubmitted", "call": "TaskStarted", "retry": "TaskFailed"}
    execution = cloud.machine({"Wait": state, "Done": DONE}).start()
    eventually(lambda: reached[waiting] in cloud.history(execution))
    begun = time.monotonic()
    cloud.client("stepfunctions").stop_execution(executionArn=execution, error="Replaced", cause="by a person")
    ended = cloud.client("stepfunctions").describe_execution(executionArn=execution)
    assert time.monotonic() - begun < 1.0
    assert (ended["status"], ended["error"], ended["cause"]) == ("ABORTED", "Replaced", "by a person")
    assert cloud.history(execution)[-1] == "ExecutionAborted"


def test_the_machines_own_timeout_ends_a_waiting_task(cloud: Cloud) -> None:
    catch = [{"ErrorEquals": ["States.ALL"], "Next": "Done"}]
    wait = cloud.callback(unique("n"), TimeoutSeconds=60, Catch=catch, Next="Done")
    execution = cloud.machine({"Wait": wait, "Done": DONE}, TimeoutSeconds=1).start()
    assert cloud.ended(execution, 4)["status"] == "TIMED_OUT"
    assert cloud.history(execution)[-1] == "ExecutionTimedOut"


def test_an_answer_of_a_function_that_outlived_its_own_nap_is_refused(cloud: Cloud) -> None:
    note = unique("n")
    catch = [{"ErrorEquals": ["States.Timeout"], "Next": "Rest"}]
    wait = cloud.callback(note, "success", TimeoutSeconds=1, Catch=catch, Next="Done")
    wait["Arguments"]["Payload"]["seconds"] = 1.3
    cloud.machine({"Wait": wait, "Rest": {"Type": "Wait", "Seconds": 2, "Next": "Done"}, "Done": DONE}).start()
    eventually(lambda: cloud.note(f"{note}-refused"))


def test_a_call_that_returns_after_its_timeout_leaves_no_trace_in_the_history(cloud: Cloud) -> None:
    catch = [{"ErrorEquals": ["States.Timeout"], "Next": "Rest"}]
    call = cloud.call({"op": "sleep", "seconds": 1.6}, TimeoutSeconds=1, Catch=catch, Next="Rest")
    execution = cloud.machine(
        {"Call": call, "Rest": {"Type": "Wait", "Seconds": 1, "Next": "Done"}, "Done": DONE}
    ).start()
    cloud.ended(execution)
    history = cloud.history(execution)
    assert "TaskTimedOut" in history and "TaskSucceeded" not in history


def nesting(cloud: Cloud, child: str, **more: Any) -> dict[str, Any]:
    arguments = {
        "StateMachineArn": child,
        "Name": "{% $states.context.Execution.Name & '-s1-' & $states.context.State.RetryCount %}",
        "Input": {"run_id": "{% $states.input.run_id %}"},
    }
    return {"Type": "Task", "Resource": SYNC2, "Arguments": arguments, **more}


def test_a_nested_execution_gets_its_name_and_input_and_gives_its_output_as_json(cloud: Cloud) -> None:
    child = cloud.machine({"Give": passing({"for": "{% $states.input.run_id %}", "n": 3})})
    parent = cloud.machine({"Nest": nesting(cloud, child.arn, Output="{% $states.result.Output %}", End=True)})
    ended = parent.run({"run_id": "r1"})
    assert json.loads(ended["output"]) == {"for": "r1", "n": 3}
    (nested,) = cloud.client("stepfunctions").list_executions(stateMachineArn=child.arn)["executions"]
    assert nested["name"] == f"{ended['name']}-s1-0"


def test_a_failed_nested_execution_is_retried_under_another_name_and_then_caught(cloud: Cloud) -> None:
    child = cloud.machine({"Fail": {"Type": "Fail", "Error": "Boom", "Cause": "on purpose"}})
    retry = {"ErrorEquals": ["States.TaskFailed"], "IntervalSeconds": 1, "MaxAttempts": 1, "BackoffRate": 1}
    catch = [{"ErrorEquals": ["States.ALL"], "Output": "{% $states.errorOutput %}", "Next": "Done"}]
    nest = nesting(cloud, child.arn, Retry=[retry], Catch=catch, Next="Done")
    error = json.loads(cloud.machine({"Nest": nest, "Done": DONE}).run({"run_id": "r1"})["output"])
    assert error["Error"] == "States.TaskFailed" and json.loads(error["Cause"])["Error"] == "Boom"
    names = [
        one["name"] for one in cloud.client("stepfunctions").list_executions(stateMachineArn=child.arn)["executions"]
    ]
    assert sorted(name[-2:] for name in names) == ["-0", "-1"]


def test_a_running_execution_keeps_its_definition_and_starts_nested_ones_by_the_new_one(cloud: Cloud) -> None:
    """What an update of a deployed stack relies on: parents that are under way are exchanged by nobody."""
    child = cloud.machine({"Give": passing("old child")})
    task = {"StateMachineArn": child.arn, "Name": unique("n")}
    note = unique("t")
    parent = cloud.machine(
        {
            "Wait": cloud.callback(note, TimeoutSeconds=60, Next="Nested"),
            "Nested": {"Type": "Task", "Resource": SYNC2, "Arguments": task, "Next": "Give"},
            "Give": passing({"parent": "old parent", "child": "{% $states.input.Output %}"}),
        }
    )
    running = parent.start()
    token = eventually(lambda: cloud.note(note))["event"]["token"]
    states = cloud.client("stepfunctions")
    for machine, text in ((child, "new child"), (parent, "new parent")):
        definition = {"QueryLanguage": "JSONata", "StartAt": "Give", "States": {"Give": passing(text)}}
        states.update_state_machine(stateMachineArn=machine.arn, definition=json.dumps(definition))

    states.send_task_success(taskToken=token, output="{}")

    assert json.loads(cloud.ended(running)["output"]) == {"parent": "old parent", "child": "new child"}
    assert json.loads(parent.run()["output"]) == "new parent"


def test_stopping_the_parent_stops_its_nested_execution(cloud: Cloud) -> None:
    child = cloud.machine({"Nap": NAP, "Done": DONE})
    execution = cloud.machine({"Nest": nesting(cloud, child.arn, End=True)}).start({"run_id": "r1"})
    states = cloud.client("stepfunctions")
    nested = eventually(lambda: states.list_executions(stateMachineArn=child.arn)["executions"])[0]["executionArn"]
    states.stop_execution(executionArn=execution)
    assert cloud.ended(nested, 3)["status"] == "ABORTED"


def test_executions_without_names_do_not_collide_and_bad_names_are_refused(cloud: Cloud) -> None:
    machine, states = cloud.machine({"Done": DONE}), cloud.client("stepfunctions")
    first, second = (states.start_execution(stateMachineArn=machine.arn)["executionArn"] for _ in range(2))
    assert first != second
    for name in ("a" * 81, "a b", "a/b"):
        assert code_of(states.start_execution, stateMachineArn=machine.arn, name=name) == "InvalidName"


def test_a_name_is_idempotent_while_it_runs_and_blocked_after(cloud: Cloud) -> None:
    machine, states = cloud.machine({"Nap": NAP, "Done": DONE}), cloud.client("stepfunctions")
    execution = machine.start({"a": 1}, name="one")
    assert machine.start({"a": 1}, name="one") == execution
    again = {"stateMachineArn": machine.arn, "name": "one"}
    assert code_of(states.start_execution, **again, input='{"a": 2}') == "ExecutionAlreadyExists"
    states.stop_execution(executionArn=execution)
    assert code_of(states.start_execution, **again, input='{"a": 1}') == "ExecutionAlreadyExists"


def test_a_definition_that_leads_nowhere_is_refused_and_spoils_none_after_it(cloud: Cloud) -> None:
    states = cloud.client("stepfunctions")

    def create(definition: dict[str, Any]) -> Any:
        return states.create_state_machine(
            name=unique("m"), definition=json.dumps(definition), roleArn="arn:aws:iam::123456789012:role/r"
        )

    with pytest.raises(ClientError, match="no state"):
        create({"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "Nowhere"}}})
    jsonata_in_jsonpath = {"Type": "Pass", "Arguments": {"x": "{% 1 %}"}, "QueryLanguage": "JSONata", "Nope": 1}
    with pytest.raises(ClientError):
        create({"StartAt": "A", "QueryLanguage": "JSONata", "States": {"A": {**jsonata_in_jsonpath, "Type": "Nope"}}})
    plain = {"Type": "Pass", "Parameters": {"copied.$": "$.x"}, "End": True}
    arn = create({"StartAt": "A", "States": {"A": plain}})["stateMachineArn"]
    execution = states.start_execution(stateMachineArn=arn, input='{"x": 5}')["executionArn"]
    assert json.loads(cloud.ended(execution)["output"]) == {"copied": 5}


def test_from_a_sent_token_to_the_next_call_takes_well_below_a_fifth_of_a_second(cloud: Cloud) -> None:
    notes = [unique("n") for _ in range(4)]
    waits = {
        note: cloud.callback(note, TimeoutSeconds=9, Next=after)
        for note, after in zip(notes, [*notes[1:], "Done"], strict=True)
    }
    execution = cloud.machine({**waits, "Done": DONE}).start()
    delays = []
    for note, after in itertools.pairwise(notes):
        token = eventually(lambda note=note: cloud.note(note))["event"]["token"]
        eventually(lambda: cloud.history(execution)[-1] == "TaskSubmitted")
        sent = time.time()
        cloud.client("stepfunctions").send_task_success(taskToken=token, output="{}")
        delays.append(eventually(lambda after=after: cloud.note(after))["at"] - sent)
    cloud.client("stepfunctions").stop_execution(executionArn=execution)
    print(f"SendTaskSuccess to the next call: {[round(one * 1000) for one in delays]} ms")
    assert min(delays) < 0.2


def test_a_nested_execution_begins_and_returns_without_polling_delays(cloud: Cloud) -> None:
    child = cloud.machine({"Give": passing({})})
    parent = cloud.machine({"Nest": nesting(cloud, child.arn, End=True)})
    execution = parent.start({"run_id": "r1"})
    cloud.ended(execution)
    states = cloud.client("stepfunctions")
    (nested,) = states.list_executions(stateMachineArn=child.arn)["executions"]
    events = states.get_execution_history(executionArn=execution)["events"]
    entered = next(one["timestamp"] for one in events if one["type"] == "TaskStateEntered")
    left = next(one["timestamp"] for one in events if one["type"] == "TaskStateExited")
    begin, end = nested["startDate"] - entered, left - nested["stopDate"]
    print(f"nested start {begin.total_seconds() * 1000:.0f} ms, return {end.total_seconds() * 1000:.0f} ms")
    assert begin.total_seconds() < 0.2 and end.total_seconds() < 0.2
