"""Secrets by name: what may be asked for, how they are read, and that a value never gets anywhere."""

from __future__ import annotations

import json
import os
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from nightshift.contract import RunSpec
from nightshift.contract.secrets import secret_problems
from nightshift.core.admission import check_spec
from tests.builders import spec, spec_json
from training_job.errors import BadConfiguration, StorageUnreachable
from training_job.secrets import Secrets, read_secrets

TOKEN = "hf_" + "a1B2" * 9
KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(scope="module")
def manager(s3_url: str) -> Any:
    client = boto3.client("secretsmanager", endpoint_url=s3_url, region_name="us-east-1")
    client.create_secret(Name="nightshift/hf", SecretString=f"{TOKEN}\n")
    client.create_secret(Name="nightshift/json", SecretString=json.dumps({"key": KEY, "number": 7}))
    client.create_secret(Name="nightshift/bytes", SecretBinary=b"\x00\x01")
    client.create_secret(Name="nightshift/blank", SecretString=" \n")
    client.create_secret(Name="nightshift/deleted", SecretString="x")
    client.delete_secret(SecretId="nightshift/deleted")
    return client


def read(manager: Any, **secrets: str) -> dict[str, str]:
    environment: dict[str, str] = {}
    read_secrets(spec(secrets=secrets), lambda region: manager).put_into(environment)
    return environment


# Reading


def test_a_secret_is_read_by_name_by_arn_and_by_key(manager: Any) -> None:
    arn = manager.describe_secret(SecretId="nightshift/hf")["ARN"]
    asked = []
    found = read_secrets(
        spec(secrets={"HF_TOKEN": arn, "WANDB_API_KEY": "nightshift/json#key"}),
        lambda region: asked.append(region) or manager,
    )
    environment: dict[str, str] = {}
    found.put_into(environment)
    assert environment == {"HF_TOKEN": TOKEN, "WANDB_API_KEY": KEY}, "without the line's end that people leave in"
    assert asked == ["us-east-1", None], "an ARN's own region, and else the job's"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("nightshift/none", "no such secret"),
        ("nightshift/deleted", "marked for deletion"),
        ("nightshift/bytes", "holds bytes"),
        ("nightshift/blank", "is empty"),
        ("nightshift/hf#key", "no JSON object with a text under 'key'"),
        ("nightshift/json#other", "no JSON object with a text under 'other'"),
        ("nightshift/json#number", "no JSON object with a text under 'number'"),
    ],
)
def test_a_secret_that_cannot_be_had_is_one_line_with_its_field(manager: Any, wanted: str, says: str) -> None:
    with pytest.raises(BadConfiguration) as raised:
        read(manager, HF_TOKEN=wanted)
    text = str(raised.value)
    assert text.startswith("secrets.HF_TOKEN: ") and says in text
    assert "\n" not in text and TOKEN not in text and KEY not in text
    assert raised.value.exit_code == 65


class Refusing:
    def get_secret_value(self, SecretId: str) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetSecretValue")


def test_a_secret_that_the_role_may_not_read_says_which_permission_is_missing() -> None:
    with pytest.raises(BadConfiguration, match=r"^secrets\.HF_TOKEN: .*secretsmanager:GetSecretValue"):
        read(Refusing(), HF_TOKEN="nightshift/hf")


def test_a_secrets_manager_that_does_not_answer_is_no_error_of_the_spec() -> None:
    config = Config(connect_timeout=1, retries={"total_max_attempts": 1})  # type: ignore[typeddict-item]
    nobody = boto3.client("secretsmanager", endpoint_url="http://127.0.0.1:1", region_name="us-east-1", config=config)
    with pytest.raises(StorageUnreachable, match=r"secrets\.HF_TOKEN"):
        read(nobody, HF_TOKEN="nightshift/hf")


def test_they_leave_the_environment_for_as_long_as_ray_is_told_about_it() -> None:
    environment, secrets = {"PATH": "/bin"}, Secrets({"WANDB_API_KEY": KEY})
    secrets.put_into(environment)
    with pytest.raises(OSError), secrets.taken_out_of(environment):
        assert environment == {"PATH": "/bin"}
        raise OSError
    assert environment == {"PATH": "/bin", "WANDB_API_KEY": KEY}
    assert KEY not in repr(secrets)
    assert secrets.hide(f"refused {KEY} and {TOKEN}") == "refused [hidden] and [hidden]"


# What may be asked for


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "MLFLOW_TRACKING_TOKEN", "MY_SECRET_2"])
def test_a_secret_may_have_any_name_of_its_own(name: str) -> None:
    assert isinstance(check_spec(spec_json(secrets={name: "team/some-secret"})), RunSpec)


@pytest.mark.parametrize(
    "name",
    ["PATH", "PYTHONPATH", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "RAY_ADDRESS", "NIGHTSHIFT_SHARED", "HTTPS_PROXY",
     "HF_ENDPOINT", "WANDB_BASE_URL", "lower", "WITH-DASH", "", "1A"],
)  # fmt: skip
def test_a_name_that_decides_what_is_run_or_where_it_connects_to_is_refused(name: str) -> None:
    checked = check_spec(spec_json(secrets={name: "team/some-secret"}))
    assert not isinstance(checked, RunSpec)
    assert checked[0].field.startswith("secrets")


VALUES = [
    TOKEN,
    KEY,
    "AKIAIOSFODNN7EXAMPLE",
    "wandb_v1_" + "Ab3" * 10,
    "ghp_" + "0aZ" * 12,
    "xoxb-123456789012-abcdefghijkl",
    "-----BEGIN PRIVATE KEY-----\nMIIE",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_in_place_of_a_name_is_refused_and_never_repeated(value: str) -> None:
    for raw in (spec_json(secrets={"HF_TOKEN": value}), spec_json(secrets={"HF_TOKEN": f"{value}#key"})):
        checked = check_spec(raw)
        assert not isinstance(checked, RunSpec)
        assert "secrets.HF_TOKEN" in {one.field for one in checked}
        assert value not in json.dumps([one.model_dump() for one in checked])


@pytest.mark.parametrize("value", [v for v in VALUES if v != KEY])
def test_a_value_anywhere_else_is_refused_by_its_field(value: str) -> None:
    raw = spec_json(training={"skyrl": {"overrides": {"trainer.policy.model.x": f"token {value}"}}})
    raw["task"]["config"] = {"deep": [{"words": f"use {value} for it"}]}
    fields = {field for field, _ in secret_problems(raw)}
    assert fields == {"training.skyrl.overrides.trainer.policy.model.x", "task.config.deep.0.words"}
    assert not isinstance(check_spec(raw), RunSpec)


def test_what_is_named_like_a_secret_is_refused_and_what_only_sounds_like_one_is_not() -> None:
    raw = spec_json()
    raw["task"]["config"] = {"judge": {"api_key": "my-own-long-key"}}
    assert [field for field, _ in secret_problems(raw)] == ["task.config.judge.api_key"]
    raw["task"]["config"] = {"stop_token": "<|endoftext|>", "tokenizer": "abcdefgh", "secret_word": "friend-and-foe"}
    raw["task"]["environment"] = "credentials.env:TokenEnvironment"
    assert secret_problems(raw) == []
    assert isinstance(check_spec(raw), RunSpec)


def test_a_document_of_any_shape_is_looked_through_in_bounds() -> None:
    deep: Any = "end"
    for _ in range(5_000):
        deep = [deep]
    assert secret_problems({"task": deep, "many": [TOKEN] * 100_000})


def test_only_a_tracker_that_needs_a_secret_or_a_server_asks_for_it() -> None:
    for raw, field in (
        (spec_json(tracking={"tracker": "wandb"}), "tracking.tracker"),
        (spec_json(tracking={"tracker": "mlflow"}), "tracking.mlflow_uri"),
        (spec_json(tracking={"tracker": "mlflow", "mlflow_uri": "https://user:pw@host"}), "tracking.mlflow_uri"),
    ):
        checked = check_spec(raw)
        assert not isinstance(checked, RunSpec) and [one.field for one in checked] == [field]
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team"
    for tracking in (
        {"tracker": "mlflow", "mlflow_uri": arn},
        {"tracker": "mlflow", "mlflow_uri": "https://mlflow.example.com:5000"},
        {"tracker": "tensorboard"},
    ):
        assert isinstance(check_spec(spec_json(tracking=tracking)), RunSpec)
    assert isinstance(
        check_spec(spec_json(tracking={"tracker": "wandb"}, secrets={"WANDB_API_KEY": "team/wandb"})), RunSpec
    )


def test_this_process_has_none_of_them() -> None:
    assert TOKEN not in os.environ.values()
