"""The SkyRL trainer: guard, files, configuration, SkyRL itself, and how it ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightshift.contract import EvalSet, RunKeys
from training_job.adapters import hold_adapter
from training_job.checkpoints import adapter_of
from training_job.errors import BadConfiguration
from training_job.guard import check_for, repair
from training_job.job import Ended, Job
from training_job.metrics import RayMetrics
from training_job.parent import parent_adapter
from training_job.plug import Items, TaskPlan, hold_environment, open_items, plan_task, refuse_impossible_target
from training_job.probe import hold_space
from training_job.sources import model_of
from training_job.trainers.skyrl.config import Derived, Inputs, command_line, derive, require_valid, settings
from training_job.trainers.skyrl.datasets import source_of, write_rows


@dataclass(frozen=True)
class Prepared:
    """What can be known before SkyRL is imported."""

    plan: TaskPlan
    inputs: Inputs
    derived: Derived
    holdout: Path | None


def prepare(job: Job) -> Prepared:
    """Read, check and stage everything that the spec names. Raises BadConfiguration by field."""
    spec, paths = job.spec, job.paths
    require_valid(spec)
    plan = plan_task(spec, paths, job.open_store)
    model = model_of(job)
    train = open_items(spec.task.train, "task.train", paths, job.open_store)
    fixed = open_items(spec.task.eval, "task.eval", paths, job.open_store)
    refuse_impossible_target(spec, fixed)
    hold_environment(plan, train)
    derived = derive(spec, len(train))
    holdout: Items | None = None
    if spec.task.holdout is not None:
        holdout = open_items(spec.task.holdout, "task.holdout", paths, job.open_store)
    files = {
        which: write_rows(paths, items, source_of(which)) for which, items in ((None, train), (EvalSet.FIXED, fixed))
    }
    hold_space(job, model)
    return Prepared(
        plan=plan,
        inputs=Inputs(model, files[None], [files[EvalSet.FIXED]]),
        derived=derived,
        holdout=None if holdout is None else write_rows(paths, holdout, source_of(EvalSet.HOLDOUT)),
    )


class SkyRLTrainer:
    """One attempt. ``run`` returns how it ended, or raises what ended it."""

    def __init__(self, job: Job, after_connect: Callable[[], object]) -> None:
        self.job = job
        self._after_connect = after_connect
        self._results: Any = None
        self.last_examined: Sequence[Any] = ()

    @property
    def step(self) -> int:
        return self._results.step if self._results is not None else 0

    def run(self) -> Ended:
        job, watch = self.job, self.job.watch
        with watch.measure("setup: task, model and files"):
            prepared = prepare(job)
        with watch.measure("setup: guard"):
            resumed = self._guard()
        if resumed:
            with watch.measure("setup: adapter of the checkpoint"):  # imports torch and peft, which SkyRL needs anyway
                hold_adapter(adapter_of(job.paths, resumed), job.spec.model, prepared.inputs.model)
            begin = None if resumed else parent_adapter(job, prepared.inputs.model)
        with watch.measure("setup: import SkyRL"):
            cfg = configuration(job, prepared)
        from training_job.trainers.skyrl.environment import register_environment
        from training_job.trainers.skyrl.experiment import Experiment
        from training_job.trainers.skyrl.hooks import EndTraining
        from training_job.trainers.skyrl.results import Results

        register_environment(prepared.plan)
        self._connect(cfg)
        job.reporter.also(RayMetrics(job.spec.run_id, job.say).show)
        epoch = prepared.derived.steps_per_epoch
        self._results = results = Results(job, prepared.inputs.model, resumed, steps_per_epoch=epoch)
        with watch.measure("setup: engines and models"):
            experiment = Experiment(cfg, results, prepared.holdout, job.tracker, begin)
            trainer = experiment.set_up()
        try:
            asyncio.run(trainer.train())
        except EndTraining as end:
            trainer.flush_pending_metrics()
            return end.ended
        ended: Ended = results.finished()
        job.say("Training done!")
        return ended

    def _guard(self) -> int:
        job = self.job
        check = check_for(job.store, RunKeys(job.spec.run_id), job.attempt)
        return job.begin(repair(job.paths, job.floor, job.attempt, check), world_size=job.spec.topology.gpus)

    def _connect(self, cfg: Any) -> None:
        from skyrl.train.utils.utils import initialize_ray

        with self.job.watch.measure("setup: ray.init"), self.job.secrets.taken_out_of(os.environ):
            initialize_ray(cfg)
        self._after_connect()


def configuration(job: Job, prepared: Prepared) -> Any:
    """SkyRL's configuration, accepted by its own parser and its own checks. Raises BadConfiguration where either
    refuses what ours let through."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    values = settings(job.spec, job.paths, prepared.inputs, prepared.derived)
    for line in command_line(values):
        job.say(f"skyrl: {line}")
    try:
        cfg = SkyRLTrainConfig.from_cli_overrides(command_line(values))
        validate_cfg(cfg)
    except (ValueError, AssertionError, NotImplementedError, TypeError) as error:
        raise BadConfiguration("training", f"SkyRL refuses the configuration: {error}") from error
    return cfg
