"""What leaves the SkyRL trainer: progress, checked saves, checked exports, evals. Knows the contract, not SkyRL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nightshift.contract import Control, EvalSet, EvalSummary, OutcomeCause, Phase
from training_job.checkpoints import problems_of_files
from training_job.errors import CheckpointUnusable, StorageUnreachable, classify
from training_job.evals import curve_of, publish_eval, published_summaries
from training_job.exports import adopt_export, publish_export
from training_job.guard import every_byte, repair
from training_job.job import Ended, Job
from training_job.progress import wants_stop
from training_job.records import drop_record, keep_record
from training_job.trainers.skyrl.datasets import source_of
from training_job.trainers.skyrl.evalrows import read_dump, summary_of


class Results:
    """One attempt's. ``resumed_step`` is where the guard says that it begins."""

    def __init__(
        self, job: Job, base: Path, resumed_step: int, problems: Callable[[Path], list[str]] = problems_of_files
    ) -> None:
        self._job, self._base, self._problems = job, base, problems
        self.resumed_step = resumed_step
        self.total_steps = job.spec.training.total_steps
        self.step = resumed_step
        before = published_summaries(job.store, job.spec.run_id) if job.attempt > 1 else []
        self._curve: list[EvalSummary] = [one for one in curve_of(before) if one.step <= resumed_step]

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

    def stepped(self, step: int, seconds: float, reward: float | None) -> None:
        self.step = step
        self._job.reporter.report(
            step=step,
            reward=reward,
            step_seconds=seconds,
            eta_seconds=seconds * (self.total_steps - step),
        )

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
        """Raises CheckpointUnusable where what was just written is not whole: it must not become the floor. What is whole
        is recorded as such, so that the next start need not read it again."""
        folder = self._job.paths.checkpoint(step)
        with self._job.watch.measure("checkpoint: look again"):
            problems = self._problems(folder)
        if problems:
            raise CheckpointUnusable(f"{folder} was just saved and is not whole: {'; '.join(problems[:5])}")
        with self._job.watch.measure("checkpoint: record"):
            keep_record(folder)
        self._job.reporter.report(saved_step=step)

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

    def has_eval(self, step: int) -> bool:
        return any(one.step == step for one in self._curve)

    def evaluated(self, step: int, which: EvalSet) -> EvalSummary:
        """Publish what SkyRL dumped for a step."""
        job, spec = self._job, self._job.spec
        path = job.paths.eval_dump(step) / f"{source_of(which)}.jsonl"
        rows, pass_at_1 = read_dump(path, spec.task.success.min_score)
        summary = summary_of(spec, job.attempt, step, which, rows, pass_at_1)
        publish_eval(job.uploader, summary, rows)
        job.record.evals.append(summary)
        job.say(
            f"eval/{which} at step {step}: {summary.solved}/{summary.of} solved ({100 * summary.low:.1f} to "
            f"{100 * summary.high:.1f}%), avg_score {summary.avg_score:.4f}, pass_at_1 {pass_at_1:.4f}"
        )
        if which is EvalSet.FIXED:
            self._curve = [*[one for one in self._curve if one.step != step], summary]
            job.reporter.report(success=summary.success)
        return summary

    def target_reached(self, step: int) -> Ended | None:
        """How the run ends early, where its target is held on enough evals in a row; never before the first step."""
        target = self._job.spec.target
        if target is None or not target.stop or step == 0:
            return None
        last = sorted(self._curve, key=lambda one: one.step)[-target.evals :]
        if len(last) < target.evals or last[-1].step != step or any(one.success < target.success for one in last):
            return None
        message = f"{target.success:.4g} was held on {target.evals} evals in a row, up to step {step}"
        return Ended(OutcomeCause.TARGET_REACHED, message)
