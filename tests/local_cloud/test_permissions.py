"""The local cloud with its permissions enforced: what a role's policies allow is done, and nothing else is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.config import Config
from botocore.exceptions import ClientError

from local.cloud.deploy import DeployError, deploy
from local.config import StackConfig
from tests.local_cloud.support import probe_config, start

ACCOUNT = "123456789012"
TABLE = f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/tab"


@dataclass
class Guarded:
    config: StackConfig

    def root(self, service: str) -> Any:
        return self._client(service, "test", "test", None)

    def role(self, *statements: dict[str, Any], path: str = "/", trust: dict[str, Any] | None = None) -> str:
        """ARN of a new role with one policy of these statements; anybody of the account may assume it, if nothing is said."""
        name = f"r{uuid.uuid4().hex[:8]}"
        anybody = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}
        iam = self.root("iam")
        made = iam.create_role(RoleName=name, Path=path, AssumeRolePolicyDocument=_document(trust or anybody))
        if statements:
            iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=_document(*statements))
        return str(made["Role"]["Arn"])

    def session(self, role: str, name: str = "session", by: Any = None) -> Callable[[str], Any]:
        """Clients of a role, assumed by the account's root or by ``by`` (an STS client)."""
        given = (by or self.root("sts")).assume_role(RoleArn=role, RoleSessionName=name)["Credentials"]
        keys = given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]
        return lambda service: self._client(service, *keys)

    def may(self, *statements: dict[str, Any]) -> Callable[[str], Any]:
        return self.session(self.role(*statements))

    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.config.state_dir / "iam.jsonl").read_text().splitlines()]

    def _client(self, service: str, key: str, secret: str, token: str | None) -> Any:
        return boto3.client(
            service, endpoint_url=self.config.cloud_url, region_name="us-east-1", aws_access_key_id=key,
            aws_secret_access_key=secret, aws_session_token=token, config=Config(retries={"max_attempts": 0}),
        )  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    config = probe_config(tmp_path_factory.mktemp("guarded")).model_copy(update={"enforces_iam": True})
    child = start(config)
    try:
        made = Guarded(config)
        made.root("s3").create_bucket(Bucket="bkt")
        made.root("dynamodb").create_table(
            TableName="tab",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "idx",
                    "KeySchema": [{"AttributeName": "sk", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ],
        )
        yield made
    finally:
        child.stop()


def _document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(*actions: str, on: str | list[str], **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": on, **more}


def refused(call: Callable[[], Any]) -> str:
    """The text of the refusal; fails where the call is answered, or refused for anything else."""
    with pytest.raises(ClientError) as error:
        call()
    assert error.value.response["Error"]["Code"] in ("AccessDenied", "AccessDeniedException", "403"), error.value
    return str(error.value)


def item(pk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": "x"}}


def test_an_object_is_judged_by_its_own_name_and_the_refusal_names_who_what_and_where(guarded: Guarded) -> None:
    s3 = guarded.may(allow("s3:PutObject", "s3:GetObject", on="arn:aws:s3:::bkt/runs/*/eval/*"))("s3")
    s3.put_object(Bucket="bkt", Key="runs/r/eval/x.json", Body=b"1")
    assert s3.get_object(Bucket="bkt", Key="runs/r/eval/x.json")["Body"].read() == b"1"
    text = refused(lambda: s3.put_object(Bucket="bkt", Key="runs/r/spec.json", Body=b"1"))
    assert "assumed-role/" in text and "s3:PutObject on resource: arn:aws:s3:::bkt/runs/r/spec.json" in text
    refused(lambda: s3.delete_object(Bucket="bkt", Key="runs/r/eval/x.json"))
    refused(lambda: s3.list_objects_v2(Bucket="bkt"))


def test_each_call_of_an_upload_in_parts_and_of_a_copy_needs_its_own_permission(guarded: Guarded) -> None:
    s3 = guarded.may(allow("s3:PutObject", on="arn:aws:s3:::bkt/up/*"))("s3")
    upload = s3.create_multipart_upload(Bucket="bkt", Key="up/x")["UploadId"]
    s3.upload_part(Bucket="bkt", Key="up/x", UploadId=upload, PartNumber=1, Body=b"1")
    refused(lambda: s3.list_multipart_uploads(Bucket="bkt"))
    refused(lambda: s3.abort_multipart_upload(Bucket="bkt", Key="up/x", UploadId=upload))
    guarded.root("s3").put_object(Bucket="bkt", Key="secret", Body=b"s")
    refused(lambda: s3.copy_object(Bucket="bkt", Key="up/y", CopySource="bkt/secret"))


def test_a_missing_object_is_nothing_to_who_may_list_and_a_refusal_to_who_may_not(guarded: Guarded) -> None:
    reading = allow("s3:GetObject", on="arn:aws:s3:::bkt/*")
    with pytest.raises(ClientError, match="NoSuchKey"):
        guarded.may(reading, allow("s3:ListBucket", on="arn:aws:s3:::bkt"))("s3").get_object(Bucket="bkt", Key="none")
    assert "s3:ListBucket" in refused(lambda: guarded.may(reading)("s3").get_object(Bucket="bkt", Key="none"))


def test_an_address_that_a_role_signed_is_judged_as_that_role(guarded: Guarded) -> None:
    import urllib.error
    import urllib.request

    guarded.root("s3").put_object(Bucket="bkt", Key="open", Body=b"open")
    address = guarded.may()("s3").generate_presigned_url("get_object", {"Bucket": "bkt", "Key": "open"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address, timeout=10)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address.partition("?")[0], timeout=10)
    reader = guarded.may(allow("s3:GetObject", on="arn:aws:s3:::bkt/open"))("s3")
    with urllib.request.urlopen(
        reader.generate_presigned_url("get_object", {"Bucket": "bkt", "Key": "open"})
    ) as answer:
        assert answer.read() == b"open"


def test_a_table_its_index_and_the_parts_of_a_transaction_are_judged_each(guarded: Guarded) -> None:
    table = guarded.may(allow("dynamodb:PutItem", "dynamodb:Query", on=TABLE))("dynamodb")
    query = {"TableName": "tab", "ExpressionAttributeValues": {":v": {"S": "x"}}}
    table.put_item(TableName="tab", Item=item("a"))
    table.query(**query, KeyConditionExpression="pk = :v")
    assert f"{TABLE}/index/idx" in refused(
        lambda: table.query(**query, IndexName="idx", KeyConditionExpression="sk = :v")
    )
    keys = {"RequestItems": {"tab": {"Keys": [item("a")]}}}
    assert "dynamodb:BatchGetItem" in refused(lambda: table.batch_get_item(**keys))
    reader = guarded.may(allow("dynamodb:BatchGetItem", on=TABLE))("dynamodb")
    assert reader.batch_get_item(**keys)["Responses"]["tab"] == [item("a")]
    put, delete = {"Put": {"TableName": "tab", "Item": item("b")}}, {"Delete": {"TableName": "tab", "Key": item("a")}}
    table.transact_write_items(TransactItems=[put])
    assert "dynamodb:DeleteItem" in refused(lambda: table.transact_write_items(TransactItems=[put, delete]))


def test_a_condition_on_keys_counts_for_every_key_of_a_batch(guarded: Guarded) -> None:
    only = {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["NIGHT"]}}
    table = guarded.may(allow("dynamodb:BatchWriteItem", "dynamodb:DeleteItem", on=TABLE, Condition=only))("dynamodb")

    def delete(*keys: str) -> Any:
        return table.batch_write_item(RequestItems={"tab": [{"DeleteRequest": {"Key": item(key)}} for key in keys]})

    delete("NIGHT")
    table.delete_item(TableName="tab", Key=item("NIGHT"))
    refused(lambda: delete("NIGHT", "RUN#a"))
    refused(lambda: table.delete_item(TableName="tab", Key=item("RUN#a")))


def test_a_condition_that_is_not_met_takes_nothing_from_what_another_statement_allows(guarded: Guarded) -> None:
    never = {"StringEquals": {"aws:SourceVpc": "vpc-1"}}
    both = guarded.may(allow("s3:PutObject", on="*", Condition=never), allow("s3:PutObject", on="arn:aws:s3:::bkt/ok"))
    both("s3").put_object(Bucket="bkt", Key="ok", Body=b"1")
    refused(lambda: both("s3").put_object(Bucket="bkt", Key="no", Body=b"1"))


def test_what_may_be_seen_of_an_item_is_judged_by_what_is_asked_for(guarded: Guarded) -> None:
    some = {
        "ForAllValues:StringEquals": {"dynamodb:Attributes": ["pk", "sk", "state"]},
        "StringEqualsIfExists": {"dynamodb:Select": "SPECIFIC_ATTRIBUTES"},
    }
    table = guarded.may(allow("dynamodb:BatchGetItem", on=TABLE, Condition=some))("dynamodb")
    asked = {"Keys": [item("seen")], "ExpressionAttributeNames": {"#s": "state", "#o": "owner"}}

    def get(shown: str, names: tuple[str, ...]) -> Any:
        chosen = {name: asked["ExpressionAttributeNames"][name] for name in names}
        one = {"Keys": asked["Keys"], "ProjectionExpression": shown, "ExpressionAttributeNames": chosen}
        return table.batch_get_item(RequestItems={"tab": one})

    get("#s", ("#s",))
    refused(lambda: get("#s, #o", ("#s", "#o")))


def test_a_deny_outweighs_an_allow(guarded: Guarded) -> None:
    deny = {"Effect": "Deny", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::bkt/no/*"}
    s3 = guarded.may(allow("s3:PutObject", on="*"), deny)("s3")
    s3.put_object(Bucket="bkt", Key="yes", Body=b"1")
    refused(lambda: s3.put_object(Bucket="bkt", Key="no/x", Body=b"1"))


def test_patterns_are_iams_own_and_actions_have_no_case(guarded: Guarded) -> None:
    s3 = guarded.may(allow("S3:putobject", on="arn:aws:s3:::bkt/a.b?"))("s3")
    s3.put_object(Bucket="bkt", Key="a.bc", Body=b"1")
    for key in ("axbc", "a.b", "a.bcd"):
        refused(lambda key=key: s3.put_object(Bucket="bkt", Key=key, Body=b"1"))


def test_a_role_is_assumed_only_where_both_its_trust_and_the_callers_policy_say_so(guarded: Guarded) -> None:
    trust = {
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"},
        "Action": "sts:AssumeRole",
        "Condition": {
            "StringEquals": {"sts:RoleSessionName": "one"},
            "ArnLike": {"aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:role/own/controller/*"},
        },
    }
    target = guarded.role(trust=trust)
    assuming = allow("sts:AssumeRole", on=target)
    inside = guarded.session(guarded.role(assuming, path="/own/controller/"))("sts")
    outside = guarded.session(guarded.role(assuming))("sts")
    powerless = guarded.session(guarded.role(path="/own/controller/"))("sts")
    assert guarded.session(target, "one", by=inside)("sts").get_caller_identity()["Arn"].endswith("/one")
    assert "trust policy" in refused(lambda: guarded.session(target, "two", by=inside))
    assert "trust policy" in refused(lambda: guarded.session(target, "one", by=outside))
    assert "identity-based" in refused(lambda: guarded.session(target, "one", by=powerless))


def test_a_call_that_nobody_described_and_a_key_that_nobody_gave_are_refused(guarded: Guarded) -> None:
    every = guarded.may(allow("*", on="*"))
    assert "asks.py" in refused(lambda: every("dynamodb").list_tables())
    assert "asks.py" in refused(lambda: every("sqs").list_queues())
    stranger = boto3.client(
        "dynamodb", endpoint_url=guarded.config.cloud_url, region_name="us-east-1",
        aws_access_key_id="ASIASTRANGER", aws_secret_access_key="x", aws_session_token="x",
    )  # fmt: skip
    with pytest.raises(ClientError, match="UnrecognizedClientException"):
        stranger.get_item(TableName="tab", Key=item("a"))


def test_every_judgement_is_recorded_with_what_it_was_about(guarded: Guarded) -> None:
    role = guarded.role(allow("s3:PutObject", on="arn:aws:s3:::bkt/seen"))
    s3 = guarded.session(role)("s3")
    s3.put_object(Bucket="bkt", Key="seen", Body=b"1")
    refused(lambda: s3.put_object(Bucket="bkt", Key="unseen", Body=b"1"))
    found = [one for one in guarded.asked() if one["role"] == role]
    assert [(one["action"], one["resource"], one["allowed"]) for one in found] == [
        ("s3:PutObject", "arn:aws:s3:::bkt/seen", True),
        ("s3:PutObject", "arn:aws:s3:::bkt/unseen", False),
    ]


MACHINE = {
    "QueryLanguage": "JSONata",
    "StartAt": "Child",
    "States": {
        "Child": {
            "Type": "Task",
            "Resource": "arn:aws:states:::states:startExecution.sync:2",
            "Arguments": {"StateMachineArn": "arn:aws:states:us-east-1:123456789012:stateMachine:child"},
            "End": True,
        }
    },
}
RULE = allow(
    "events:PutTargets", "events:PutRule", "events:DescribeRule",
    on=f"arn:aws:events:us-east-1:{ACCOUNT}:rule/StepFunctionsGetEventsForStepFunctionsExecutionRule",
)  # fmt: skip


@pytest.mark.parametrize(
    ("statements", "logs", "why"),
    [
        ([], False, "is not authorized to create managed-rule"),
        ([RULE], True, "not authorized to access the Log Destination"),
        ([RULE], False, None),
    ],
    ids=["no managed rule", "no log delivery", "good"],
)
def test_a_machine_whose_role_may_not_do_what_its_creation_needs_is_refused_at_deploy(
    guarded: Guarded, tmp_path: Path, statements: list[Any], logs: bool, why: str | None
) -> None:
    trust = {"Effect": "Allow", "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:AssumeRole"}
    name = f"m{uuid.uuid4().hex[:8]}"
    properties: dict[str, Any] = {"Name": name, "Role": guarded.role(*statements, trust=trust), "Definition": MACHINE}
    if logs:
        group = {"LogGroupArn": f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:x:*"}
        properties["Logging"] = {"Level": "ERROR", "Destinations": [{"CloudWatchLogsLogGroup": group}]}
    path = tmp_path / "template.yaml"
    machine = {"Type": "AWS::Serverless::StateMachine", "Properties": properties}
    path.write_text(yaml.safe_dump({"Transform": "AWS::Serverless-2016-10-31", "Resources": {"Machine": machine}}))
    config = guarded.config.model_copy(update={"stack_name": name})
    if why is None:
        deploy(config, path, {})
    else:
        with pytest.raises(DeployError, match=why):
            deploy(config, path, {})
