"""Times that add up, a network of one's own, keys of one's own, and that nothing silent holds a look."""

from __future__ import annotations

import importlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nightshift.adapters import kubernetes, ray_jobs
from nightshift.adapters.ray_jobs import RayJobs
from nightshift.core.history import BOUNDS
from nightshift.core.observation import JobState
from nightshift.handlers import notifier, wiring
from nightshift.steps.look import HOLD_RESERVE
from tests.deploy.repository import MACHINES, ROOT, machine, resources, states, template, translated

Json = dict[str, Any]
FUNCTIONS = resources("AWS::Lambda::Function")
API_GATEWAY_SECONDS = 30
"""After which an HTTP API gives its integration up; it cannot be raised."""

ONE_CALL = {
    "AWS": wiring.BOTO.connect_timeout + wiring.BOTO.read_timeout,
    "the model registry": 2 * (wiring.REGISTRY.connect_timeout + wiring.REGISTRY.read_timeout),
    "Kubernetes": kubernetes.TIMEOUT_SECONDS,
    "Ray": ray_jobs.CONNECT_SECONDS + ray_jobs.READ_SECONDS,
}


def definition(name: str) -> Json:
    [found] = [machine(path) for path in MACHINES if path.name == f"{name}.asl.json"]
    return found


# times --------------------------------------------------------------------------------------------------------------


def test_a_call_is_given_up_before_the_function_that_makes_it() -> None:
    shortest = min(
        FUNCTIONS[name]["Timeout"] for name in ("ControllerFunction", "FinisherFunction", "ReconcilerFunction")
    )
    assert {whom for whom, seconds in ONE_CALL.items() if seconds >= shortest} == set()
    # What a held look keeps for its last observation is enough for a Ray that says nothing.
    assert HOLD_RESERVE >= ray_jobs.CONNECT_SECONDS + ray_jobs.READ_SECONDS
    assert FUNCTIONS["NotifierFunction"]["Timeout"] > notifier.SEND_SECONDS + notifier.SPARE_SECONDS


def test_what_answers_people_answers_before_the_api_gives_it_up() -> None:
    assert all(FUNCTIONS[name]["Timeout"] < API_GATEWAY_SECONDS for name in ("ApiFunction", "DashboardFunction"))


def test_a_look_fits_into_its_nap_a_nap_into_its_shift_and_a_shift_into_its_parent() -> None:
    controller = FUNCTIONS["ControllerFunction"]["Timeout"]
    nap = template()["Parameters"]["LookSecondsAttempt"]
    shift, parent = definition("shift"), definition("training_run")
    assert controller < nap["MinValue"] <= nap["MaxValue"] < BOUNDS.shift.total_seconds()
    # A shift that has come to its bound still has time for one more look with its longest nap.
    assert BOUNDS.shift.total_seconds() + nap["MaxValue"] + controller < shift["TimeoutSeconds"]
    waits = [one for one in states(parent).values() if "startExecution.sync" in str(one.get("Resource"))]
    assert waits and all(shift["TimeoutSeconds"] < one["TimeoutSeconds"] < parent["TimeoutSeconds"] for one in waits)
    calls = [one for one in states(parent).values() if "lambda:invoke" in str(one.get("Resource"))]
    assert calls and all(controller < one["TimeoutSeconds"] for one in calls)


def test_what_imports_ray_has_the_memory_for_it() -> None:
    with_ray = {"ControllerFunction", "FinisherFunction", "ReconcilerFunction"}
    assert {name for name, one in FUNCTIONS.items() if one["MemorySize"] >= 1_024} == with_ray
    for name, one in FUNCTIONS.items():
        wires = importlib.import_module(one["Handler"].rsplit(".", 1)[0])
        assert hasattr(wires, "controller_ports") == (name in with_ray), name


def test_the_api_is_throttled() -> None:
    [stage] = resources("AWS::ApiGatewayV2::Stage").values()
    assert stage["DefaultRouteSettings"] == {"ThrottlingRateLimit": 10, "ThrottlingBurstLimit": 20}


def test_every_delivery_has_a_dead_letter_queue() -> None:
    queue = {"Fn::GetAtt": ["Undelivered", "Arn"]}
    targets = [target for one in resources("AWS::Events::Rule").values() for target in one["Targets"]]
    targets += [one["Target"] for one in resources("AWS::Scheduler::Schedule").values()]
    assert targets and [one for one in targets if one["DeadLetterConfig"] != {"Arn": queue}] == []


# a silent dashboard -------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for one in held:
            one.close()


def test_a_dashboard_that_takes_the_connection_and_never_answers_must_not_hang_a_look(
    silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "READ_SECONDS", 0.5)
    jobs = RayJobs("maze-1", "ns")
    jobs._address = f"http://127.0.0.1:{silent}"
    importlib.import_module("ray.job_submission")
    began = time.monotonic()
    assert jobs.view("maze-1-a1").state is JobState.UNREACHABLE
    # Ray's client asks for the version first, and what is refused is asked once more with a new one.
    assert time.monotonic() - began < 10
    assert FUNCTIONS["ControllerFunction"]["Timeout"] > ray_jobs.CONNECT_SECONDS + 2 * 8.0


# network ------------------------------------------------------------------------------------------------------------


def test_functions_are_in_a_vpc_where_subnets_are_given_and_have_no_right_in_ec2_elsewhere() -> None:
    nothing = {"Ref": "AWS::NoValue"}
    network = {"SubnetIds": {"Ref": "SubnetIds"}, "SecurityGroupIds": {"Ref": "SecurityGroupIds"}}
    assert [one for one in FUNCTIONS.values() if one["VpcConfig"] != {"Fn::If": ["InVpc", network, nothing]}] == []
    roles = resources("AWS::IAM::Role")
    bounded = {"Fn::If": ["InVpc", nothing, {"Ref": "NoNetwork"}]}
    assert [name for name in FUNCTIONS if roles[f"{name}Role"]["PermissionsBoundary"] != bounded] == []
    [statement] = resources("AWS::IAM::ManagedPolicy")["NoNetwork"]["PolicyDocument"]["Statement"]
    assert statement == {"Effect": "Allow", "NotAction": "ec2:*", "Resource": "*"}
    assert template()["Parameters"]["SubnetIds"]["Default"] == ""


# data ---------------------------------------------------------------------------------------------------------------


def own(other: Any) -> Json:
    return {"Fn::If": ["KeyIsOwn", {"Ref": "KmsKeyArn"}, other]}


def test_whatever_keeps_data_takes_a_key_of_ones_own() -> None:
    nothing = {"Ref": "AWS::NoValue"}
    [table] = resources("AWS::DynamoDB::Table").values()
    key = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KmsKeyArn"}}
    assert table["SSESpecification"] == {"Fn::If": ["KeyIsOwn", key, {"SSEEnabled": True}]}
    [bucket] = resources("AWS::S3::Bucket").values()
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["Fn::If"][1]["KMSMasterKeyID"] == {"Ref": "KmsKeyArn"}
    [queue] = resources("AWS::SQS::Queue").values()
    assert queue["KmsMasterKeyId"] == own(nothing)
    assert queue["SqsManagedSseEnabled"] == {"Fn::If": ["KeyIsOwn", nothing, True]}
    logs = resources("AWS::Logs::LogGroup").values()
    assert len(logs) == 2 and all(one["KmsKeyId"] == own(nothing) for one in logs)


def test_the_keys_policy_lets_in_this_account_through_the_services_that_keep_data_and_nobody_else() -> None:
    policy = json.loads((ROOT / "docs/kms-key-policy.json").read_text())
    account, events, logs = policy["Statement"]
    equal = account["Condition"]["StringEquals"]
    assert equal["kms:CallerAccount"] == "ACCOUNT"
    assert {one.split(".")[0] for one in equal["kms:ViaService"]} == {"dynamodb", "s3", "sqs"}
    assert events["Condition"] == {"StringEquals": {"aws:SourceAccount": "ACCOUNT"}}
    assert "ACCOUNT" in logs["Condition"]["ArnLike"]["kms:EncryptionContext:aws:logs:arn"]
    assert all(one["Effect"] == "Allow" and "kms:*" not in one["Action"] for one in policy["Statement"])


def test_data_outlives_the_stack_can_be_restored_and_old_versions_of_it_do_not_pile_up() -> None:
    found = translated()["Resources"]
    for name in ("Table", "Bucket", "BucketPolicy"):
        assert (found[name]["DeletionPolicy"], found[name]["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert found["Table"]["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    bucket = found["Bucket"]["Properties"]
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    rules = {one["Id"]: one for one in bucket["LifecycleConfiguration"]["Rules"] if one["Status"] == "Enabled"}
    assert rules["old-versions"]["NoncurrentVersionExpiration"]["NoncurrentDays"] == 30
    # What a run left is never deleted by a clock; what a rehearsal left is.
    assert {one.get("Prefix") for one in rules.values() if "ExpirationInDays" in one} == {"runs/rehearsal-"}
    assert {one["RetentionInDays"]["Ref"] for one in resources("AWS::Logs::LogGroup").values()} == {"LogRetentionDays"}
