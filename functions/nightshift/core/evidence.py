"""What counts as evidence, and what is drawn from it: the curve, the final eval, the best adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nightshift.contract.evals import EvalSet, EvalSummary
from nightshift.contract.job import ExportRecord
from nightshift.contract.spec import Target
from nightshift.core.run import Attempt

Evidence = TypeVar("Evidence", EvalSummary, ExportRecord)


@dataclass(frozen=True)
class Results:
    """What a run has to show; each field holds only objects that survive the rule of ``is_superseded``."""

    curve: tuple[EvalSummary, ...]
    baseline: EvalSummary | None
    final: EvalSummary | None
    best: EvalSummary | None
    holdout_baseline: EvalSummary | None
    holdout_final: EvalSummary | None
    final_export: ExportRecord | None
    best_export: ExportRecord | None


def is_superseded(attempt: int, step: int, attempts: Sequence[Attempt]) -> bool:
    """An object of attempt a at a step above the step from which a later attempt resumed is not part of the run's
    history: that stretch was trained again."""
    return any(a.n > attempt and a.resumed_step is not None and step > a.resumed_step for a in attempts)


def results(summaries: Iterable[EvalSummary], exports: Iterable[ExportRecord], attempts: Sequence[Attempt]) -> Results:
    """Newest attempt wins for each step; best is the highest success on the fixed set among steps that have an export,
    the later one of equals. An export whose lora_B are all zero is the base model: it is nothing to publish."""
    fixed = _newest([s for s in summaries if s.eval_set is EvalSet.FIXED], attempts)
    holdout = _newest([s for s in summaries if s.eval_set is EvalSet.HOLDOUT], attempts)
    newest = {e.step: e for e in sorted(_live(exports, attempts), key=lambda e: e.attempt)}
    saved = {step: e for step, e in newest.items() if e.lora_b_nonzero > 0}
    curve = tuple(fixed[step] for step in sorted(fixed))
    exported = [s for s in curve if s.step in saved]
    final = curve[-1] if curve and curve[-1].step > 0 else None
    best = max(exported, key=lambda s: (s.solved, s.step), default=None)
    return Results(
        curve=curve,
        baseline=fixed.get(0),
        final=final,
        best=best,
        holdout_baseline=holdout.get(0),
        holdout_final=holdout.get(final.step) if final is not None else None,
        final_export=saved[max(saved)] if saved else None,
        best_export=saved.get(best.step) if best is not None else None,
    )


def is_complete(found: Results, attempt: int, last_step: int) -> bool:
    """Evidence of success: the current attempt's own eval and verified export at ``last_step``, which is the run's last
    step, or the step at which the job says that it reached its target."""
    final, export = found.final, found.final_export
    return (
        final is not None
        and export is not None
        and final.attempt == export.attempt == attempt
        and final.step == export.step == last_step
        and export.lora_b_nonzero > 0
    )


def holds_target(found: Results, target: Target) -> bool:
    """The last evals of the fixed set are as good as the run's target asks, and as many as it asks for: what the evals say,
    not what the job says of them."""
    last = found.curve[-target.evals :]
    return len(last) == target.evals and all(s.success >= target.success for s in last)


def _live(items: Iterable[Evidence], attempts: Sequence[Attempt]) -> list[Evidence]:
    return [i for i in items if not is_superseded(i.attempt, i.step, attempts)]


def _newest(items: Iterable[EvalSummary], attempts: Sequence[Attempt]) -> dict[int, EvalSummary]:
    return {s.step: s for s in sorted(_live(items, attempts), key=lambda s: s.attempt)}
