"""A rehearsal of the story's own spec, asked for by the command, through the death of its driver: once, on the real stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.config import REPOSITORY
from local.stack import Stack
from local.story.request import demo_request
from nightshift.contract import EvalSummary, Manifest, Phase, Progress, RunKeys, RunSpec, SharedPaths
from nightshift.contract.rehearsal import EVAL_ITEMS, PREFIX, rehearsal_of
from tests.story.support import eventually, executions, items


@dataclass(frozen=True)
class Rehearsed:
    file: Path
    spec: RunSpec
    before: str
    done: subprocess.CompletedProcess[str]
    report: dict[str, Any]

    @property
    def run_id(self) -> str:
        return self.spec.run_id


def nightshift(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a person runs it who knows the API's address and no more."""
    environment = {
        **stack.config.aws_env,
        "NIGHTSHIFT_API": stack.account.api_url,
        "PATH": os.environ["PATH"],
    }
    environment["PYTHONPATH"] = f"{REPOSITORY / 'functions'}:{REPOSITORY}"
    command = [sys.executable, "-m", "cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def rehearsed(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    file = tmp_path_factory.mktemp("rehearsal") / "spec.yaml"
    file.write_text(yaml.safe_dump(demo_request().spec))
    before = nightshift(stack, "plan", str(file)).stdout
    done = nightshift(stack, "rehearse", "--spec", str(file), "--timeout", "6", "--json")
    spec = rehearsal_of(RunSpec.model_validate(demo_request().spec))
    return Rehearsed(file, spec, before, done, json.loads(done.stdout or "{}"))


def test_it_passes_with_everything_seen_that_was_expected(rehearsed: Rehearsed) -> None:
    assert rehearsed.done.returncode == 0, rehearsed.done.stderr[-3_000:] + rehearsed.done.stdout
    assert (rehearsed.report["run_id"], rehearsed.report["passed"]) == (rehearsed.run_id, True)
    assert {one["name"]: one["ok"] for one in rehearsed.report["checks"]} == dict.fromkeys(
        ["saved", "killed", "guard", "resumed", "evals", "adapter", "published", "over"], True
    )


def test_its_driver_was_killed_once_and_the_next_attempt_went_on_at_exactly_that_step(
    stack: Stack, rehearsed: Rehearsed
) -> None:
    keys, account = RunKeys(rehearsed.run_id), stack.account
    first, second = items(stack, rehearsed.run_id, "ATTEMPT#")
    assert (int(first["last_saved_step"]), first["end_cause"]) == (1, "worker_failed"), first["message"]
    assert account.read(keys.outcome(1)) is None, "a driver that is killed says nothing"
    assert b"this driver is killed now" in (account.read(f"{keys.diagnostics(1)}driver.log") or b"")
    assert (int(second["resumed_step"]), int(second["last_saved_step"]), second["end_cause"]) == (1, 2, "finished")


def test_its_evals_had_few_items_and_its_seconds_are_those_of_its_records(stack: Stack, rehearsed: Rehearsed) -> None:
    manifest = Manifest.from_json(stack.account.read(RunKeys(rehearsed.run_id).manifest) or b"")
    evals: list[EvalSummary | None] = [*manifest.curve, manifest.holdout_baseline, manifest.holdout_final]
    assert [(one.step, one.of) for one in evals if one is not None] == [(s, EVAL_ITEMS) for s in (0, 2, 0, 2)]
    *parts, total = rehearsed.report["seconds"]
    run = next(one for one in items(stack, rehearsed.run_id, "RUN") if one["sk"] == "RUN")
    assert total["part"] == "in all" and run["state"] == "succeeded"
    assert sum(one["seconds"] for one in parts) == pytest.approx(total["seconds"], rel=0.1, abs=4)
    assert {"attempt 1: checkpoint", "attempt 2: setup", "attempt 2: eval", "publish and read back"} <= {
        one["part"] for one in parts
    }


def test_its_forecast_is_reckoned_from_what_its_own_job_measured(stack: Stack, rehearsed: Rehearsed) -> None:
    keys, account = RunKeys(rehearsed.run_id), stack.account
    told = [Progress.from_json(account.read(keys.progress(n)) or b"") for n in (1, 2)]
    steps = [one.step_seconds for one in told if one.step_seconds is not None]
    found = rehearsed.report["forecast"]
    parts = {one["name"]: one for one in found["parts"]}
    assert parts["steps"]["count"] == 36
    assert parts["steps"]["each"] == pytest.approx(sum(steps) / 2, abs=0.01) and len(steps) == 2
    saves = sum(one.phase_seconds[Phase.CHECKPOINT] for one in told) / 2
    assert (parts["checkpoints"]["count"], parts["checkpoints"]["each"]) == (9, pytest.approx(saves, abs=0.01))
    assert found["seconds"] == pytest.approx(sum(one["count"] * one["each"] for one in parts.values()), rel=0.01)
    _, view = account.api("GET", f"/runs/{rehearsed.run_id}")
    assert found["dollars"] == pytest.approx(found["seconds"] / 3_600 * view["spend"]["dollars_per_hour"], abs=0.02)


def test_the_plan_knows_it_and_the_same_again_only_shows_it(stack: Stack, rehearsed: Rehearsed) -> None:
    assert "rehearsal: none of it as it is now" in rehearsed.before
    assert f"rehearsal: {rehearsed.run_id} passed" in nightshift(stack, "plan", str(rehearsed.file)).stdout
    before = executions(stack)
    again = nightshift(stack, "rehearse", "--spec", str(rehearsed.file))
    assert again.returncode == 0 and f"{rehearsed.run_id}: PASSED" in again.stdout
    assert "it passed before" in again.stderr and executions(stack) == before
    print(again.stdout)


def test_nothing_of_it_stays_where_runs_are_counted_or_room_is_scarce(stack: Stack, rehearsed: Rehearsed) -> None:
    assert not SharedPaths(rehearsed.run_id, stack.config.shared_dir).root.exists(), "checkpoints and all are removed"
    assert all(key.startswith(f"runs/{PREFIX}") for key in stack.account.list_keys(f"runs/{rehearsed.run_id[:12]}"))
    about = [one for one in stack.slack if one.headline.startswith(f"{rehearsed.run_id} ")]
    assert [one.headline.partition(":")[0] for one in about] == [f"{rehearsed.run_id} finished"]
    assert "a rehearsal: its results say nothing" in about[0].text
    assert eventually(lambda: stack.hyperpod.pods() == [])
