"""Faults of what the run relies on: the endpoint, S3, DynamoDB, events, Lambda, Step Functions."""

from __future__ import annotations

from local.chaos.nodes import OUTCOME_EVENT, kill_worker, recovery
from local.chaos.play import Play
from local.story.watch import StoryFailed

NODE_EVENT = {"what": "event", "detail_type": "SageMaker HyperPod*"}


def expired_cookie(play: Play) -> None:
    """Sessions end, first while looks are held, then in mid-run; then the endpoint is out of order in four ways."""
    play.start(steps=90)
    ended = 0
    for _ in range(60):
        ended += play.hyperpod.expire_sessions()
        play.pause(0.4)
        if play.progress(1) is not None:
            break
    play.until_saved(1)
    for _ in range(3):
        ended += play.hyperpod.expire_sessions()
        play.nudge()
        play.pause(1.5)
    for trouble in ("unauthorized", "login_page", "server_error", "refuse"):
        play.expect_alive()
        play.hyperpod.fail_endpoint(trouble, 4.0)
        play.nudge()
        play.pause(4.0)
    refused = play.hyperpod.endpoint_troubled()
    if not ended or not refused:
        raise StoryFailed(f"{ended} sessions ended and {refused} calls were refused: nothing was shown")
    play.notes.append(f"{ended} sessions ended, {refused} calls refused")
    play.until_final()


def refusals(play: Play) -> None:
    """S3 and DynamoDB refuse a half of all calls with 429 and 500, then all; meanwhile a node dies."""
    play.start(steps=60)
    play.until_saved(1)
    calls = {"what": "call", "seconds": 25}
    play.fault(
        {**calls, "services": ["s3"], "every": 3, "status": 429, "code": "SlowDown"},
        {**calls, "services": ["dynamodb"], "every": 3, "status": 429, "code": "ThrottlingException"},
        {**calls, "services": ["s3"], "every": 4, "status": 500, "code": "InternalError"},
        {**calls, "services": ["dynamodb"], "every": 4, "status": 500, "code": "InternalServerError"},
    )
    play.pause(5.0)
    kill_worker(play, 1)
    play.pause(15.0)
    times = play.struck()
    play.calm()
    play.fault(
        {"what": "call", "services": ["s3"], "status": 500, "code": "InternalError", "seconds": 5},
        {"what": "call", "services": ["dynamodb"], "status": 500, "code": "InternalServerError", "seconds": 5},
    )
    play.pause(6.0)
    play.notes.append(f"{sum(times)} calls refused, then all for 5 s")
    play.calm(must_have_struck=False)
    recovery(play)


def mixed_events(play: Play) -> None:
    """Every event is doubled and overtaken by later ones, and every third is lost: one node, one recovery."""
    play.fault(
        {"what": "event", "detail_type": "Training Run*", "do": "double"},
        {**NODE_EVENT, "do": "double"},
        {**NODE_EVENT, "do": "late"},
        {**NODE_EVENT, "do": "drop", "every": 3},
        {**OUTCOME_EVENT, "do": "double"},
    )
    play.start()
    play.until_saved(1)
    kill_worker(play, 1)
    play.until_recovered()
    play.until_final()
    play.calm()


def lambda_killed_after_submit(play: Play) -> None:
    """Ray has the job, and the function dies before it can say or write so."""
    write = {"what": "call", "services": ["dynamodb"], "who": "functions", "operation": "UpdateItem"}
    play.fault({**write, "contains": '"running"', "times": 1, "hold": 5.0})
    play.start()
    _kill_held_controller(play)
    play.until_final()


def lambda_killed_after_decision(play: Play) -> None:
    """The decision to recover is written, and the function dies before it can answer its token."""
    play.start()
    play.until_saved(1)
    answer = {"what": "call", "services": ["states"], "who": "functions", "operation": "SendTaskSuccess"}
    play.fault({**answer, "contains": "recover", "times": 1, "hold": 5.0})
    kill_worker(play, 1)
    _kill_held_controller(play)
    recovery(play)


def _kill_held_controller(play: Play) -> None:
    play.until("a held call", lambda: play.struck() == [1], 300)
    pids = play.function_processes("ControllerFunction")
    play.screen.line("fault", f"SIGKILL to the controller function's processes {pids}")
    play.kill_processes(pids)
    play.calm()


def _stop_in_console(play: Play) -> None:
    machine = play.stack.outputs["TrainingRunArn"]
    (mine,) = (one for one in play.stack.account.executions(machine) if one["name"].startswith(f"{play.run_id}-r"))
    play.screen.line("fault", f"StopExecution of {mine['name']}")
    play.stack.account.states.stop_execution(executionArn=mine["executionArn"], cause="a person in the console")


def stopped_in_console(play: Play) -> None:
    play.start(steps=60)
    play.until_saved(1)
    _stop_in_console(play)
    play.until_final()


def stopped_unheard(play: Play) -> None:
    """The event that would have called the finisher is lost as well: only the reconciler is left."""
    play.start(steps=60)
    play.until_saved(1)
    play.fault({"what": "event", "detail_type": "Step Functions Execution Status Change", "do": "drop"})
    _stop_in_console(play)
    play.until_final(600)
    play.calm()
