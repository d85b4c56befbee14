"""The local trainer: from the guard to the last export. Its steps are the same numbers, interrupted or not."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightshift.contract import Control, EvalSet, ExportRecord, OutcomeCause, Phase
from nightshift.contract.spec import batch_size_problems
from training_job.checkpoints import prune, steps_on_disk
from training_job.errors import BadConfiguration, CheckpointUnusable, EngineFailure
from training_job.exports import publish_export, write_export
from training_job.guard import repair
from training_job.job import Ended, Job
from training_job.metrics import RayMetrics
from training_job.pace import Pace
from training_job.parent import parent_adapter
from training_job.plug import Items, TaskPlan, open_items, plan_task, refuse_impossible_target
from training_job.policies import UnknownModel, adapter_arrays, closed_replies, read_config
from training_job.probe import hold_space
from training_job.progress import wants_stop
from training_job.rehearsal import end_as_rehearsed
from training_job.sources import model_of
from training_job.standing import Standing, adapter_folder
from training_job.trainers.local.ahead import Ahead
from training_job.trainers.local.batches import steps_per_epoch, train_episodes
from training_job.trainers.local.examiner import Examined, Examiner
from training_job.trainers.local.workers import Pool, WorkerPlan

if TYPE_CHECKING:
    from training_job.trainers.local.episodes import Played
    from training_job.trainers.local.learner import Learner
    from training_job.trainers.local.snapshots import Snapshot


@dataclass(frozen=True)
class Prepared:
    """What can be known before anything is started."""

    plan: TaskPlan
    base: Path
    replies: Sequence[str]
    train: Items
    sets: dict[EvalSet, Items]


def prepare(job: Job) -> Prepared:
    """Read and check everything that the spec names. Raises BadConfiguration by field; starts nothing."""
    spec = job.spec
    for field, problem in batch_size_problems(spec.training, spec.topology.gpus):
        raise BadConfiguration(field, problem)
    plan = plan_task(spec, job.paths, job.open_store)
    base = model_of(job)
    hold_space(job, base)
    try:
        replies = closed_replies(read_config(base))
    except UnknownModel as error:
        raise BadConfiguration("model.source", f"{spec.model.source}: {error}") from error
    train = open_items(spec.task.train, "task.train", job.paths, job.open_store)
    steps_per_epoch(train, spec.training)
    sets = {EvalSet.FIXED: open_items(spec.task.eval, "task.eval", job.paths, job.open_store)}
    if spec.task.holdout is not None:
        sets[EvalSet.HOLDOUT] = open_items(spec.task.holdout, "task.holdout", job.paths, job.open_store)
    refuse_impossible_target(spec, sets[EvalSet.FIXED])
    return Prepared(plan, base, replies, train, sets)


class LocalTrainer:
    """One attempt. ``run`` returns how it ended, or raises what ended it."""

    def __init__(self, job: Job, after_connect: Callable[[], object]) -> None:
        self.job = job
        self._after_connect = after_connect
        self.training = job.spec.training
        self.ahead = Ahead(job.watch, use_hub=job.spec.model.source.startswith("hf://"))
        self.step = 0
        self.last_examined: Sequence[Examined] = ()
        self._rollout: Callable[[], Played] | None = None

    def run(self) -> Ended:
        """Guard, resume or start, train to the end."""
        snapshot = self._set_up()
        parent = parent_adapter(self.job, self.prepared.base) if snapshot is None else None
        lora = snapshot.lora_arrays() if snapshot else adapter_arrays(parent) if parent else {}
        self._first_eval(lora)
        self._start_rollout(lora)
        with self.job.watch.measure("setup: wait for the policy"):
            self.learner: Learner = self._learner_later()
        if snapshot:
            self.learner.load_state(dict(snapshot.parts))
        elif parent:
            self.learner.load_adapter(parent)
        ended = self._end_early()
        self.pace.begin()
        while ended is None and self.step < self.training.total_steps:
            self._one_step()
            ended = self._after_step() if self.step < self.training.total_steps else None
        return ended or self._finish(OutcomeCause.FINISHED, f"all {self.training.total_steps} steps are done")

    # Before the first step

    def _set_up(self) -> Snapshot | None:
        job, watch = self.job, self.job.watch
        with watch.measure("setup: task and model"):
            self.prepared = prepared = prepare(job)
        self._connect_and_start_workers(prepared)
        lora = job.spec.model.lora
        self._learner_later: Callable[[], Learner] = self.ahead.learner(prepared.base, lora, self.training)
        self.pace = Pace(self.training, steps_per_epoch(prepared.train, self.training))
        with watch.measure("setup: guard"):
            snapshot = self._guard()
        with watch.measure("setup: evals before"):
            self.standing = Standing.of(job, self.step)
        self.examiner = Examiner(job, self.standing, prepared.sets, prepared.replies)
        with watch.measure("setup: wait for workers"):
            job.say(f"rollout workers on {', '.join(self.pool.wait())}")
        job.say(f"Total steps: {self.training.total_steps}")
        return snapshot

    def _connect_and_start_workers(self, prepared: Prepared) -> None:
        with self.job.watch.measure("setup: import ray"):
            import ray
        with self.job.watch.measure("setup: ray.init"):
            require_cluster(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", logging_level=logging.WARNING)
            self._after_connect()
            self.job.reporter.also(RayMetrics(self.job.spec.run_id, self.job.say).show)
        spec = self.job.spec
        scale = spec.model.lora.alpha / spec.model.lora.rank
        plan = WorkerPlan(prepared.plan, str(prepared.base), scale)
        with self.job.watch.measure("setup: create actors"):
            self.pool = Pool.start(plan, spec.topology.workers.count, spec.topology.workers.gpus)

    def _guard(self) -> Snapshot | None:
        job = self.job
        if steps_on_disk(job.paths.ckpts):
            self.ahead.torch()
        self.step = job.begin(repair(job.paths, job.floor, job.attempt, _problems), world_size=1)
        if not self.step:
            job.say("No checkpoint found, starting training from scratch")
            return None
        job.say(f"Resuming from global_step: {self.step}")
        from training_job.trainers.local.snapshots import load_snapshot

        snapshot = load_snapshot(job.paths.checkpoint(self.step))
        if snapshot.trainer.seed != self.training.seed:
            raise CheckpointUnusable(
                f"the checkpoint of step {self.step} was made with seed {snapshot.trainer.seed}, the spec says "
                f"{self.training.seed}: start a new run"
            )
        return snapshot

    def _first_eval(self, lora: Any) -> None:
        """The eval of the step that this attempt begins at, unless an earlier attempt has published it."""
        job = self.job
        if self.standing.eval_of(self.step) is not None:
            return
        if self.step % self.training.eval_interval == 0:
            job.enter(Phase.EVAL)
            which = self.examiner.sets if self.step == 0 else [EvalSet.FIXED]
            with job.watch.measure("setup: baseline"):
                self._take_in(self.examiner.start(self.pool.start_playing, lora, self.step, which)())

    # Steps

    def _start_rollout(self, lora: Any) -> None:
        """Hand the next step's episodes to the workers."""
        if self.step < self.training.total_steps:
            self.job.enter(Phase.GENERATE)
            episodes = train_episodes(self.step + 1, self.prepared.train, self.training)
            self._rollout = self.pool.start_playing(lora, episodes, self.training.temperature)

    def _one_step(self) -> None:
        """One batch of rollouts and the updates on it."""
        job, watch, began = self.job, self.job.watch, time.perf_counter()
        job.say("Started: 'generate'")
        with watch.measure("generate"):
            waited = time.perf_counter()
            if self._rollout is None:
                self._start_rollout(self.learner.lora_arrays())
            assert self._rollout is not None
            played, self._rollout = self._rollout(), None
            generated = time.perf_counter() - waited
        job.enter(Phase.TRAIN)
        with watch.measure("train"):
            metrics = self.learner.update(self.step + 1, played)
        self.step += 1
        seconds = time.perf_counter() - began
        job.say(f"Finished: 'step', time cost: {seconds:.2f}s")
        shown = {"trainer/global_step": self.step} | {name: round(value, 6) for name, value in metrics.items()}
        job.say(f"Step {self.step}: {shown}")
        self.pace.stepped()
        rate = len(played.turns) / generated if generated > 0 else None
        job.reporter.report(
            step=self.step,
            reward=metrics["reward/avg_raw_reward"],
            step_seconds=seconds,
            rollouts_per_second=rate,
            eta_seconds=self.pace.eta(self.step),
        )
        timings = {"timing/step": seconds, "timing/generate": generated, "generate/rollouts_per_second": rate}
        job.tracker.log({**metrics, **timings}, self.step)

    def _after_step(self) -> Ended | None:
        """What is due: eval, checkpoint, export, and what the controller asked for."""
        training, control = self.training, self.job.reporter.pending_control()
        finish_eval = self._start_eval([EvalSet.FIXED]) if self.step % training.eval_interval == 0 else None
        epoch_end = self.step % steps_per_epoch(self.prepared.train, training) == 0
        if control is not None or epoch_end or self.step % training.ckpt_interval == 0:
            self._checkpoint()
            self._export()
        elif self.step % training.hf_save_interval == 0:
            self._export()
        if finish_eval is not None:
            finish_eval()
        return self._end_early() or (self._acknowledge(control) if control is not None else None)

    def _acknowledge(self, control: Control) -> Ended | None:
        self.job.reporter.report(acknowledged=control.seq)
        self.job.say(f"control.json {control.seq}: {control.command} was carried out at step {self.step}")
        if not wants_stop(control):
            return None
        return Ended(OutcomeCause.STOPPED_ON_REQUEST, f"stopped at step {self.step} on request: {control.reason}")

    def _end_early(self) -> Ended | None:
        ended = self.standing.ends_early(self.step)
        return None if ended is None else self._finish(ended.cause, ended.message)

    # What a step may be followed by

    def _start_eval(self, which: Sequence[EvalSet]) -> Callable[[], None]:
        """Workers play the eval while this process saves; calling the result waits for it."""
        playing = self.examiner.start(self.pool.start_playing, self.learner.lora_arrays(), self.step, which)

        def finish() -> None:
            self.job.enter(Phase.EVAL)
            with self.job.watch.measure("eval"), self.pace.spending("eval"):
                self._take_in(playing())

        return finish

    def _take_in(self, examined: Sequence[Examined]) -> None:
        fresh = {one.summary.eval_set for one in examined}
        self.last_examined = [*examined, *(one for one in self.last_examined if one.summary.eval_set not in fresh)]

    def _checkpoint(self) -> None:
        from training_job.trainers.local.snapshots import TrainerState, save_snapshot

        job = self.job
        job.enter(Phase.CHECKPOINT)
        with job.watch.measure("checkpoint"), self.pace.spending("save"):
            state = TrainerState(self.step, self.training.seed)
            folder = save_snapshot(job.paths, self.learner, state, self.prepared.base)
            prune(job.paths, self.training.max_ckpts_to_keep)
        job.say(f"Successfully saved checkpoint for global_step_{self.step} to: {folder}")
        job.reporter.report(saved_step=self.step)
        end_as_rehearsed(job, self.step)

    def _export(self) -> None:
        job = self.job
        job.enter(Phase.EXPORT)
        with job.watch.measure("export"), self.pace.spending("save"):
            folder = write_export(job.paths, job.spec, self.step, self.prepared.base, self.learner.save_adapter)
            job.record.final_export = publish_export(job.uploader, job.spec, job.attempt, self.step, folder)
            self.standing.exported(job.record.final_export)

    def _finish(self, cause: OutcomeCause, message: str) -> Ended:
        """The last step's evals of both sets, checkpoint and export; all of them by this attempt."""
        done = {one.eval_set for one in self.job.record.evals if one.step == self.step}
        finish_eval = self._start_eval([one for one in self.examiner.sets if one not in done])
        if self.job.reporter.current.saved_step != self.step:
            self._checkpoint()
        self._export()
        finish_eval()
        best = self.standing.to_confirm(self.step)
        if best is not None and EvalSet.HOLDOUT in self.examiner.sets:
            self._confirm(best)
        self.job.say("Training done!")
        return Ended(cause, message)

    def _confirm(self, best: ExportRecord) -> None:
        """The best adapter on the hold-out, once. Where that fails the run is no worse: everything else is proven."""
        job = self.job
        job.enter(Phase.EVAL)
        try:
            with job.watch.measure("eval of the best adapter"):
                lora = adapter_arrays(adapter_folder(job, best))
                self.examiner.start(self.pool.start_playing, lora, best.step, [EvalSet.HOLDOUT])()
        except Exception as error:  # noqa: BLE001 - see above
            job.say(
                f"the best adapter, step {best.step}, was not confirmed: {type(error).__name__}: {str(error)[:500]}"
            )


def require_cluster(address: str) -> None:
    """Raises EngineFailure where nothing listens at ``host:port``: ray.init would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise EngineFailure(f"no Ray cluster answers at {address}: {error}") from error


def _problems(folder: Path, step: int) -> list[str]:
    """Imported late: it needs torch, and the guard only comes here where there is something to check."""
    from training_job.trainers.local.snapshots import problems_of_snapshot

    return problems_of_snapshot(folder, step)
