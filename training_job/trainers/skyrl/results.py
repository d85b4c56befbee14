"""What leaves the SkyRL trainer: progress, checked saves, checked exports, evals. Knows the contract, not SkyRL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightshift.contract import Control, EvalSet, EvalSummary, OutcomeCause, Phase
from training_job.checkpoints import problems_of_files
from training_job.errors import CheckpointUnusable, CodeError, StorageUnreachable, classify
from training_job.exports import adopt_export, publish_export
from training_job.guard import every_byte, repair
from training_job.job import Ended, Job
from training_job.pace import Kind, Pace
from training_job.progress import wants_stop
from training_job.records import drop_record, keep_record
from training_job.rehearsal import end_as_rehearsed
from training_job.standing import Standing, adapter_folder, take_in
from training_job.trainers.skyrl.datasets import source_of
from training_job.trainers.skyrl.evalrows import read_dump, summary_of


@dataclass(frozen=True)
class Measured:
    """What SkyRL's metrics tell about a step; None where they do not. Rates are of the generation alone, evals left out."""

    reward: float | None = None
    rollouts_per_second: float | None = None
    tokens_per_second: float | None = None


def measured_in(metrics: Mapping[str, Any], timings: Mapping[str, float], rollouts: int) -> Measured:
    """From SkyRL's ``all_metrics`` and ``all_timings`` at the end of a step's updates. ``generate/avg_num_tokens`` counts what
    the environment said between the turns, too: it is only taken where SkyRL does not tell the policy's own tokens."""
    seconds, reward = timings.get("generate"), metrics.get("reward/avg_raw_reward")
    tokens = metrics.get("generate/avg_assistant_tokens", metrics.get("generate/avg_num_tokens"))
    rate = rollouts / seconds if seconds else None
    return Measured(
        reward=None if reward is None else float(reward),
        rollouts_per_second=rate,
        tokens_per_second=None if rate is None or tokens is None else rate * float(tokens),
    )


class Results:
    """One attempt's. ``resumed_step`` is where the guard says that it begins."""

    def __init__(
        self,
        job: Job,
        base: Path,
        resumed_step: int,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._job, self._base = job, base
        self.resumed_step = resumed_step
        self.total_steps = job.spec.training.total_steps
        self.step = resumed_step
        self.standing = Standing.of(job, resumed_step)
        self._pace = Pace(job.spec.training, steps_per_epoch or self.total_steps)

    def enter(self, phase: Phase) -> None:
        self._job.enter(phase)

    def started(self, step: int, total: int) -> None:
        """Raises CheckpointUnusable where SkyRL begins elsewhere than the guard said: never silently at another step."""
        if step != self.resumed_step:
            raise CheckpointUnusable(
                f"SkyRL begins at step {step}, the guard had prepared step {self.resumed_step}: nothing was trained"
            )
        if total != self.total_steps:
            raise CheckpointUnusable(f"SkyRL plans {total} steps, the spec says {self.total_steps}")
        self._job.say(f"Total steps: {total}")

    def first_step_begins(self) -> None:
        """From here on the time to the end is reckoned."""
        self._pace.begin()

    def stepped(self, step: int, seconds: float, measured: Measured) -> None:
        self.step = step
        self._pace.stepped()
        self._job.reporter.report(
            step=step,
            reward=measured.reward,
            step_seconds=seconds,
            rollouts_per_second=measured.rollouts_per_second,
            tokens_per_second=measured.tokens_per_second,
            eta_seconds=self._pace.eta(step),
        )

    def finished(self) -> Ended:
        """The end after SkyRL's loop. Raises CodeError where it came to its own end before the last step: a recovery goes on
        from what it saved, and gives up only where that does not get further either."""
        if self.step < self.total_steps:
            raise CodeError(
                f"SkyRL's loop ended by itself after step {self.step} of {self.total_steps}: its data ran out before "
                "training.total_steps; look at the driver log for what became of task.train's rows"
            )
        return Ended(OutcomeCause.FINISHED, f"all {self.total_steps} steps are done")

    def pending(self) -> Control | None:
        """A request of the controller that was not carried out yet."""
        return self._job.reporter.pending_control()

    def carried_out(self, control: Control, step: int) -> Ended | None:
        """Acknowledge a request; how the job ends, where it asked for that."""
        self._job.reporter.report(acknowledged=control.seq)
        self._job.say(f"control.json {control.seq}: {control.command} was carried out at step {step}")
        if not wants_stop(control):
            return None
        return Ended(OutcomeCause.STOPPED_ON_REQUEST, f"stopped at step {step} on request: {control.reason}")

    def saving(self, step: int) -> None:
        """Before SkyRL writes: whatever lies there of an earlier save of the step is no whole checkpoint from now on."""
        drop_record(self._job.paths.checkpoint(step))

    def saved(self, step: int) -> None:
        """Raises StorageUnreachable where what was just written is not whole: it must not become the floor, and the next
        attempt moves it aside and goes on from the one before. What is whole is recorded as such, so that the next start
        need not read it again."""
        folder, alive = self._job.paths.checkpoint(step), self._job.reporter.alive
        alive()  # SkyRL has written in silence, and what is read back may take as long: neither is a hang
        with self._job.watch.measure("checkpoint: look again"):
            problems = problems_of_files(folder, alive)
        if problems:
            raise StorageUnreachable(
                f"{folder} was just saved and is not whole: {'; '.join(problems[:5])}; the next attempt moves it aside and goes "
                "on from the checkpoint before. If this repeats, look at the shared filesystem"
            )
        with self._job.watch.measure("checkpoint: record"):
            keep_record(folder)
        self._job.reporter.report(saved_step=step)
        end_as_rehearsed(self._job, step)

    def not_loaded(self, error: Exception) -> Exception:
        """What ends the attempt after SkyRL could not load its checkpoint: ``error``, unless every byte says that the
        checkpoint is broken after all. Then it is moved aside, and the next attempt begins at the one before."""
        job, step = self._job, self.resumed_step
        if not step or classify(error).outcome is not OutcomeCause.CODE_ERROR:
            return error
        job.say(f"SkyRL cannot load step {step} ({type(error).__name__}): every byte of it is read now")
        report = repair(job.paths, job.floor, job.attempt, every_byte)
        if not report.quarantined:
            return error
        return StorageUnreachable(
            f"step {step} was whole after its save and is not any more: {'; '.join(report.notes[:3])}; it was moved aside, "
            f"and the newest whole checkpoint is {report.resumed_step}"
        )

    def exported(self, step: int) -> None:
        job = self._job
        with job.watch.measure("export: check and queue"):
            folder = adopt_export(job.paths, job.spec, step, self._base)
            job.record.final_export = publish_export(job.uploader, job.spec, job.attempt, step, folder)
            self.standing.exported(job.record.final_export)

    def has_eval(self, step: int) -> bool:
        return self.standing.eval_of(step) is not None

    def evaluated(self, step: int, which: EvalSet) -> EvalSummary:
        """Publish what SkyRL dumped for a step."""
        job, spec = self._job, self._job.spec
        path = job.paths.eval_dump(step) / f"{source_of(which)}.jsonl"
        rows, pass_at_1 = read_dump(path, spec.task.success.min_score)
        return take_in(job, self.standing, summary_of(spec, job.attempt, step, which, rows, pass_at_1), rows)

    def ends_early(self, step: int) -> Ended | None:
        """How the run ends at this step, where its target is held or it stopped getting better; never before the first."""
        return self.standing.ends_early(step)

    def to_confirm(self, last: int) -> tuple[int, Path] | None:
        """(step, folder of its adapter) where the best adapter so far is not the last step's and was not evaluated on the
        hold-out. Raises CheckpointUnusable where the adapter is nowhere to be found."""
        record = self.standing.to_confirm(last)
        return None if record is None else (record.step, adapter_folder(self._job, record))

    def say(self, line: str) -> None:
        self._job.say(line)

    def spending(self, kind: Kind) -> AbstractContextManager[None]:
        """An eval or a part of a save, which the time to the end reckons with."""
        return self._pace.spending(kind)
