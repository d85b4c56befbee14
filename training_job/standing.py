"""Where a run stands: the evals and exports that count, of this attempt and of those before it, and what follows from them.

The controller draws the same from the same objects by the same rules (``nightshift.contract.evals``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeVar

from nightshift.contract import EvalRow, EvalSet, EvalSummary, ExportRecord, OutcomeCause, Progress, RunKeys, RunSpec
from nightshift.contract.base import Model
from nightshift.contract.evals import Flip, best_of, evals_without_rise, flips, is_superseded
from nightshift.contract.reading import Unreadable
from training_job.errors import CheckpointUnusable
from training_job.evals import publish_eval, published_summaries
from training_job.files import write_atomically
from training_job.job import Ended, Job
from training_job.store import ObjectStore, digest_of, read

REMEMBERED_ATTEMPTS: Final = 50
"""Attempts before this one whose beginning is looked up; older ones are beyond every budget."""

ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
"""What loading an exported adapter needs."""

Made = TypeVar("Made", EvalSummary, ExportRecord)
M = TypeVar("M", bound=Model)


class Standing:
    """``summaries`` and ``exports`` are all that there are; what a later attempt trained again is left out here."""

    def __init__(
        self,
        spec: RunSpec,
        store: ObjectStore,
        summaries: Iterable[EvalSummary] = (),
        exports: Iterable[ExportRecord] = (),
        resumed: Mapping[int, int | None] | None = None,
    ) -> None:
        self._spec, self._store = spec, store
        self._summaries = {(s.eval_set, s.step): s for s in _live(summaries, resumed or {})}
        self._exports = {e.step: e for e in _live(exports, resumed or {})}
        self._rows: dict[tuple[EvalSet, int], Sequence[EvalRow]] = {}

    @classmethod
    def of(cls, job: Job, resumed_step: int) -> Standing:
        """What the attempts before have published, for an attempt that begins at ``resumed_step``."""
        if job.attempt == 1:
            return cls(job.spec, job.store)
        resumed = {**resumed_steps(job), job.attempt: resumed_step}
        run_id = job.spec.run_id
        return cls(job.spec, job.store, published_summaries(job.store, run_id), _exports(job.store, run_id), resumed)

    @property
    def curve(self) -> list[EvalSummary]:
        """The fixed set's evals, one a step; rising steps."""
        return sorted((s for (which, _), s in self._summaries.items() if which is EvalSet.FIXED), key=lambda s: s.step)

    def eval_of(self, step: int, which: EvalSet = EvalSet.FIXED) -> EvalSummary | None:
        return self._summaries.get((which, step))

    def saw(self, summary: EvalSummary, rows: Sequence[EvalRow]) -> None:
        """This attempt has published an eval."""
        self._summaries[summary.eval_set, summary.step] = summary
        self._rows[summary.eval_set, summary.step] = rows

    def exported(self, record: ExportRecord) -> None:
        """This attempt has published an export."""
        self._exports[record.step] = record

    def to_confirm(self, last: int) -> ExportRecord | None:
        """The adapter that the controller will choose as the best one, where it is not that of the last step and was not yet
        evaluated on the hold-out. The last step counts as exported: it will be."""
        saved = {step: record for step, record in self._exports.items() if record.lora_b_nonzero > 0}
        best = best_of(self.curve, saved.keys() | {last})
        if best is None or best.step == last or self.eval_of(best.step, EvalSet.HOLDOUT) is not None:
            return None
        return saved[best.step]

    def compared(self, which: EvalSet, step: int, rows: Sequence[EvalRow]) -> tuple[int, list[Flip]] | None:
        """The step of the set's eval before, and what flipped since then; None where there is no such eval, or its rows
        cannot be read."""
        earlier = [s for (kind, at), s in self._summaries.items() if kind is which and at < step]
        if not earlier:
            return None
        before = max(earlier, key=lambda s: s.step)
        then = self._rows.get((which, before.step)) or self._read_rows(before)
        return None if then is None else (before.step, flips(then, rows))

    def _read_rows(self, summary: EvalSummary) -> Sequence[EvalRow] | None:
        key = RunKeys(summary.run_id).eval_rows(summary.attempt, summary.step, summary.eval_set)
        try:
            content = self._store.get_small(key, 10_000_000)
            rows = [EvalRow.model_validate_json(line) for line in (content or b"").splitlines()]
        except ValueError:  # of pydantic, and Unreadable: an older attempt's object that is no good
            return None
        self._rows[summary.eval_set, summary.step] = rows
        return rows or None

    def ends_early(self, step: int) -> Ended | None:
        """How the run ends at this step, just evaluated: its target is held, or it has stopped getting better. Never before
        the first step."""
        curve = self.curve
        if step == 0 or not curve or curve[-1].step != step:
            return None
        target, plateau = self._spec.target, self._spec.plateau
        held = held_at_the_end(curve, target.success) if target is not None else 0
        if target is not None and target.stop and held >= target.evals:
            message = f"{target.success:.4g} was held on {held} evals in a row, up to step {step}"
            return Ended(OutcomeCause.TARGET_REACHED, message)
        quiet = evals_without_rise([one.success for one in curve], plateau.min_gain) if plateau is not None else 0
        if plateau is not None and quiet >= plateau.evals:
            best = max(one.success for one in curve)
            message = f"no rise of {plateau.min_gain:.4g} on {quiet} evals in a row, up to step {step}; best {best:.4g}"
            return Ended(OutcomeCause.PLATEAU, message)
        return None


def held_at_the_end(curve: Sequence[EvalSummary], success: float) -> int:
    """How many evals at the end of a curve have reached ``success``, one after the other."""
    return len(list(takewhile(lambda one: one.success >= success, reversed(curve))))


def resumed_steps(job: Job) -> dict[int, int | None]:
    """Attempt -> the step at which it began, as it reported; attempts that never came so far are left out."""
    keys, found = RunKeys(job.spec.run_id), dict[int, int | None]()
    for attempt in range(max(2, job.attempt - REMEMBERED_ATTEMPTS), job.attempt):
        progress = _read_or_none(job.store, Progress, keys.progress(attempt))
        if progress is not None and (progress.run_id, progress.attempt) == (job.spec.run_id, attempt):
            found[attempt] = progress.resumed_step
    return found


def _exports(store: ObjectStore, run_id: str) -> list[ExportRecord]:
    keys = RunKeys(run_id)
    read_all = [
        (key, _read_or_none(store, ExportRecord, key))
        for key in store.listing(keys.exports)
        if key.endswith("/export.json")
    ]
    return [
        e
        for key, e in read_all
        if e is not None and e.run_id == run_id and key == keys.export_record(e.attempt, e.step)
    ]


def _read_or_none(store: ObjectStore, kind: type[M], key: str) -> M | None:
    try:
        return read(store, kind, key)
    except Unreadable:
        return None


def _live(made: Iterable[Made], resumed: Mapping[int, int | None]) -> list[Made]:
    """Without what was trained again; the newest attempt's last."""
    return sorted((m for m in made if not is_superseded(m.attempt, m.step, resumed)), key=lambda m: m.attempt)


def take_in(job: Job, standing: Standing, summary: EvalSummary, rows: Sequence[EvalRow]) -> EvalSummary:
    """Publish and tell one eval, with what flipped since the set's eval before."""
    which, step = summary.eval_set, summary.step
    compared = standing.compared(which, step, rows)
    flipped: Sequence[Flip] = ()
    if compared is not None:
        before, flipped = compared
        gained = sum(one.solved for one in flipped)
        numbers = {"previous_step": before, "gained": gained, "lost": len(flipped) - gained}
        summary = summary.model_copy(update=numbers)
    publish_eval(job.uploader, summary, rows, flipped)
    job.record.evals.append(summary)
    standing.saw(summary, rows)
    since = (
        f"; since step {summary.previous_step} {summary.gained} gained and {summary.lost} lost"
        if summary.previous_step is not None
        else ""
    )
    job.say(
        f"eval/{which} at step {step}: {summary.solved}/{summary.of} solved ({100 * summary.low:.1f} to "
        f"{100 * summary.high:.1f}%), avg_score {summary.avg_score:.4f}, pass_at_1 {summary.pass_at_1:.4f}{since}"
    )
    now_at = job.reporter.current.step
    name = f"eval/{which}" if step == now_at else f"eval/{which}_of_best"
    told = {"success": summary.success, "avg_score": summary.avg_score, "pass_at_1": summary.pass_at_1}
    job.tracker.log({f"{name}/{key}": value for key, value in told.items()}, now_at)
    if which is EvalSet.FIXED:
        job.reporter.report(success=summary.success)
    return summary


def adapter_folder(job: Job, record: ExportRecord) -> Path:
    """A folder on the shared mount that holds the exported adapter, byte for byte; from S3 where a later attempt has
    written another one in its place. Raises CheckpointUnusable where neither has it."""
    needed = {name: record.files.get(name) for name in ADAPTER_FILES}
    folder = job.paths.export(record.step)
    there = {name: _bytes_or_none(folder / name) for name in needed}
    if all(content is not None and digest_of(content) == needed[name] for name, content in there.items()):
        return folder
    keys, copy = RunKeys(record.run_id), job.paths.exports / "confirmed" / f"a{record.attempt}-step-{record.step}"
    for name, digest in needed.items():
        content = job.store.get(keys.export(record.attempt, record.step) + name)
        if content is None or digest_of(content) != digest:
            raise CheckpointUnusable(f"the export of step {record.step} (attempt {record.attempt}) is not what it was")
        write_atomically(copy / name, content)
    return copy


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
