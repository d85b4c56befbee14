"""A success in the model registry: the real SDK against the local SageMaker, and a run that never suffers from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from nightshift.adapters.model_registry import SageMakerRegistry
from nightshift.adapters.threads import at_once
from nightshift.contract.evals import EvalSet
from nightshift.contract.events import Stage
from nightshift.core.errors import PermanentError, TransientError
from nightshift.core.registration import MAX_VALUE, Registration, registration, value_of
from nightshift.core.run import Awaiting, RunState
from nightshift.handlers import wiring
from nightshift.handlers.settings import ControllerSettings
from nightshift.steps import registering
from nightshift.steps.ending import abandon, notify, release
from nightshift.steps.publish import publish, verify
from nightshift.steps.requests import Fault
from tests.builders import NOW, run, spec, spec_json
from tests.report.support import evaluated, manifest, provenance
from tests.steps.test_run import finish_attempt, put_results
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

GROUP, REGION = "nightshift-mazes", "us-east-1"


def wanted(run_id: str = "maze-1", **changes: Any) -> Registration:
    known = {
        "run_id": run_id, "group": GROUP, "description": f"Nightshift run {run_id}: 62 of 64 solved",
        "model_prefix": f"runs/{run_id}/adapters/best/", "statistics_key": f"runs/{run_id}/eval/a1/fixed-step-400.json",
        "metadata": {"nightshift:run_id": run_id}, "asked_at": NOW - timedelta(days=3),
    }  # fmt: skip
    return Registration(**(known | changes))


@pytest.fixture
def sagemaker(world: World) -> Any:
    return boto3.client("sagemaker", region_name=REGION)


@pytest.fixture
def registry(sagemaker: Any) -> SageMakerRegistry:
    return SageMakerRegistry(lambda: sagemaker, REGION, BUCKET)


def packages(sagemaker: Any) -> list[dict[str, Any]]:
    listed = sagemaker.list_model_packages(ModelPackageGroupName=GROUP)["ModelPackageSummaryList"]
    return [sagemaker.describe_model_package(ModelPackageName=one["ModelPackageArn"]) for one in listed]


def succeeded(world: World, registry: Any = None, **publish_in: Any) -> None:
    """A run is trained to its end; what it published is about to be verified."""
    raw = spec_json(**({"publish": publish_in} if publish_in else {}))
    running(world, **{name: raw[name] for name in ("publish",) if name in raw})
    put_results(world, 1, {0: 28})
    finish_attempt(world, attempt=1)
    assert (ended := world.look(Awaiting.ATTEMPT, "token-9")) is not None and ended.decision == "succeeded"
    world.ports = replace(world.ports, registry=registry)
    publish(world.ports, step("publish"))


def trail(world: World) -> list[str]:
    return [line.what for line in world.runs.audit_trail("maze-1", 100)]


# ------------------------------------------------------------------ the SDK against SageMaker
def test_the_group_is_made_once_and_a_package_points_to_the_adapter_as_it_lies_in_the_bucket(
    sagemaker: Any, registry: SageMakerRegistry
) -> None:
    arns = [registry.register(wanted(run_id)) for run_id in ("maze-1", "maze-2")]

    found = packages(sagemaker)
    assert sorted(one["ModelPackageArn"] for one in found) == sorted(arns)
    assert len(sagemaker.list_model_package_groups()["ModelPackageGroupSummaryList"]) == 1
    [one] = [one for one in found if one["ModelPackageArn"] == arns[0]]
    [container] = one["InferenceSpecification"]["Containers"]
    assert container["ModelDataSource"]["S3DataSource"] == {
        "S3Uri": f"s3://{BUCKET}/runs/maze-1/adapters/best/", "S3DataType": "S3Prefix", "CompressionType": "None",
    }  # fmt: skip
    assert one["ModelApprovalStatus"] == "PendingManualApproval"
    assert one["CustomerMetadataProperties"] == {"nightshift:run_id": "maze-1"}
    statistics = one["ModelMetrics"]["ModelQuality"]["Statistics"]
    assert statistics["S3Uri"] == f"s3://{BUCKET}/runs/maze-1/eval/a1/fixed-step-400.json"


def test_a_run_has_one_package_however_often_it_is_registered(sagemaker: Any, registry: SageMakerRegistry) -> None:
    first = registry.register(wanted())
    registry.register(wanted("maze-10"))  # its id begins with the other's

    assert registry.register(wanted()) == first
    assert len(packages(sagemaker)) == 2


@pytest.mark.parametrize(
    ("code", "kind"), [("AccessDeniedException", PermanentError), ("ThrottlingException", TransientError)]
)
def test_what_sagemaker_refuses_names_the_run_and_says_whether_repeating_may_help(
    sagemaker: Any, registry: SageMakerRegistry, monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    def refusing(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "not you"}}, "CreateModelPackageGroup")

    monkeypatch.setattr(sagemaker, "create_model_package_group", refusing)

    with pytest.raises(kind, match=r"^run maze-1: .*not you"):
        registry.register(wanted())


@given(st.text(max_size=600))
def test_any_text_becomes_a_value_that_sagemaker_takes(text: str) -> None:
    value = value_of(text)

    assert 1 <= len(value) <= MAX_VALUE
    assert all(one.isalnum() or one in " _.:/=+-@" or one.isidentifier() or not one.isascii() for one in value)


@pytest.mark.parametrize(
    ("holdout", "told"),
    [
        ({"holdout_best": evaluated(455, 500, 40, 2, EvalSet.HOLDOUT)}, "0.9100"),
        ({"holdout_best": None, "holdout_final": evaluated(462, 500, 40, 2, EvalSet.HOLDOUT)}, "0.9240"),
        ({"holdout_best": None, "holdout_final": evaluated(462, 500, 50, 2, EvalSet.HOLDOUT)}, None),  # of another step
    ],
)
def test_the_holdouts_result_is_of_the_adapter_that_is_registered(holdout: dict[str, Any], told: str | None) -> None:
    published = manifest(best=evaluated(63, step=40, attempt=2), **holdout)
    asked = spec(publish={"model_package_group": GROUP})

    found = registration(run(verdict=RunState.SUCCEEDED), published, provenance(), asked)

    assert found is not None
    assert found.metadata["nightshift:step"] == "40"
    assert found.metadata.get("nightshift:holdout_success") == told


@pytest.mark.parametrize("verdict", [RunState.FAILED, RunState.CANCELLED])
def test_a_run_that_did_not_succeed_is_offered_to_nobody(verdict: RunState) -> None:
    asked = spec(publish={"model_package_group": GROUP})

    assert registration(run(verdict=verdict), manifest(), provenance(), asked) is None


# ------------------------------------------------------------------ a run
def test_a_verified_success_is_registered_and_the_last_message_names_it(
    world: World, sagemaker: Any, registry: SageMakerRegistry
) -> None:
    succeeded(world, registry, model_package_group=GROUP)
    assert not sagemaker.list_model_package_groups()["ModelPackageGroupSummaryList"], "only what is verified"

    verify(world.ports, step("verify"))
    verify(world.ports, step("verify"))  # a repeat

    [one] = packages(sagemaker)
    assert one["CustomerMetadataProperties"].items() >= {
        "nightshift:run_id": "maze-1", "nightshift:step": "400", "nightshift:fixed_success": "0.9688",
        "nightshift:fixed_low": "0.8930", "nightshift:fixed_high": "0.9914", "nightshift:fixed_items": "64",
    }.items()  # fmt: skip
    assert world.run().model_package == one["ModelPackageArn"]
    release(world.ports, step("release"))
    notify(world.ports, step("notify"))
    [told] = [event for event in world.stages.events if event.stage is Stage.FINISHED]
    assert told.links["Model package"] == one["ModelPackageArn"]


class Refusing:
    def register(self, wanted: Registration) -> str:
        raise PermanentError(wanted.run_id, "AccessDenied", "Ask whoever owns the group.")


class Breaking:
    def register(self, wanted: Registration) -> str:
        raise KeyError("an SDK that changed")


def test_a_registry_that_fails_is_told_and_the_run_succeeds(world: World) -> None:
    succeeded(world, None, model_package_group=GROUP)
    told: list[str] = []
    for registry, seconds in ((Refusing(), 40.0), (Breaking(), 40.0), (None, 40.0), (Refusing(), 19.0)):
        world.ports = replace(world.ports, registry=registry, remaining=lambda left=seconds: left)
        assert verify(world.ports, step("verify")).decision == "ready"
        told.append(world.run().registration_problem)

    for problem, why in zip(told, ("AccessDenied", "an SDK that changed", "no model registry", "no time"), strict=True):
        assert why in problem
    assert world.run().published and trail(world).count("model package not registered") == 4
    release(world.ports, step("release"))
    notify(world.ports, step("notify"))
    assert world.run().state is RunState.SUCCEEDED
    [message] = [event for event in world.stages.events if event.stage is Stage.FINISHED]
    assert "no time" in message.sentence and "Model package" not in message.links


def test_a_run_that_names_no_group_touches_no_registry(world: World) -> None:
    succeeded(world, Breaking())

    verify(world.ports, step("verify"))

    assert world.run().model_package is None and not world.run().registration_problem
    assert not [what for what in trail(world) if "model package" in what]


@pytest.fixture
def silent() -> Iterator[Any]:
    """A registry that does not answer before the test is over."""
    over = Event()

    class Silent:
        def register(self, wanted: Registration) -> str:
            over.wait(60)
            return "arn:late"

    yield Silent()
    over.set()


def test_a_registry_that_does_not_answer_is_not_waited_for_and_the_run_succeeds(
    world: World, silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeeded(world, silent, model_package_group=GROUP)
    world.ports = replace(world.ports, together=at_once)
    monkeypatch.setattr(registering, "MOST_SECONDS", 0.2)
    monkeypatch.setattr(registering, "LEAST_SECONDS", 0.1)

    assert verify(world.ports, step("verify")).decision == "ready"

    ended = world.run()
    assert (ended.verdict, ended.published, ended.model_package) == (RunState.SUCCEEDED, True, None)
    assert "did not answer" in ended.registration_problem and GROUP in ended.registration_problem


def test_what_a_registration_may_take_leaves_the_step_its_own_time(world: World) -> None:
    asked: list[float] = []

    def together(calls: Any, seconds: float) -> dict[str, str]:
        asked.append(seconds)
        return {}

    succeeded(world, Breaking(), model_package_group=GROUP)
    for left in (300.0, 30.0, 20.0, 19.0):
        world.ports = replace(world.ports, together=together, remaining=lambda left=left: left)
        verify(world.ports, step("verify"))

    assert asked == [20.0, 15.0, 5.0]


def test_the_controllers_registry_asks_with_short_deadlines_and_one_repeat(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    names = {str(field.alias): "some-name" for field in ControllerSettings.model_fields.values()}
    settings = ControllerSettings.model_validate(names | {"LOOK_SECONDS_ATTEMPT": 60, "AWS_REGION": REGION})
    registry = wiring.controller_ports(settings, lambda: 40.0).registry
    assert isinstance(registry, SageMakerRegistry)

    config = registry._client().meta.config

    for kept in (wiring.client, wiring.table):  # they belong to this test's account
        kept.cache_clear()
    assert (config.connect_timeout, config.read_timeout, config.retries["total_max_attempts"]) == (3, 5, 2)


def test_a_success_that_was_read_back_stays_one_whatever_breaks_after_it(world: World) -> None:
    succeeded(world)
    verify(world.ports, step("verify"))

    abandon(world.ports, step("abandon", error=Fault(Error="Sandbox.Timedout", Cause="50.00 seconds")))

    assert (world.run().verdict, "controller fault" in trail(world)) == (RunState.SUCCEEDED, True)
    release(world.ports, step("release"))
    notify(world.ports, step("notify"))
    assert world.run().state is RunState.SUCCEEDED
    [told] = [event for event in world.stages.events if event.stage in (Stage.FINISHED, Stage.FAILED)]
    assert told.stage is Stage.FINISHED and "50.00 seconds" not in told.sentence
