"""EventBridge: rules and their targets, events of services, and what AWS refuses."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest

from tests.local_cloud.support import Cloud, eventually, unique

EVENT = {
    "version": "0",
    "detail-type": "SageMaker HyperPod Cluster Node Health Event",
    "source": "aws.sagemaker",
    "account": "123456789012",
    "time": "2026-06-01T17:20:25Z",
    "region": "us-east-1",
    "resources": [],
}


def service_event(cloud: Cloud, **more: Any) -> int:
    status, _ = cloud.local("POST", "/_local/events", {**EVENT, "id": str(uuid.uuid4()), **more})
    return status


def test_an_event_calls_the_function_of_a_matching_rule_fast(cloud: Cloud) -> None:
    source = unique("probe.")
    cloud.rule({"source": [source]}, cloud.outputs["ProbeArn"], InputPath="$.detail")
    delays = []
    for number in range(3):
        key, sent = unique("e"), time.time()
        assert cloud.put(source, {"id": key, "n": number})["FailedEntryCount"] == 0
        note = eventually(lambda key=key: cloud.note(key))
        assert note["event"] == {"id": key, "n": number}
        delays.append(note["at"] - sent)
    print(f"PutEvents to the function: {[round(one * 1000) for one in delays]} ms")
    assert min(delays) < 0.2


def test_a_whole_event_has_the_documented_envelope(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    source = unique("probe.")
    cloud.rule({"source": [source]}, arn)
    cloud.put(source, {"a": 1})
    (event,) = cloud.messages(url)
    assert set(event) == {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail"}
    assert event["detail"] == {"a": 1} and event["time"].endswith("Z")


def test_inputs_are_constants_parts_and_templates(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    source = unique("probe.")
    transformer = {
        "InputPathsMap": {"n": "$.detail.n", "who": "$.detail.who", "all": "$.detail"},
        "InputTemplate": '{"n": <n>, "who": <who>, "text": "from <who>: <n>", "all": <all>, "rule": <aws.events.rule-name>}',
    }
    name = cloud.rule({"source": [source]}, arn, InputTransformer=transformer)
    cloud.client("events").put_targets(
        Rule=name,
        Targets=[
            {"Id": "2", "Arn": arn, "Input": '{"constant": true}'},
            {"Id": "3", "Arn": arn, "InputPath": "$.detail.who"},
        ],
    )
    cloud.put(source, {"n": 5, "who": 'a "name"'})
    bodies = sorted(cloud.messages(url, 3), key=str)
    assert 'a "name"' in bodies and {"constant": True} in bodies
    filled = next(one for one in bodies if isinstance(one, dict) and "n" in one)
    assert filled == {
        "n": 5,
        "who": 'a "name"',
        "text": 'from a "name": 5',
        "all": {"n": 5, "who": 'a "name"'},
        "rule": name,
    }


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ({"k": [{"prefix": "runs/"}]}, {"k": "runs/a"}, {"k": "requests/a"}),
        ({"k": [{"suffix": ".json"}]}, {"k": "a.json"}, {"k": "a.jsonl"}),
        (
            {"k": [{"wildcard": "runs/*/attempts/*/outcome.json"}]},
            {"k": "runs/r-1/attempts/2/outcome.json"},
            {"k": "runs/r-1/attempts/2/progress.json"},
        ),
        ({"k": [{"anything-but": ["a", "b"]}]}, {"k": "c"}, {"k": "a"}),
        ({"k": [{"anything-but": {"prefix": "runs/"}}]}, {"k": "requests/a"}, {"k": "runs/a"}),
        ({"$or": [{"a": [1]}, {"b": [{"exists": True}]}]}, {"b": 7}, {"a": 2}),
        ({"n": [{"numeric": [">", 3, "<=", 5]}]}, {"n": 5}, {"n": 3}),
        ({"k": [{"exists": False}]}, {"j": 1}, {"k": 1}),
        ({"k": ["a", None]}, {"k": ["x", "a"]}, {"k": ["x"]}),
    ],
)
def test_patterns_match_as_documented(cloud: Cloud, pattern: Any, matching: Any, other: Any) -> None:
    url, arn = cloud.queue()
    source = unique("probe.")
    cloud.rule({"source": [source], "detail": pattern}, arn, InputPath="$.detail.id")
    cloud.put(source, {**other, "id": "other"})
    cloud.put(source, {**matching, "id": "matching"})
    assert cloud.messages(url) == ["matching"]


def test_events_of_services_are_refused_from_users_and_delivered_from_services(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    cloud.rule(
        {"source": ["aws.sagemaker", "nightshift.test"], "detail": {"ClusterName": [url]}}, arn, InputPath="$.source"
    )
    refused = cloud.put("aws.sagemaker", {"ClusterName": url})
    assert refused["FailedEntryCount"] == 1
    assert refused["Entries"][0]["ErrorCode"] == "NotAuthorizedForSourceException"
    assert cloud.put("nightshift.test", {"ClusterName": url})["FailedEntryCount"] == 0
    assert cloud.messages(url) == ["nightshift.test"]
    assert service_event(cloud, detail={"ClusterName": url}) == 200
    assert cloud.messages(url) == ["aws.sagemaker"]


def test_an_incomplete_service_event_is_refused_with_what_is_missing(cloud: Cloud) -> None:
    status, answer = cloud.local("POST", "/_local/events", {"source": "aws.s3"})
    assert status == 400 and "detail-type" in answer["message"]


def test_a_disabled_rule_and_a_scheduled_one_match_no_event(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    source = unique("probe.")
    events = cloud.client("events")
    disabled = cloud.rule({"source": [source]}, arn, Input='"disabled"')
    events.disable_rule(Name=disabled)
    scheduled = unique("r")
    events.put_rule(Name=scheduled, ScheduleExpression="rate(1 hour)")
    events.put_targets(Rule=scheduled, Targets=[{"Id": "1", "Arn": arn, "Input": '"scheduled"'}])
    cloud.rule({"source": [source]}, arn, Input='"enabled"')
    cloud.put(source, {})
    assert cloud.messages(url) == ["enabled"]
    events.remove_targets(Rule=scheduled, Ids=["1"])


def test_an_event_starts_an_execution_with_the_part_that_the_rule_asks_for(cloud: Cloud) -> None:
    states, detail = cloud.client("stepfunctions"), {"run": unique("r")}
    cloud.put("probe.start", detail)

    def look() -> Any:
        for one in states.list_executions(stateMachineArn=cloud.outputs["MachineArn"])["executions"]:
            found = states.describe_execution(executionArn=one["executionArn"])
            if json.loads(found["input"]) == detail and found["status"] == "SUCCEEDED":
                return found
        return None

    assert json.loads(eventually(look)["output"]) == detail


def test_a_target_that_takes_nothing_ends_in_the_rules_dead_letter_queue(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    source = unique("probe.")
    nobody = f"arn:aws:lambda:us-east-1:{cloud.config.account}:function:nobody"
    cloud.rule({"source": [source]}, nobody, DeadLetterConfig={"Arn": arn})
    cloud.put(source, {"lost": True})
    assert cloud.messages(url)[0]["detail"] == {"lost": True}


def test_an_object_in_a_bucket_with_eventbridge_is_an_event_and_in_another_is_none(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    cloud.rule({"source": ["aws.s3"], "detail-type": ["Object Created"]}, arn)
    key = "runs/r-1/attempts/2/outcome.json"
    s3 = cloud.client("s3")
    s3.put_object(Bucket=cloud.outputs["PlainBucketName"], Key=key, Body=b"{}")
    s3.put_object(Bucket=cloud.outputs["BucketName"], Key=key, Body=b"{}")
    (event,) = cloud.messages(url)
    detail = event["detail"]
    assert detail["bucket"] == {"name": cloud.outputs["BucketName"]} and detail["reason"] == "PutObject"
    assert (detail["object"]["key"], detail["object"]["size"]) == (key, 2)
    assert "etag" in detail["object"] and "version-id" not in detail["object"]


def test_large_uploads_and_copies_are_events_too(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    bucket, s3 = cloud.outputs["BucketName"], cloud.client("s3")
    cloud.rule(
        {"source": ["aws.s3"], "detail": {"object": {"key": [{"prefix": "big/"}]}}}, arn, InputPath="$.detail.reason"
    )
    upload = s3.create_multipart_upload(Bucket=bucket, Key="big/a")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="big/a", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="big/a", UploadId=upload, MultipartUpload=parts)
    s3.copy_object(Bucket=bucket, Key="big/b", CopySource={"Bucket": bucket, "Key": "big/a"})
    assert sorted(cloud.messages(url, 2)) == ["CompleteMultipartUpload", "CopyObject"]


def test_every_status_of_an_execution_is_an_event_with_the_documented_detail(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    good = cloud.machine({"Done": {"Type": "Succeed", "Output": "{% $states.input.say %}"}})
    bad = cloud.machine({"Fail": {"Type": "Fail", "Error": "Boom", "Cause": "on purpose"}})
    slow = cloud.machine({"Nap": {"Type": "Wait", "Seconds": 60, "Next": "Done"}, "Done": {"Type": "Succeed"}})
    late = cloud.machine(
        {"Nap": {"Type": "Wait", "Seconds": 60, "Next": "Done"}, "Done": {"Type": "Succeed"}}, TimeoutSeconds=1
    )
    machines = [good.arn, bad.arn, slow.arn, late.arn]
    cloud.rule({"source": ["aws.states"], "detail": {"stateMachineArn": machines}}, arn)
    executions = [good.start({"say": "hi"}), bad.start(), slow.start(), late.start()]
    cloud.client("stepfunctions").stop_execution(executionArn=executions[2], error="Why", cause="so")
    events = cloud.messages(url, 8)
    assert {one["detail-type"] for one in events} == {"Step Functions Execution Status Change"}
    ends = {one["detail"]["stateMachineArn"]: one["detail"] for one in events if one["detail"]["status"] != "RUNNING"}
    begins = [one["detail"] for one in events if one["detail"]["status"] == "RUNNING"]
    assert sorted(one["stateMachineArn"] for one in begins) == sorted(machines)
    assert all(one["stopDate"] is None and one["output"] is None for one in begins)
    assert [ends[one]["status"] for one in machines] == ["SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT"]
    assert (ends[good.arn]["output"], json.loads(ends[good.arn]["input"])) == ('"hi"', {"say": "hi"})
    assert (ends[bad.arn]["error"], ends[bad.arn]["cause"]) == ("Boom", "on purpose")
    assert (ends[slow.arn]["error"], ends[slow.arn]["cause"]) == ("Why", "so")
    assert [ends[one]["executionArn"] for one in machines] == executions
    assert all(one["stopDate"] >= one["startDate"] > 1_000_000_000_000 for one in ends.values())
