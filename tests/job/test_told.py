"""A whole run and everything that it tells, with a task that leaks whatever it can find: where secrets are not, what the
tracker has, how it ended early, what flipped, and which adapter was confirmed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest

from nightshift.contract import EvalRow, EvalSet, OutcomeCause, Phase, Progress, RunKeys, RunSpec
from nightshift.contract.evals import flips
from nightshift.contract.spec import Plateau
from tests.job.support import Finished, Runs, small_spec
from tests.job.test_secrets import KEY, TOKEN

RUN = "told"
KEYS = RunKeys(RUN)


@pytest.fixture(scope="module")
def told(runs: Runs, s3_url: str) -> Finished:
    """It ends at step 6: the evals at 2, 4 and 6 are no rise by half of all items. Then training has begun to do harm."""
    manager = boto3.client("secretsmanager", endpoint_url=s3_url, region_name="us-east-1")
    manager.create_secret(Name="told/hf", SecretString=TOKEN)
    manager.create_secret(Name="told/json", SecretString=json.dumps({"key": KEY}))
    raw = small_spec(RUN, total_steps=40, learning_rate=0.005).model_dump(mode="json")
    raw["task"] |= {"environment": "tests.job.leaky:LeakyEnv", "trace_renderer": "tests.job.leaky:render"}
    raw["secrets"] = {"HF_TOKEN": "told/hf", "MY_API_KEY": "told/json#key"}
    raw["tracking"] = {"tracker": "tensorboard"}
    raw["plateau"] = Plateau(evals=3, min_gain=0.5).model_dump()
    finished = runs.run(RunSpec.model_validate(raw))
    assert finished.code == 0, finished.output
    return finished


def test_a_run_that_stopped_getting_better_ends_with_its_own_proof(told: Finished) -> None:
    outcome = told.outcome
    assert (outcome.cause, outcome.step, outcome.saved_step) == (OutcomeCause.PLATEAU, 6, 6), told.output
    assert outcome.final_export.step == 6
    assert {(e.eval_set, e.step) for e in outcome.evals} >= {(EvalSet.FIXED, 6), (EvalSet.HOLDOUT, 6)}
    assert "on 3 evals in a row, up to step 6" in outcome.message


@pytest.mark.parametrize("value", [TOKEN, KEY], ids=["whole", "of a JSON secret"])
def test_a_secret_is_nowhere_but_in_the_drivers_own_environment(told: Finished, runs: Runs, value: str) -> None:
    assert "on stdout: [hidden] [hidden]" in told.output, "the driver has them, and what it prints has not"
    assert "on stderr: [hidden]" in told.output
    assert "could not be drawn: ValueError: in an exception: [hidden]" in told.output
    objects = {key: runs.get(key) or b"" for key in runs.keys(RUN)}
    files = {path: path.read_bytes() for path in runs.paths(RUN).root.rglob("*") if path.is_file()}
    logs = {path: path.read_bytes() for path in ray_logs(runs) if path.is_file()}
    assert objects and files and logs
    for place in (objects, files, logs):
        assert [where for where, content in place.items() if value.encode() in content] == []
    assert value not in told.output


def ray_logs(runs: Runs) -> list[Path]:
    """What Ray's own processes and its workers have written."""
    words = psutil.Process(runs.ray.pid).cmdline()
    folder = next(word.removeprefix("--temp-dir=") for word in words if word.startswith("--temp-dir="))
    return list(Path(folder).glob("session_latest/logs/*"))


def test_progress_tells_rates_and_the_time_to_the_end(told: Finished, runs: Runs) -> None:
    content = runs.get(KEYS.progress(1))
    assert content is not None
    progress = Progress.from_json(content)
    assert (progress.phase, progress.step, progress.attempt, progress.eta_seconds) == (Phase.DONE, 6, 1, 0.0)
    assert progress.rollouts_per_second is not None and progress.rollouts_per_second > 0
    assert progress.tokens_per_second is None, "the small trainer's policy chooses from a list of replies"


def test_each_eval_says_what_flipped_since_the_one_before(told: Finished, runs: Runs) -> None:
    fixed = [e for e in told.outcome.evals if e.eval_set is EvalSet.FIXED]
    rows = {e.step: rows_of(runs, e) for e in fixed}
    assert (fixed[0].previous_step, fixed[0].gained, fixed[0].lost) == (None, None, None)
    for before, after in pairwise(fixed):
        assert after.previous_step == before.step
        assert after.solved - before.solved == after.gained - after.lost
        lines = (runs.get(KEYS.eval_flips(1, after.step, EvalSet.FIXED)) or b"").splitlines()
        expected = flips(rows[before.step], rows[after.step])
        assert [json.loads(line) for line in lines] == [one.model_dump() for one in expected]


def rows_of(runs: Runs, summary: Any) -> list[EvalRow]:
    content = runs.get(KEYS.eval_rows(summary.attempt, summary.step, summary.eval_set))
    return [EvalRow.model_validate_json(line) for line in (content or b"").splitlines()]


def test_the_best_adapter_is_confirmed_on_the_hold_out_when_it_is_not_the_last(told: Finished) -> None:
    fixed = {e.step: e.solved for e in told.outcome.evals if e.eval_set is EvalSet.FIXED and e.step > 0}
    best = max(fixed, key=lambda step: (fixed[step], step))
    assert best != 6, f"the learning rate was chosen to make training worse: {fixed}"
    held = [e.step for e in told.outcome.evals if e.eval_set is EvalSet.HOLDOUT]
    assert held == [0, 6, best]


def test_the_tracker_has_every_step_once(told: Finished, runs: Runs) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(runs.paths(RUN).tracking / "tensorboard"))
    events.Reload()
    steps = {tag: [one.step for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert steps["reward/avg_raw_reward"] == steps["generate/rollouts_per_second"] == list(range(1, 7))
    assert steps["eval/fixed/success"] == [0, 2, 4, 6]
    fixed = [e for e in told.outcome.evals if e.eval_set is EvalSet.FIXED]
    assert [one.value for one in events.Scalars("eval/fixed/success")] == pytest.approx([e.success for e in fixed])
    assert len(steps["eval/holdout_of_best/success"]) == 1
