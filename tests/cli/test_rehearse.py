"""`nightshift rehearse`: what its report says of a rehearsal's records, and what it says where there is none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import cli.rehearse
from cli.forecast import forecast, times
from cli.rehearsal import Records, checks, failure, seconds
from cli.rehearsal_text import Report, report_text
from nightshift.contract.api import AuditLine, Plan, RunView
from nightshift.contract.job import ExportRecord, GuardReport, OutcomeCause, Phase
from nightshift.contract.publication import Manifest
from nightshift.contract.rehearsal import rehearsal_of
from nightshift.contract.spec import RunSpec
from nightshift.core.prices import hourly
from tests.builders import DIGEST, NOW, outcome, progress, spec, summary
from tests.cli.test_cli import SPEC, Api, Command, api, nightshift, written

__all__ = ["nightshift"]

ASKED = spec(training={"total_steps": 100, "ckpt_interval": 20, "eval_interval": 10, "hf_save_interval": 20})
MADE = rehearsal_of(ASKED)
GUARD = GuardReport(floor=1, pointer_before=1, resumed_step=1, checked=[1])


def at(second: float) -> Any:
    return NOW + timedelta(seconds=second)


def line(second: float, what: str) -> AuditLine:
    return AuditLine(at=at(second), actor="step", what=what)


EVENTS = (
    line(0, "run requested"), line(1, "admitted"), line(10, "lease ready"), line(11, "preflight passed"),
    line(70, "cluster ready"), line(71, "attempt 1 submitted"), line(205, "attempt 1 ended: worker_failed"),
    line(210, "fence ready"), line(212, "cluster ready"), line(215, "attempt 2 submitted"),
    line(400, "run succeeded: finished"), line(404, "published"), line(410, "publication verified"),
    line(425, "final message sent"),
)  # fmt: skip
ATTEMPTS = [
    {"n": 1, "started_at": at(71), "ended_at": at(205), "end_cause": "worker_failed", "message": "exit code -9",
     "resumed_step": 0, "last_saved_step": 1},
    {"n": 2, "started_at": at(215), "ended_at": at(400), "end_cause": "finished", "resumed_step": 1, "last_saved_step": 2},
]  # fmt: skip


def view(**changes: Any) -> RunView:
    hour = hourly(MADE.topology)
    assert hour is not None
    base = {
        "run_id": MADE.run_id, "state": "succeeded", "owner": "me", "pool": "default", "created_at": NOW, "attempt": 2,
        "step": 2, "verified_step": 2, "total_steps": 2, "attempts": ATTEMPTS, "audit": EVENTS, "ended_at": at(420),
        "prefix": "s3://b/runs/x/",
        "spend": {"dollars": 5.0, "dollars_per_hour": hour.dollars, "prices_as_of": hour.as_of},
    }  # fmt: skip
    return RunView.model_validate(base | changes)


def told(n: int, saved: int, until: float, step: float | None, **phases: float) -> Any:
    spent = {Phase(name): value for name, value in phases.items()}
    first = {"resumed_step": 0} if n == 1 else {"resumed_step": 1, "guard": GUARD}
    base: dict[str, Any] = {"phase": Phase.DONE if n == 2 else Phase.CHECKPOINT, "rollouts_per_second": 2.0}
    return progress(
        run_id=MADE.run_id, attempt=n, step=saved, total_steps=2, saved_step=saved, at=at(until), phase_seconds=spent,
        step_seconds=step, **(base | first),
    )  # fmt: skip


def records(**changes: Any) -> Records:
    """A rehearsal that went as it must."""
    curve = [summary(0, 1, of=4), summary(2, 2, attempt=2, of=4)]
    export = ExportRecord(run_id=MADE.run_id, attempt=2, step=2, files={}, lora_b_nonzero=9, lora_b_total=9, at=NOW)
    base: dict[str, Any] = {
        "asked": ASKED,
        "spec": MADE,
        "view": view(),
        "events": EVENTS,
        "progress": {
            1: told(1, 1, 200, step=28.0, setup=60.0, eval=8.0, generate=20.0, train=10.0, checkpoint=6.0),
            2: told(2, 2, 398, step=24.0, setup=80.0, eval=8.0, generate=20.0, train=10.0, checkpoint=6.0, export=4.0),
        },
        "outcomes": {2: outcome(attempt=2, step=2, total_steps=2, saved_step=2, final_export=export)},
        "manifest": Manifest(
            run_id=MADE.run_id, state="succeeded", attempts=[], baseline=curve[0], final=curve[1], curve=curve,
            adapters={"final": 2, "best": 2}, gpu_hours=1.0, objects={"spec.json": {"sha256": DIGEST, "size": 1}}, at=NOW,
        ),
        "rows": 4,
    }  # fmt: skip
    return Records(**(base | changes))


def without(found: Manifest | None, **changes: Any) -> Manifest:
    assert found is not None
    return found.model_copy(update=changes)


def report(one: Records) -> Report:
    made = checks(one)
    return Report(
        run_id=MADE.run_id, number=1, passed=all(c.ok for c in made), checks=made, failure=failure(one, made),
        seconds=seconds(one), forecast=forecast(one), steps=100, prefix="s3://b/",
    )  # fmt: skip


def test_a_rehearsal_that_went_as_it_must_passes_every_check() -> None:
    found = report(records())
    assert found.passed and found.failure is None, [c for c in found.checks if not c.ok]
    names = [c.name for c in found.checks]
    assert names == ["saved", "killed", "guard", "resumed", "evals", "adapter", "published", "over"]


def test_its_seconds_are_all_of_its_time_each_once() -> None:
    """From the request to the end: what stands in the records, and nothing that is not there."""
    *parts, total = seconds(records())
    assert (total.part, total.seconds) == ("in all", 420.0)
    by_part = {one.part: one.seconds for one in parts}
    assert by_part["in the queue"] == 10 and by_part["nodes and RayCluster"] == 60
    assert by_part["attempt 1: start of the driver"] == 129 - 104
    assert by_part["attempt 1: until its end was noticed"] == 5
    assert by_part["recovery: fence, cluster, attempt 2"] == 10
    assert by_part["publish and read back"] == 10 and by_part["give the GPUs back"] == 10
    assert sum(by_part.values()) == pytest.approx(total.seconds, abs=1.01), "but for the submission"


def test_the_forecast_is_what_was_measured_times_how_often_it_comes() -> None:
    found = forecast(records())
    assert found is not None
    parts = {one.name: (one.count, one.each) for one in found.parts}
    assert parts["steps"] == (100, 26.0), "as the trainer measured them"
    assert parts["evals"] == (11, 32.0), "64 items at 2 rollouts a second take longer than the 4 items did"
    assert parts["checkpoints"] == (5, 6.0) and parts["exports"] == (5, 4.0)
    assert parts["nodes, start and set-up"] == (1, 60 + 25 + 60 + 4)
    total = 149 + 2_600 + 11 * 32 + 5 * 10 + 20
    assert found.seconds == total
    hour = hourly(ASKED.topology)
    assert hour is not None and found.dollars == round(total / 3_600 * hour.dollars, 2)
    assert found.gpu_hours == pytest.approx(total / 3_600 * 6, abs=1e-3)
    assert found.recovery == 15 + (183 - 128) + 80 and found.repeated_steps == 20
    assert not any("MORE THAN" in note for note in found.notes)


def test_a_trainer_that_tells_no_step_is_measured_by_its_phases() -> None:
    silent = {n: one.model_copy(update={"step_seconds": None}) for n, one in GOOD.progress.items()}
    found = forecast(records(progress=silent))
    assert found is not None and (found.parts[1].name, found.parts[1].each) == ("steps", 30.0)


def test_a_run_that_its_budgets_would_end_is_told_before_it_begins() -> None:
    tight = ASKED.model_copy(update={"budgets": ASKED.budgets.model_copy(update={"wall_hours": 0.5})})
    found = forecast(records(asked=tight))
    assert found is not None and any("MORE THAN budgets.wall_hours" in note for note in found.notes)


@pytest.mark.parametrize(
    ("steps", "interval", "epoch", "count"), [(10, 3, None, 4), (9, 3, None, 3), (10, 3, 4, 6), (1, 50, 7, 1)]
)
def test_what_comes_at_intervals_comes_at_the_last_step_too(
    steps: int, interval: int, epoch: int | None, count: int
) -> None:
    assert times(steps, interval, epoch) == count


UNTRAINED = ExportRecord(run_id=MADE.run_id, attempt=2, step=2, files={}, lora_b_nonzero=0, lora_b_total=9, at=NOW)
GOOD = records()
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "the driver was not killed": (
        {"outcomes": {1: outcome(OutcomeCause.CODE_ERROR, step=1), **GOOD.outcomes}}, "killed", "Build it anew"),
    "a broken save": (
        {"progress": {**GOOD.progress, 2: GOOD.progress[2].model_copy(
            update={"guard": GUARD.model_copy(update={"quarantined": ["global_step_1.a2"]})})}}, "guard", "look at FSx"),
    "resumed elsewhere": (
        {"view": view(attempts=[ATTEMPTS[0], ATTEMPTS[1] | {"resumed_step": 0}])}, "resumed", "driver log"),
    "too few rows": ({"rows": 3}, "evals", "driver log"),
    "no eval before": ({"manifest": without(GOOD.manifest, curve=[summary(2, 2, of=4)])}, "evals", "driver log"),
    "more items": ({"manifest": without(GOOD.manifest, curve=[summary(0, 1), summary(2, 2)])}, "evals", "driver log"),
    "an untrained adapter": (
        {"outcomes": {2: outcome(attempt=2, step=2, final_export=UNTRAINED)}}, "adapter", "the same reward"),
    "no adapter": ({"manifest": without(GOOD.manifest, adapters={})}, "adapter", "driver log"),
    "not read back": ({"events": [e for e in EVENTS if e.what != "publication verified"]}, "published", "log"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_is_not_as_expected_fails_the_rehearsal_by_its_name_with_what_to_do(name: str) -> None:
    changes, check, remedy = FAULTS[name]
    found = report(records(**changes))
    assert not found.passed and [c.name for c in found.checks if not c.ok] == [check]
    assert found.failure is not None and found.failure.phase == check and remedy in found.failure.remedy
    text = report_text(found)
    assert "DID NOT PASS" in text and f"it failed in: {check}" in text and "what to do: " in text


def failed(cause: str, sentence: str, **changes: Any) -> RunView:
    return view(state="failed", cause=cause, sentence=sentence, **changes)


BROKEN = ATTEMPTS[0] | {
    "end_cause": "bad_configuration",
    "message": "task.environment: no module x",
    "last_saved_step": 0,
}
EARLY: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "refused": (
        {"view": view(state="rejected", errors=[{"field": "image", "problem": "no digest"}], attempts=[]), "events": ()},
        "intake", "image: no digest", "correct the spec"),
    "in the queue": (
        {"view": view(state="cancelled", cause="cancelled", attempts=[]), "events": EVENTS[:2]}, "queue", "cancelled", "events"),
    "no nodes": (
        {"view": failed("capacity_missing", "Add nodes.", attempts=[]), "events": EVENTS[:3]}, "preflight", "capacity",
        "Add nodes."),
    "no cluster": (
        {"view": failed("bad_image", "Check that its digest exists.", attempts=[]), "events": EVENTS[:4]}, "cluster",
        "bad image", "digest exists"),
    "the job's start": (
        {"view": failed("bad_configuration", "The message names the field.", attempts=[BROKEN]), "progress": {}},
        "start of attempt 1, before the kill", "no module x", "names the field"),
    "a first step": (
        {"view": failed("gpu_out_of_memory", "Lower the micro batch sizes.", attempts=[BROKEN]),
         "progress": {1: GOOD.progress[1].model_copy(update={"phase": Phase.TRAIN})}},
        "train of attempt 1, before the kill", "gpu out of memory", "micro batch"),
    "the recovery": (
        {"view": failed("capacity_missing", "Add nodes.", attempts=ATTEMPTS[:1])},
        "recovery from the kill, after attempt 1", "capacity missing", "Add nodes."),
    "the resume": (
        {"view": failed("checkpoint_unusable", "Look into quarantine.",
                        attempts=[ATTEMPTS[0], ATTEMPTS[1] | {"end_cause": "checkpoint_unusable"}]),
         "progress": {**GOOD.progress, 2: GOOD.progress[2].model_copy(update={"phase": Phase.SETUP})}},
        "setup of attempt 2, after the kill", "checkpoint unusable", "quarantine"),
}  # fmt: skip


@pytest.mark.parametrize("name", EARLY)
def test_a_rehearsal_that_ended_before_its_end_says_in_which_phase_why_and_what_to_do(name: str) -> None:
    changes, phase, cause, remedy = EARLY[name]
    ended = [e for e in EVENTS if not e.what.startswith(("run succeeded", "publi"))]
    found = report(records(**({"manifest": None, "outcomes": {}, "events": ended} | changes)))
    assert found.failure is not None and not found.passed and found.forecast is None
    assert found.failure.phase == phase and cause in found.failure.cause and remedy in found.failure.remedy
    assert "there is no forecast" in report_text(found)


# the command ----------------------------------------------------------------------------------------------------------


def answer(**changes: Any) -> dict[str, Any]:
    """Of ``POST /runs/plan``."""
    base = {
        "run_id": "maze-demo", "spec_sha256": DIGEST, "exists": False, "pool": "default", "owner": "me", "capacity": [],
        "rollouts": {"gpus": 6, "per_step": 192, "per_gpu": 32, "updates_per_step": 2, "evals": 41, "checkpoints": 20,
                     "max_rollback_steps": 20},
        "forecast": {"wall_hours": 336, "gpu_hours": 5000}, "capacity_known": True, "spec": {},
    }  # fmt: skip
    return Plan.model_validate(base | changes).model_dump(mode="json")


def waiting(**changes: Any) -> dict[str, Any]:
    base = {"state": "queued", "attempts": [], "ended_at": None, "audit": [], "waiting_for": "run other"}
    return view(**(base | changes)).model_dump(mode="json")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.rehearse, "LOOKS", (0.01, 0.02))


def test_its_spec_can_be_had_for_another_way_of_starting_it(tmp_path: Path, nightshift: Command) -> None:
    done = nightshift("rehearse", "--spec", written(tmp_path, SPEC), "--show")
    assert done.returncode == 0
    assert RunSpec.model_validate_json(done.stdout) == rehearsal_of(RunSpec.model_validate(SPEC))


@contextlib.contextmanager
def asked(*bodies: Any) -> Iterator[Api]:
    with api(200, list(bodies)) as to:
        yield to


def test_while_the_pool_is_taken_it_waits_in_line_and_says_for_whom_and_where_it_stands_in_the_end(
    tmp_path: Path, nightshift: Command
) -> None:
    run_id = rehearsal_of(RunSpec.model_validate(SPEC)).run_id
    accepted = {"version": 1, "run_id": run_id, "state": "admitted", "created": True}
    with asked(answer(holder="other", waiting=2), accepted, *[waiting()] * 500) as to:
        done = nightshift("rehearse", "--spec", written(tmp_path, SPEC), "--timeout", "0.01", "--api", to.address)
    assert (done.returncode, done.stdout) == (75, "")
    for said in (
        "held by other, and 2 wait before it",
        "waits for run other",
        "phase: admission",
        f"cancel {run_id} --now",
    ):
        assert said in done.stderr
    assert done.stderr.count("waits for run other") == 2, "once while it waits, and once at the end"
    sent = json.loads(to.requests[1][3])["spec"]
    assert RunSpec.model_validate(sent).run_id == run_id and sent["rehearsal"] == {"of": "maze-demo", "number": 1}


@pytest.mark.parametrize(
    ("before", "arguments", "number"),
    [
        ({"state": "failed", "passed": False, "ended_at": "2026-11-30T03:00:00Z"}, [], 4),
        ({"state": "succeeded", "passed": True, "ended_at": "2026-11-30T03:00:00Z"}, ["--again"], 4),
        ({"state": "succeeded", "passed": True, "ended_at": "2026-11-30T03:00:00Z"}, [], None),
        ({"state": "running", "passed": False}, ["--again"], None),
    ],
    ids=["failed", "again", "passed", "under way"],
)
def test_what_has_passed_or_is_under_way_is_shown_and_another_is_asked_for_after_one_that_failed(
    tmp_path: Path, nightshift: Command, before: dict[str, Any], arguments: list[str], number: int | None
) -> None:
    known = {"run_id": "rehearsal-maze-demo-x", "number": 3} | before
    accepted = {"version": 1, "run_id": "x", "state": "admitted", "created": True}
    bodies = [answer(rehearsed=known), *([accepted] if number else []), *[waiting()] * 500]
    with asked(*bodies) as to:
        nightshift("rehearse", "--spec", written(tmp_path, SPEC), "--timeout", "0.002", *arguments, "--api", to.address)
    posts = [json.loads(body) for method, path, _, body in to.requests if (method, path) == ("POST", "/runs")]
    assert [one["spec"]["rehearsal"]["number"] for one in posts] == ([number] if number else [])


def test_a_spec_that_cannot_be_rehearsed_or_never_have_its_nodes_starts_nothing(
    tmp_path: Path, nightshift: Command
) -> None:
    again = rehearsal_of(RunSpec.model_validate(SPEC)).model_dump(mode="json")
    with asked() as to:
        done = nightshift("rehearse", "--spec", written(tmp_path, again), "--api", to.address)
    assert done.returncode == 65 and "it is a rehearsal already" in done.stderr and to.requests == []
    with asked(answer(capacity=["no such nodes"])) as to:
        done = nightshift("rehearse", "--spec", written(tmp_path, SPEC), "--api", to.address)
    assert done.returncode == 65 and "no such nodes" in done.stderr and len(to.requests) == 1


def test_an_api_that_has_bad_moments_is_asked_again_and_one_that_forbids_it_is_not(
    tmp_path: Path, nightshift: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.rehearse, "PATIENCE", 3)
    accepted = {"version": 1, "run_id": "x", "state": "admitted", "created": True}
    with asked(answer(), accepted) as to:  # and then nothing: every further request breaks off
        done = nightshift("rehearse", "--spec", written(tmp_path, SPEC), "--api", to.address)
    assert done.returncode == 69 and len(to.requests) == 2 + 3
    with api(403, "{}") as to:
        done = nightshift("rehearse", "--spec", written(tmp_path, SPEC), "--api", to.address)
    assert done.returncode == 77 and len(to.requests) == 1
