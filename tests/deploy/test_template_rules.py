"""What must hold of everything that is deployed, whatever a validator says."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from nightshift.adapters import notification_log
from nightshift.contract.layout import RunKeys
from nightshift.handlers.settings import (
    ApiSettings,
    ControllerSettings,
    DashboardSettings,
    IntakeSettings,
    ReconcilerSettings,
    StepSettings,
    StoreSettings,
)
from nightshift.steps.reconcile import BUDGET
from tests.builders import spec
from tests.deploy.repository import ROOT, resources, template, translated
from training_job.doctor.cloud import PROBES
from training_job.gc.records import READ

SETTINGS: dict[str, type[BaseModel]] = {
    "ApiFunction": ApiSettings,
    "DashboardFunction": DashboardSettings,
    "IntakeFunction": IntakeSettings,
    "ControllerFunction": StepSettings,
    "SignalFunction": StoreSettings,
    "FinisherFunction": ControllerSettings,
    "ReconcilerFunction": ReconcilerSettings,
}
POWERTOOLS = {"POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE", "LOG_LEVEL"}
FROM_LAMBDA = {"AWS_REGION"}
ASYNCHRONOUS = {"IntakeFunction", "SignalFunction", "FinisherFunction", "NotifierFunction", "ReconcilerFunction"}
IN_KUBERNETES = ("ControllerFunction", "FinisherFunction", "ReconcilerFunction", "DashboardFunction")

Json = dict[str, Any]
FUNCTIONS = resources("AWS::Lambda::Function")


def role_of(function: str) -> str:
    role: str = FUNCTIONS[function]["Role"]["Fn::GetAtt"][0]
    return role


def statements(role: str) -> list[Json]:
    policies = resources("AWS::IAM::Role")[role].get("Policies", [])
    # A policy that depends on a condition stands in an Fn::If: what it grants counts as granted.
    plain = [one["Fn::If"][1] if "Fn::If" in one else one for one in policies]
    return [statement for one in plain for statement in one["PolicyDocument"]["Statement"]]


def actions(statement: Json) -> list[str]:
    listed: list[str] = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
    return listed


def granted(role: str) -> set[str]:
    return {action for statement in statements(role) for action in actions(statement)}


def roles_granted(action: str) -> set[str]:
    return {role for role in resources("AWS::IAM::Role") if action in granted(role)}


def environment(function: str) -> set[str]:
    return set(FUNCTIONS[function]["Environment"]["Variables"])


def referenced(part: Any) -> Iterator[str]:
    """Logical ids that a piece of template refers to."""
    if isinstance(part, list):
        for one in part:
            yield from referenced(one)
    elif isinstance(part, dict):
        if "Ref" in part:
            yield part["Ref"]
        if "Fn::GetAtt" in part:
            yield part["Fn::GetAtt"][0]
        for one in part.values():
            yield from referenced(one)


def test_every_function_has_a_role_that_no_other_has() -> None:
    assert set(FUNCTIONS) == {*SETTINGS, "NotifierFunction"}
    assert len({role_of(name) for name in FUNCTIONS}) == len(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_a_handler_that_exists_in_the_one_artifact(name: str) -> None:
    module, attribute = FUNCTIONS[name]["Handler"].rsplit(".", 1)
    assert callable(getattr(importlib.import_module(module), attribute))
    assert FUNCTIONS[name]["Code"] == {"S3Bucket": "artifacts", "S3Key": "functions.zip"}
    assert FUNCTIONS[name]["Runtime"] == "python3.12"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_function_gets_the_variables_that_its_settings_ask_for_and_no_others(name: str) -> None:
    fields = SETTINGS[name].model_fields.values()
    needed = {str(field.alias) for field in fields if field.is_required()} - FROM_LAMBDA
    known = {str(field.alias) for field in fields} - FROM_LAMBDA
    given = environment(name) - POWERTOOLS
    assert needed <= given
    assert given <= known


def test_the_notifier_gets_its_own_variables() -> None:
    assert environment("NotifierFunction") - POWERTOOLS == {
        "TABLE_NAME", "BUCKET_NAME", "SLACK_SECRET_ARN", "SLACK_ALLOWED_HOSTS", "NIGHT_BEGINS", "NIGHT_ENDS",
    }  # fmt: skip


def test_only_the_notifier_can_read_a_secret_or_knows_of_one() -> None:
    assert roles_granted("secretsmanager:GetSecretValue") == {role_of("NotifierFunction")}
    assert {name for name in FUNCTIONS if "SLACK_SECRET_ARN" in environment(name)} == {"NotifierFunction"}


def test_only_the_functions_that_touch_kubernetes_may_become_the_controller() -> None:
    assert roles_granted("sts:AssumeRole") == {role_of(name) for name in IN_KUBERNETES}


def test_the_controller_role_trusts_names_of_no_role_but_this_stacks_path_and_one_session_name() -> None:
    trust = resources("AWS::IAM::Role")["ControllerRole"]["AssumeRolePolicyDocument"]
    [statement] = trust["Statement"]
    assert statement["Principal"] == {"AWS": {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}}
    # Naming a function's role would be a cycle: its policies name this one.
    assert not {name for name in referenced(trust) if name in resources("AWS::IAM::Role")}
    pattern = statement["Condition"]["ArnLike"]["aws:PrincipalArn"]["Fn::Sub"]
    assert pattern.endswith(":role/${AWS::StackName}/controller/*")
    paths = {name: role.get("Path", {}) for name, role in resources("AWS::IAM::Role").items()}
    below = {name for name, path in paths.items() if path == {"Fn::Sub": "/${AWS::StackName}/controller/"}}
    assert below == {role_of(name) for name in IN_KUBERNETES}


def test_the_one_session_name_is_the_same_where_it_is_demanded_and_where_it_is_used() -> None:
    trust = resources("AWS::IAM::Role")["ControllerRole"]["AssumeRolePolicyDocument"]
    demanded = trust["Statement"][0]["Condition"]["StringEquals"]["sts:RoleSessionName"]
    used = {
        name: variables["CONTROLLER_SESSION_NAME"]
        for name, one in FUNCTIONS.items()
        if "CONTROLLER_SESSION_NAME" in (variables := one["Environment"]["Variables"])
    }
    assert used == dict.fromkeys(IN_KUBERNETES, demanded)


def test_the_controller_role_and_its_access_entry_are_kept_together() -> None:
    found = translated()["Resources"]
    for name in ("ControllerRole", "ControllerAccessEntry", "Table", "Bucket"):
        assert (found[name]["DeletionPolicy"], found[name]["UpdateReplacePolicy"]) == ("Retain", "Retain"), name
    assert "Username" not in found["ControllerAccessEntry"]["Properties"]


def test_no_statement_is_wider_than_it_must_be() -> None:
    # Log delivery and tracing know no resources; nothing else may ask for everything.
    anything = {
        action
        for role in resources("AWS::IAM::Role")
        for statement in statements(role)
        if statement["Resource"] == "*"
        for action in actions(statement)
    }
    assert {action.split(":")[0] for action in anything} == {"logs"}
    assert not [action for role in resources("AWS::IAM::Role") for action in granted(role) if "*" in action]


def test_what_a_function_fails_to_handle_is_kept() -> None:
    kept = {one["FunctionName"]["Ref"]: one for one in resources("AWS::Lambda::EventInvokeConfig").values()}
    assert set(kept) == ASYNCHRONOUS
    for name, one in kept.items():
        assert one["DestinationConfig"]["OnFailure"]["Destination"] == {"Fn::GetAtt": ["Undelivered", "Arn"]}, name
        assert one["MaximumRetryAttempts"] > 0
        # The destination is written with the function's own role.
        assert "sqs:SendMessage" in granted(role_of(name)), name


def test_what_a_rule_fails_to_deliver_is_kept() -> None:
    rules = resources("AWS::Events::Rule")
    called = {target["Arn"]["Fn::GetAtt"][0] for one in rules.values() for target in one["Targets"]}
    assert called == ASYNCHRONOUS
    for name, one in rules.items():
        for target in one["Targets"]:
            assert target["DeadLetterConfig"]["Arn"] == {"Fn::GetAtt": ["Undelivered", "Arn"]}, name
    [policy] = resources("AWS::SQS::QueuePolicy").values()
    [statement] = policy["PolicyDocument"]["Statement"]
    assert (statement["Principal"], statement["Action"]) == ({"Service": "events.amazonaws.com"}, "sqs:SendMessage")


def test_a_look_ends_before_its_nap_does() -> None:
    parameter = template()["Parameters"]["LookSecondsAttempt"]
    assert FUNCTIONS["ControllerFunction"]["Timeout"] < parameter["MinValue"] <= parameter["Default"]


def test_a_pass_of_the_reconciler_has_time_to_end_a_run_and_the_alarm_waits_for_more_than_one_pass() -> None:
    assert FUNCTIONS["ReconcilerFunction"]["Timeout"] >= 2 * BUDGET.reserve_seconds
    alarm = resources("AWS::CloudWatch::Alarm")["ReconcilerAlarm"]
    assert alarm["Period"] > template()["Parameters"]["ReconcileMinutes"]["MaxValue"] * 60
    assert (alarm["EvaluationPeriods"], alarm["TreatMissingData"]) == (2, "breaching")


def test_the_reconciler_writes_no_evidence_and_no_run() -> None:
    puts = [one for one in statements(role_of("ReconcilerFunction")) if "s3:PutObject" in actions(one)]
    assert [one["Fn::Sub"] for statement in puts for one in statement["Resource"]] == [
        "${Bucket.Arn}/runs/*/attempts/*/diagnostics/*",
        "${Bucket.Arn}/schema/runspec.json",
    ]


def test_the_notifier_may_delete_only_what_waited_for_the_morning() -> None:
    assert roles_granted("dynamodb:BatchWriteItem") == {role_of("NotifierFunction")}
    deleting = [
        one
        for one in statements(role_of("NotifierFunction"))
        if {"dynamodb:DeleteItem", "dynamodb:BatchWriteItem"} & set(actions(one))
    ]
    assert [one["Condition"] for one in deleting] == [
        {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [notification_log.NIGHT]}}
    ]
    assert set(actions(deleting[0])) == {"dynamodb:DeleteItem", "dynamodb:BatchWriteItem"}, (
        "its condition is theirs only"
    )


def test_every_route_needs_a_signed_request() -> None:
    [api] = resources("AWS::ApiGatewayV2::Api").values()
    routes = {
        (method, path): operation["security"]
        for path, methods in api["Body"]["paths"].items()
        for method, operation in methods.items()
    }
    described = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    assert set(routes) == {
        (method, path) for path, one in described.items() for method in one if method != "parameters"
    }
    assert all(list(schemes[0]) == ["AWS_IAM"] for schemes in routes.values())


def test_the_table_has_the_keys_that_the_store_uses() -> None:
    [table] = resources("AWS::DynamoDB::Table").values()
    indexes = {
        index["IndexName"]: [key["AttributeName"] for key in index["KeySchema"]]
        for index in table["GlobalSecondaryIndexes"]
    }
    assert indexes == {
        "by_cluster": ["cluster_pk", "cluster_sk"],
        "by_created": ["list_pk", "list_sk"],
        "by_next_look": ["look_pk", "look_sk"],
        "by_owner": ["owner_pk", "owner_sk"],
        "by_pool": ["pool_pk", "pool_sk"],
    }
    assert "TimeToLiveSpecification" not in table, "TTL never decides anything"


def test_the_bucket_is_private_announces_its_objects_and_speaks_only_tls() -> None:
    [bucket] = resources("AWS::S3::Bucket").values()
    assert bucket["NotificationConfiguration"]["EventBridgeConfiguration"]["EventBridgeEnabled"] is True
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    [policy] = resources("AWS::S3::BucketPolicy").values()
    [statement] = policy["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


def test_a_job_may_write_its_evidence_and_nothing_that_the_controller_writes() -> None:
    puts = [one for one in statements("JobRole") if "s3:PutObject" in actions(one)]
    [statement] = puts
    suffixes = [one["Fn::Sub"].removeprefix("${Bucket.Arn}/") for one in statement["Resource"]]

    def writable(key: str) -> bool:
        # IAM's * also matches slashes.
        return any(key.startswith(one.split("*")[0]) and one.split("*")[1] in key for one in suffixes)

    keys = RunKeys("maze-1")
    assert writable(keys.progress(1))
    assert writable(keys.outcome(1))
    assert writable(f"{keys.export(1, 20)}adapter_model.safetensors")
    assert writable(keys.curve_png)
    for forbidden in (
        keys.spec,
        keys.control,
        keys.manifest,
        keys.report,
        f"{keys.adapter('best')}adapter_config.json",
    ):
        assert not writable(forbidden), forbidden


def test_a_job_may_read_whether_a_run_is_over_and_nothing_else_of_the_table() -> None:
    [statement] = [one for one in statements("JobRole") if any(a.startswith("dynamodb:") for a in actions(one))]
    assert (actions(statement), statement["Resource"]) == (["dynamodb:BatchGetItem"], {"Fn::GetAtt": ["Table", "Arn"]})
    condition = statement["Condition"]
    assert condition["ForAllValues:StringLike"] == {"dynamodb:LeadingKeys": ["RUN#*"]}
    assert condition["ForAllValues:StringEquals"] == {"dynamodb:Attributes": list(READ)}
    assert condition["StringEqualsIfExists"] == {"dynamodb:Select": "SPECIFIC_ATTRIBUTES"}


def test_the_bucket_forgets_old_versions_and_broken_uploads_and_nothing_that_a_run_left() -> None:
    [bucket] = resources("AWS::S3::Bucket").values()
    rule, *others = bucket["LifecycleConfiguration"]["Rules"]
    assert (rule["Status"], rule["NoncurrentVersionExpiration"]) == ("Enabled", {"NoncurrentDays": 30})
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert set(rule) == {"Id", "Status", "NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload"}
    assert [one["Prefix"] for one in others] == ["runs/rehearsal-"], "nothing else is ever expired"


def test_only_the_controller_role_may_change_a_cluster_and_only_the_one_that_the_deployment_names() -> None:
    assert roles_granted("sagemaker:UpdateCluster") == roles_granted("iam:PassRole") == {"ControllerRole"}
    changing = [
        one for one in statements("ControllerRole") if {"sagemaker:UpdateCluster", "iam:PassRole"} & set(actions(one))
    ]
    assert [one["Resource"] for one in changing] == [
        {"Ref": "HyperPodClusterArn"},
        {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/${InstanceRoleName}"},
    ]
    assert changing[1]["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    asked = ("PoolScaling", "HyperPodClusterArn", "InstanceRoleName")
    assert {template()["Parameters"][name]["Default"] for name in asked} == {""}, "nobody scales anything unasked"


def test_only_the_controller_may_register_a_model_and_only_in_the_groups_that_the_deployment_names() -> None:
    assert roles_granted("sagemaker:CreateModelPackage") == {role_of("ControllerFunction")}
    [statement] = [
        one for one in statements(role_of("ControllerFunction")) if "sagemaker:CreateModelPackage" in actions(one)
    ]
    named = [one["Fn::Sub"].rpartition(":")[2] for one in statement["Resource"]]
    assert named == ["model-package-group/${ModelPackageGroups}", "model-package/${ModelPackageGroups}/*"]
    assert template()["Parameters"]["ModelPackageGroups"]["Default"] == "", "nobody registers anything unasked"


def test_the_doctor_may_remove_its_own_probe_and_nothing_of_a_run() -> None:
    every = [one for role in resources("AWS::IAM::Role") for one in statements(role)]
    removing = [one for one in every if "s3:DeleteObject" in actions(one)]
    assert [one["Resource"] for one in removing] == [{"Fn::Sub": "${Bucket.Arn}/" + PROBES + "*"}]
    with pytest.raises(ValidationError):
        spec(run_id=PROBES.split("/")[1])


def test_the_template_can_be_read_by_a_person() -> None:
    before, body, after = re.split(
        r"(?<=DashboardBody: !Sub \|\n)((?: {8}.*\n)+)", (ROOT / "template.yaml").read_text()
    )
    assert body, "which is written by a script"
    lines = (before + after).splitlines()
    assert len(lines) <= 1_000
    assert max(map(len, lines)) <= 170


def test_no_secret_and_no_account_is_written_into_the_template() -> None:
    text = json.dumps(translated())
    assert "hooks.slack.com/" not in text
    assert "111122223333" not in text
