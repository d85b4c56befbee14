"""The Lambda data plane: real processes with the environment, the reuse and the errors of AWS."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError

from tests.local_cloud.support import Cloud, eventually, unique

PARENT_ONLY = {"MOTO_PORT", "MOTO_ACCOUNT_ID", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST", "USER"}


def test_a_function_sees_its_own_variables_and_what_lambda_gives_and_nothing_of_its_parent(cloud: Cloud) -> None:
    answer, error = cloud.invoke({"op": "environment"})
    seen = answer["variables"]
    assert error is None
    assert seen["GREETING"] == "hello" and seen["TABLE_NAME"] == cloud.outputs["TableName"]
    assert seen["AWS_LAMBDA_FUNCTION_NAME"] == cloud.outputs["ProbeName"]
    assert seen["AWS_ENDPOINT_URL"] == cloud.config.cloud_url
    assert seen["SSL_CERT_FILE"] == seen["REQUESTS_CA_BUNDLE"]
    assert not PARENT_ONLY & seen.keys()
    assert 0 < answer["left_ms"] <= 2_000


def test_a_function_acts_as_its_own_role_with_its_name_as_the_session(cloud: Cloud) -> None:
    who, _ = cloud.invoke({"op": "who"})
    role = cloud.outputs["ProbeRoleArn"].rsplit("/", 1)[1]
    assert who == f"arn:aws:sts::{cloud.config.account}:assumed-role/{role}/{cloud.outputs['ProbeName']}"


def test_a_warm_environment_is_used_again_and_a_busy_one_is_not_shared(cloud: Cloud) -> None:
    first, _ = cloud.invoke({"op": "environment"})
    second, _ = cloud.invoke({"op": "environment"})
    assert first["pid"] == second["pid"]
    pids: list[int] = []
    calls = [
        threading.Thread(target=lambda: pids.append(cloud.invoke({"op": "sleep", "seconds": 0.6})[0]["pid"]))
        for _ in range(2)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert len(set(pids)) == 2


def test_an_exception_comes_back_with_its_type_and_its_trace(cloud: Cloud) -> None:
    answer, error = cloud.invoke({"op": "fail"})
    assert error == "Unhandled"
    assert answer["errorType"] == "FatalError" and answer["errorMessage"] == "it was asked to fail"
    assert any("app.py" in line for line in answer["stackTrace"])
    again, error = cloud.invoke({"op": "echo", "value": "still there"})
    assert (again, error) == ("still there", None)


@pytest.mark.parametrize(
    ("operation", "error", "text"),
    [
        ("sleep", "Sandbox.Timedout", "Task timed out after 2.00 seconds"),
        ("exit", "Runtime.ExitError", "exit status 7"),
        ("kill", "Runtime.ExitError", "signal: SIGKILL"),
    ],
)
def test_an_environment_that_breaks_is_named_as_aws_does_and_replaced(
    cloud: Cloud, operation: str, error: str, text: str
) -> None:
    before, _ = cloud.invoke({"op": "environment"})
    answer, kind = cloud.invoke({"op": operation, "seconds": 30})
    assert (kind, answer["errorType"]) == ("Unhandled", error) and text in answer["errorMessage"]
    assert not psutil.pid_exists(before["pid"])
    after, _ = cloud.invoke({"op": "environment"})
    assert after["pid"] != before["pid"]


def test_a_handler_that_cannot_be_imported_is_an_import_error(cloud: Cloud) -> None:
    answer, kind = cloud.invoke({}, FunctionName=cloud.outputs["BrokenName"])
    assert kind == "Unhandled" and answer["errorType"] == "Runtime.ImportModuleError"


def test_an_answer_over_six_megabytes_is_refused_without_harm_to_the_environment(cloud: Cloud) -> None:
    answer, kind = cloud.invoke({"op": "large", "bytes": 7_000_000})
    assert (kind, answer["errorType"]) == ("Unhandled", "Function.ResponseSizeTooLarge")
    assert cloud.invoke({"op": "echo", "value": 1}) == (1, None)


def test_an_unknown_function_is_not_found_and_a_bad_payload_is_refused(cloud: Cloud) -> None:
    functions = cloud.client("lambda")
    with pytest.raises(functions.exceptions.ResourceNotFoundException):
        functions.invoke(FunctionName="nobody", Payload=b"{}")
    with pytest.raises(functions.exceptions.InvalidRequestContentException):
        functions.invoke(FunctionName=cloud.outputs["ProbeName"], Payload=b"{not json")


def test_more_calls_at_once_than_environments_are_throttled(cloud: Cloud) -> None:
    codes: list[str] = []

    def call() -> None:
        try:
            cloud.client("lambda").invoke(
                FunctionName=cloud.outputs["BrokenName"], Payload=json.dumps({"op": "sleep", "seconds": 1})
            )
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])

    calls = [threading.Thread(target=call) for _ in range(14)]
    for one in calls:
        one.start()
    for one in calls:
        one.join()
    assert set(codes) <= {"TooManyRequestsException"}
    assert len(codes) <= 4


def test_an_asynchronous_call_returns_at_once_and_runs(cloud: Cloud) -> None:
    key = unique("a")
    begun = time.monotonic()
    answer = cloud.client("lambda").invoke(
        FunctionName=cloud.outputs["ProbeName"], InvocationType="Event", Payload=json.dumps({"id": key})
    )
    assert answer["StatusCode"] == 202 and time.monotonic() - begun < 0.5
    assert eventually(lambda: cloud.note(key))["event"] == {"id": key}


def test_an_asynchronous_call_that_fails_for_good_goes_to_its_destination_after_its_retries(cloud: Cloud) -> None:
    payload = {"op": "fail", "id": unique("f")}
    cloud.client("lambda").invoke(
        FunctionName=cloud.outputs["ProbeName"], InvocationType="Event", Payload=json.dumps(payload)
    )
    (record,) = cloud.messages(cloud.outputs["FailuresUrl"])
    assert record["requestPayload"] == payload
    assert record["requestContext"]["approximateInvokeCount"] == 2
    assert record["responsePayload"]["errorType"] == "FatalError"


def test_what_a_function_writes_is_in_its_log_and_in_the_tail(cloud: Cloud) -> None:
    name = cloud.outputs["ProbeName"]
    answer = cloud.client("lambda").invoke(FunctionName=name, Payload=b'{"op":"fail"}', LogType="Tail")
    log = (cloud.config.log_dir / f"lambda-{name}.log").read_text()
    assert "it was asked to fail" in log and "REPORT RequestId" in log
    import base64

    assert "FatalError" in base64.b64decode(answer["LogResult"]).decode()


def test_every_process_is_named_and_idle_ones_use_no_time(cloud: Cloud) -> None:
    cloud.invoke({"op": "echo", "value": 1})
    _, listed = cloud.local("GET", "/_local/processes")
    assert any(one["what"] == f"lambda {cloud.outputs['ProbeName']}" for one in listed)
    processes = [psutil.Process(one["pid"]) for one in listed]

    def used() -> Any:
        return sum(sum(one.cpu_times()[:2]) for one in processes if one.is_running())

    before = used()
    time.sleep(1.5)
    assert used() - before < 0.15
