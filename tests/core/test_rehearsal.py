"""A rehearsal follows from its run's spec alone: the same parts are the same rehearsal, and other parts another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.rehearsal import (
    EVAL_ITEMS,
    EXPIRE_DAYS,
    MAX_HOURS,
    MAX_NUMBER,
    PREFIX,
    NotToRehearse,
    is_rehearsal,
    rehearsal_of,
    rehearsal_problems,
)
from nightshift.contract.spec import NotifyLevel, RunSpec, spec_digest
from nightshift.contract.upgrades import spec_file
from nightshift.core.admission import check_spec
from nightshift.core.causes import EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Verb
from nightshift.core.measures import Measure, Metric, counted, standing
from nightshift.core.observation import JobState, JobView, Observation
from nightshift.core.run import Awaiting, RunState
from tests.builders import NOW, attempt, cluster, progress, ray, run, spec, spec_json
from tests.deploy.repository import resources

LABELS = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
ROWS = {"kind": "parquet", "uri": "s3://bucket/rows.parquet"}
SEEDS = {"kind": "seeds", "start": 7, "stop": 9}


def task(**changes: Any) -> dict[str, Any]:
    return {**spec_json()["task"], **changes}


@given(LABELS.filter(lambda one: not one.startswith(PREFIX)), st.integers(1, MAX_NUMBER))
def test_a_rehearsal_is_a_run_that_intake_takes_and_that_no_run_can_be_mistaken_for(name: str, number: int) -> None:
    made = rehearsal_of(spec(run_id=name), number)
    assert check_spec(made.model_dump(mode="json")) == made
    assert RunSpec.model_validate_json(spec_file(made)) == made, "what lies in the bucket is what was sent"
    assert is_rehearsal(made.run_id) and not is_rehearsal(name) and len(made.run_id) <= 40
    assert made == rehearsal_of(spec(run_id=name), number)


def test_it_trains_what_the_run_trains_for_two_steps_and_touches_nothing_that_counts() -> None:
    whole = spec(
        task=task(holdout=SEEDS), target={"success": 0.5, "stop": True}, plateau={}, priority="urgent", queue="gpus",
        publish={"model_package_group": "mazes"}, tracking={"tracker": "tensorboard"}, notify="all",
        recovery={"replace_nodes": True}, budgets={"wall_hours": 2, "max_recoveries_without_progress": 0, "dollars": 50},
    )  # fmt: skip
    made = rehearsal_of(whole)
    training = made.training
    assert (training.total_steps, training.ckpt_interval, training.hf_save_interval) == (2, 1, 1)
    sizes = (
        "train_batch_size",
        "n_samples_per_prompt",
        "max_turns",
        "learning_rate",
        "gpu_memory_utilization",
        "skyrl",
    )
    assert [getattr(training, n) for n in sizes] == [getattr(whole.training, n) for n in sizes]
    same = ("image", "model", "topology", "pool", "queue", "priority", "secrets")
    assert [getattr(made, n) for n in same] == [getattr(whole, n) for n in same]
    assert (made.task.code, made.task.train) == (whole.task.code, whole.task.train)
    assert made.task.eval.model_dump() == {"kind": "seeds", "start": 0, "stop": EVAL_ITEMS}
    assert made.task.holdout == whole.task.holdout, "it has fewer items than are wanted"
    assert (made.target, made.plateau, made.publish, made.recovery.replace_nodes) == (None, None, None, False)
    assert (made.tracking.tracker, made.notify) == ("console", NotifyLevel.QUIET)
    budgets = made.budgets
    assert (budgets.wall_hours, budgets.dollars, budgets.gpu_hours) == (2, 50, MAX_HOURS * 6), (
        "never more than the run's"
    )
    assert (budgets.max_recoveries_without_progress, budgets.max_rollback_steps) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"total_steps": 900}}, {"training": {"eval_interval": 3}}, {"target": {"success": 0.4}},
        {"notify": "all"}, {"publish": {"model_package_group": "m"}}, {"budgets": {"wall_hours": 90}},
        {"task": task(eval={"kind": "seeds", "start": 0, "stop": 500})},
    ],
    ids=str,
)  # fmt: skip
def test_a_run_that_only_goes_on_for_longer_or_to_another_end_needs_no_other_rehearsal(change: dict[str, Any]) -> None:
    assert rehearsal_of(spec(**change)) == rehearsal_of(spec())


@pytest.mark.parametrize(
    "change",
    [
        {"image": "registry/skyrl@sha256:" + "1" * 64}, {"model": {"source": "/shared/other"}}, {"run_id": "maze-2"},
        {"task": task(environment="other:Env")}, {"task": task(config={"size": 3})}, {"pool": "night"},
        {"training": {"n_samples_per_prompt": 16}},
        {"topology": {"workers": {"instance_type": "ml.p5.48xlarge", "count": 1, "gpus": 6}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_change_of_task_model_image_sizes_or_nodes_is_another_rehearsal(change: dict[str, Any]) -> None:
    assert rehearsal_of(spec(**change)).run_id != rehearsal_of(spec()).run_id
    assert spec_digest(rehearsal_of(spec(), 2)) != spec_digest(rehearsal_of(spec()))
    assert rehearsal_of(spec(), 2).run_id != rehearsal_of(spec()).run_id


def test_rows_of_a_file_are_reduced_to_the_first_ones() -> None:
    made = rehearsal_of(spec(task=task(eval=ROWS, holdout=ROWS | {"first": 2})))
    assert made.task.eval.model_dump()["first"] == EVAL_ITEMS
    assert made.task.holdout is not None and made.task.holdout.model_dump()["first"] == 2


def test_a_rehearsal_is_not_rehearsed_nor_is_anything_more_than_so_often() -> None:
    with pytest.raises(NotToRehearse, match="is a rehearsal already"):
        rehearsal_of(rehearsal_of(spec()))
    with pytest.raises(NotToRehearse, match="run_id: it was rehearsed 99 times"):
        rehearsal_of(spec(), MAX_NUMBER + 1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"run_id": "maze"}, "run_id"), ({"training": {"total_steps": 3, "ckpt_interval": 1}}, "training"),
        ({"publish": {"model_package_group": "m"}}, "publish"), ({"rehearsal": None}, "run_id"),
    ],
    ids=str,
)  # fmt: skip
def test_what_says_that_it_is_a_rehearsal_and_is_none_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    """Its objects would be removed after some days, or its adapter of two steps be offered to somebody."""
    raw = rehearsal_of(spec()).model_dump(mode="json") | change
    found = check_spec(raw)
    assert isinstance(found, list) and [one.field for one in found] == [field]


def test_an_older_job_refuses_a_rehearsal_and_reads_every_other_spec() -> None:
    assert b"rehearsal" not in spec_file(spec()) and b'"rehearsal"' in spec_file(rehearsal_of(spec()))
    assert rehearsal_problems(spec()) == []


def test_the_bucket_removes_what_rehearsals_leave_and_nothing_of_other_runs() -> None:
    [bucket] = [one for one in resources("AWS::S3::Bucket").values() if "LifecycleConfiguration" in one]
    [rule] = [one for one in bucket["LifecycleConfiguration"]["Rules"] if "ExpirationInDays" in one]
    assert (rule["Prefix"], rule["ExpirationInDays"]) == (f"runs/{PREFIX}", EXPIRE_DAYS)


def test_the_death_that_was_asked_for_costs_the_one_recovery_and_another_one_ends_it() -> None:
    made = rehearsal_of(spec())
    of = {"run_id": made.run_id, "total_steps": 2}
    dead = JobView(JobState.FAILED, "Job entrypoint command failed with exit code -9")
    seen = Observation(
        cluster(), job=dead, ray=ray(), progress=progress(step=1, saved_step=1, **of),
        attempts=(attempt(last_saved_step=1, heard_at=NOW),),
    )  # fmt: skip
    begun = run(verified_step=1, recovery_floor=0, leased_at=NOW - timedelta(minutes=3), **of)
    first = decide(begun, made, Awaiting.ATTEMPT, seen, NOW)
    assert (first.verb, first.cause) == (Verb.RECOVER, EndCause.WORKER_FAILED)
    again = begun.model_copy(update={"recoveries_without_progress": 1, "recovery_floor": 1, "attempt": 2})
    second = decide(again, made, Awaiting.ATTEMPT, seen, NOW)
    assert (second.verb, second.cause) == (Verb.FAILED, EndCause.BUDGET_SPENT)


def test_no_measure_of_a_rehearsal_counts_as_a_runs_or_alarms_but_its_wait_and_its_money_do() -> None:
    """Whatever is measured of a run is asked: one metric more is decided on here, too."""
    every = [Measure(metric) for metric in Metric]
    assert counted("maze-1", every) == tuple(every)
    sent = {one.metric for one in counted(rehearsal_of(spec()).run_id, every)}
    assert sent == {Metric.QUEUE_WAIT_SECONDS, Metric.DOLLARS}
    states = {"state": RunState.RECOVERING, "recovering_since": NOW - timedelta(hours=2), "leased_at": NOW}
    told = standing([run(run_id=rehearsal_of(spec()).run_id, dollars_per_hour=9.0, **states)], NOW)
    gauges = {one.metric: one.value for one in told}
    assert gauges[Metric.LONGEST_RECOVERY_SECONDS] == 0 and gauges[Metric.DOLLARS_PER_HOUR] == 9.0
