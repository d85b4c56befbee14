"""What SkyRL's own loop tells through our hooks: rates, early ends, the best adapter's confirmation, and the tracker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import EvalSet, OutcomeCause, RunSpec
from nightshift.contract.spec import Plateau
from tests.skyrl.rig import Engine, MemoryStore, Rig, tiny
from training_job.secrets import Secrets
from training_job.trackers import Tracked
from training_job.trainers.skyrl.hooks import EndTraining
from training_job.trainers.skyrl.tracking import JobTracker


@pytest.fixture(autouse=True)
def on_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL prunes old checkpoints by a Ray task on every node; here there is one, and no Ray."""
    monkeypatch.setattr("skyrl.train.trainer.run_on_each_node", lambda nodes, call, *given: call(*given))


class Engines(Engine):
    """Remembers which adapters were loaded over the policy's."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str]] = []
        self.versions = self.resets = 0
        self.fails = False

    async def load_lora_adapter(self, name: str, path: str) -> None:
        if self.fails:
            raise RuntimeError("the engine refuses")
        self.loaded.append((name, path))

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        self.resets += 1

    def increment_weight_version(self) -> None:
        self.versions += 1


def rig_with(spec: RunSpec, folder: Path, store: MemoryStore | None = None, **more: Any) -> tuple[Rig, Engines]:
    rig = Rig(spec, folder, store or MemoryStore(), **more)
    engines = Engines()
    make = rig.trainer

    def trainer(resumed: int) -> Any:
        made = make(resumed)
        made.inference_engine_client = engines
        made.generator.policy_model_name = "skyrl-lora"
        return made

    rig.trainer = trainer  # type: ignore[method-assign]
    return rig, engines


def holdout(rig: Rig) -> list[int]:
    return [e.step for e in rig.job.record.evals if e.eval_set is EvalSet.HOLDOUT]


def good_only_at(*steps: int) -> Any:
    return lambda step, phase: 0.0 if step in steps else 1.0


def test_the_best_adapter_is_loaded_into_the_engines_and_evaluated_once_on_the_hold_out(tmp_path: Path) -> None:
    rig, engines = rig_with(tiny(), tmp_path)
    rig.player.errs = good_only_at(2)
    assert rig.train() is None
    assert holdout(rig) == [0, 6, 2]
    assert engines.loaded == [("skyrl-lora", str(rig.job.paths.export(2)))]
    assert (engines.resets, engines.versions) == (1, 1)
    confirmed = rig.job.record.evals[-1]
    assert (confirmed.step, confirmed.solved) == (2, confirmed.of)
    assert rig.job.record.final_export is not None and rig.job.record.final_export.step == 6
    assert rig.job.reporter.current.step == 6


def test_nothing_is_confirmed_where_the_last_adapter_is_the_best(tmp_path: Path) -> None:
    rig, engines = rig_with(tiny(), tmp_path)
    rig.player.errs = good_only_at(2, 6)
    assert rig.train() is None
    assert (holdout(rig), engines.loaded) == ([0, 6], [])


def test_a_confirmation_that_fails_leaves_a_finished_run(tmp_path: Path) -> None:
    rig, engines = rig_with(tiny(), tmp_path)
    rig.player.errs = good_only_at(2)
    engines.fails = True
    assert rig.train() is None
    assert holdout(rig) == [0, 6]
    assert any("was not confirmed: RuntimeError: the engine refuses" in line for line in rig.lines)
    assert rig.job.record.final_export is not None and rig.job.record.final_export.step == 6


def test_a_run_that_stopped_getting_better_ends_there_and_confirms_its_best(tmp_path: Path) -> None:
    spec = tiny(total_steps=20).model_copy(update={"plateau": Plateau(evals=2, min_gain=0.5)})
    rig, _ = rig_with(spec, tmp_path)
    rig.player.errs = good_only_at(2)
    ended = rig.train()
    assert ended is not None
    assert (ended.cause, rig.job.reporter.current.step) == (OutcomeCause.PLATEAU, 6)
    assert holdout(rig) == [0, 6, 2]
    assert rig.job.record.final_export is not None
    assert rig.job.record.final_export.step == rig.job.reporter.current.saved_step == 6


def test_progress_has_rates_of_the_generation_and_a_time_to_the_end(tmp_path: Path) -> None:
    rig = Rig(tiny(total_steps=2), tmp_path, MemoryStore())
    seen: list[Any] = []
    rig.job.reporter.also(seen.append)
    rig.train()
    told = rig.job.reporter.current
    assert told.rollouts_per_second is not None and told.rollouts_per_second > 0
    assert told.eta_seconds == 0.0, "after the last step"


class Awake(Engine):
    """Engines that hold their GPU until they are put to sleep."""

    def __init__(self) -> None:
        self.asleep = False

    async def sleep(self, *_: Any, **__: Any) -> None:
        self.asleep = True

    async def wake_up(self, *_: Any, **__: Any) -> None:
        self.asleep = False


def test_where_only_the_proof_was_missing_the_engines_sleep_before_the_policy_is_exported(tmp_path: Path) -> None:
    store = MemoryStore()
    Rig(tiny(total_steps=2), tmp_path, store).train()
    again = Rig(tiny(total_steps=2), tmp_path, store, attempt=2, floor=2)
    export, asleep = again.actors.save_hf_model, list[bool]()
    trainer = again.trainer(resumed=2)
    trainer.inference_engine_client = engines = Awake()

    def exported(model: str, folder: str, tokenizer: Any) -> None:
        asleep.append(engines.asleep)
        export(model, folder, tokenizer)

    again.actors.save_hf_model = exported  # type: ignore[method-assign]
    with pytest.raises(EndTraining, match="were done before"):
        asyncio.run(trainer.train())
    assert asleep == [True]


class Kept:
    def __init__(self) -> None:
        self.points: list[tuple[int, set[str]]] = []

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.points.append((step, set(metrics)))

    def close(self) -> None: ...


def tracked_run(rig: Rig, kept: Kept, resumed: int = 0) -> None:
    """The run with our tracker in the place of SkyRL's, as the experiment puts it there."""
    tracked = Tracked(lambda: kept, rig.job.paths.tracking / "logged.json")
    trainer = rig.trainer(resumed)
    trainer.tracker = JobTracker(tracked, rig.cfg)
    try:
        asyncio.run(trainer.train())
    except (EndTraining, RuntimeError):
        pass
    finally:
        tracked.close(10)
        rig.job.uploader.flush(30)
        rig.job.reporter.flush(10)


def test_skyrls_metrics_reach_one_tracker_over_attempts_and_no_step_twice(tmp_path: Path) -> None:
    store, kept = MemoryStore(), Kept()
    first = Rig(tiny(), tmp_path, store)
    first.player.fails_at = 4
    tracked_run(first, kept)
    tracked_run(Rig(tiny(), tmp_path, store, attempt=2, floor=2), kept, resumed=2)
    assert [step for step, names in kept.points if "reward/avg_raw_reward" in names] == [1, 2, 3, 4, 5, 6]
    assert [step for step, names in kept.points if "eval/all/avg_score" in names] == [0, 2, 4, 6]


def test_the_environment_that_skyrl_gives_to_ray_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skyrl.train.utils import utils

    monkeypatch.setattr(utils, "peer_access_supported", lambda **_: True)
    secrets = Secrets({"WANDB_API_KEY": "k" * 40, "MLFLOW_TRACKING_TOKEN": "t" * 40})
    cfg = Rig(tiny(), tmp_path, MemoryStore()).cfg
    with monkeypatch.context() as inside:
        for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN"):
            inside.setenv(name, "replaced")
        secrets.put_into(os.environ)
        assert utils.prepare_runtime_environment(cfg)["WANDB_API_KEY"] == "k" * 40, "that is why they are taken out"
        with secrets.taken_out_of(os.environ):
            given = utils.prepare_runtime_environment(cfg)
        assert os.environ["WANDB_API_KEY"] == "k" * 40
    assert not any("k" * 40 in value or "t" * 40 in value for value in given.values())
