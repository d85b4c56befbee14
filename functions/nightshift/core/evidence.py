"""What counts as evidence, and what is drawn from it: the curve, the final eval, the best adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nightshift.contract.evals import EvalSet, EvalSummary, best_of, evals_without_rise, is_superseded
from nightshift.contract.job import ExportRecord, OutcomeCause
from nightshift.contract.spec import Plateau, RunSpec, Target
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
    holdout_best: EvalSummary | None
    final_export: ExportRecord | None
    best_export: ExportRecord | None


def results(summaries: Iterable[EvalSummary], exports: Iterable[ExportRecord], attempts: Sequence[Attempt]) -> Results:
    """Newest attempt wins for each step; best is the highest success on the fixed set among steps that have an export,
    the later one of equals. An export whose lora_B are all zero is the base model: it is nothing to publish."""
    fixed = _newest([s for s in summaries if s.eval_set is EvalSet.FIXED], attempts)
    holdout = _newest([s for s in summaries if s.eval_set is EvalSet.HOLDOUT], attempts)
    saved = {step: e for step, e in exports_by_step(exports, attempts).items() if e.lora_b_nonzero > 0}
    curve = tuple(fixed[step] for step in sorted(fixed))
    final = curve[-1] if curve and curve[-1].step > 0 else None
    best = best_of(curve, saved)
    return Results(
        curve=curve,
        baseline=fixed.get(0),
        final=final,
        best=best,
        holdout_baseline=holdout.get(0),
        holdout_final=holdout.get(final.step) if final is not None else None,
        holdout_best=holdout.get(best.step) if best is not None else None,
        final_export=saved[max(saved)] if saved else None,
        best_export=saved.get(best.step) if best is not None else None,
    )


def exports_by_step(exports: Iterable[ExportRecord], attempts: Sequence[Attempt]) -> dict[int, ExportRecord]:
    """The run's export of each step: the newest attempt's, and none that was trained again."""
    return {e.step: e for e in sorted(_live(exports, attempts), key=lambda e: e.attempt)}


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


def is_at_plateau(found: Results, plateau: Plateau) -> bool:
    """The last evals of the fixed set are no rise, as many as the spec asks for: again by the evals alone."""
    return evals_without_rise([s.success for s in found.curve], plateau.min_gain) >= plateau.evals


def may_end_early(found: Results, spec: RunSpec, cause: OutcomeCause) -> bool:
    """Whether the evals bear out what the job says about its end before the last step, and the spec allows it."""
    if cause is OutcomeCause.TARGET_REACHED:
        return spec.target is not None and spec.target.stop and holds_target(found, spec.target)
    return cause is OutcomeCause.PLATEAU and spec.plateau is not None and is_at_plateau(found, spec.plateau)


def _live(items: Iterable[Evidence], attempts: Sequence[Attempt]) -> list[Evidence]:
    resumed = {a.n: a.resumed_step for a in attempts}
    return [i for i in items if not is_superseded(i.attempt, i.step, resumed)]


def _newest(items: Iterable[EvalSummary], attempts: Sequence[Attempt]) -> dict[int, EvalSummary]:
    return {s.step: s for s in sorted(_live(items, attempts), key=lambda s: s.attempt)}
