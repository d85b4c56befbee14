"""What a look tells of a run once: its first eval, its target, and limits that are near.

Told first and noted then: a look that dies in between is followed by one that tells it again under the same key, which a
receiver drops. What EventBridge does not take is told by a later look. A run never waits for any of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nightshift.contract.events import Stage
from nightshift.contract.spec import RunSpec
from nightshift.core.evidence import Results, holds_target, results
from nightshift.core.notices import FIRST_EVAL, TARGET, is_first_eval, may_hold_target, near_limits
from nightshift.core.observation import Observation
from nightshift.core.run import Attempt, Run
from nightshift.steps.common import emit, gpu_hours_of
from nightshift.steps.ports import Ports


def notice(ports: Ports, run: Run, spec: RunSpec, attempts: Sequence[Attempt], seen: Observation) -> Run:
    """Tell what is due and note it. A job that has ended says how it went by itself: then only limits are told of."""
    success = seen.progress.success if seen.progress is not None and seen.outcome is None else None
    told = [
        one.key
        for one in near_limits(run, spec, gpu_hours_of(attempts, ports.now()), ports.now())
        if emit(ports, run, spec, Stage.BUDGET, one.key, budget=one.use)
    ]
    if is_first_eval(run, success) or may_hold_target(run, spec, success):
        told += _of_evals(ports, run, spec, attempts, success)
    return ports.runs.update(run, noticed=(*run.noticed, *told)) if told else run


def _of_evals(ports: Ports, run: Run, spec: RunSpec, attempts: Sequence[Attempt], success: float | None) -> list[str]:
    found, told = results(ports.artifacts.summaries(run.run_id), (), attempts), []
    if not found.curve:
        return []  # the job knows of an eval that is not in S3 yet
    first, last = found.curve[0], found.curve[-1]
    if is_first_eval(run, success) and emit(
        ports, run, spec, Stage.FIRST_EVAL, FIRST_EVAL, baseline=first, step=first.step, **_target(spec)
    ):
        told.append(FIRST_EVAL)
    if may_hold_target(run, spec, success) and _is_held(found, spec):
        after = "It ends here." if spec.target is not None and spec.target.stop else "It trains on to its last step."
        fields = {"baseline": found.baseline, "final": last, "step": last.step, "sentence": after, **_target(spec)}
        if emit(ports, run, spec, Stage.TARGET_REACHED, TARGET, **fields):
            told.append(TARGET)
    return told


def _is_held(found: Results, spec: RunSpec) -> bool:
    return spec.target is not None and holds_target(found, spec.target)


def _target(spec: RunSpec) -> dict[str, float]:
    return {"target": spec.target.success} if spec.target is not None else {}
