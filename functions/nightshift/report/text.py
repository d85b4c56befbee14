"""The curve as one line of text, and the sentences that report, card and messages share. Plain text, not escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nightshift.contract.evals import EvalSummary
from nightshift.contract.publication import AttemptLine, Manifest
from nightshift.report.words import (
    between,
    bounded,
    cause_words,
    clean,
    duration,
    hours,
    percent,
    plural,
    points,
)

BARS = "▁▂▃▄▅▆▇█"


def sparkline(curve: Sequence[float], width: int = 40) -> str:
    """Shares (0 to 1) as bars on the fixed scale 0% to 100%, at most ``width`` characters; first and last are kept.

    The scale is not stretched to the data: a small gain looks small. Values that are no numbers are left out.
    """
    values = [min(1.0, max(0.0, one)) for one in curve if math.isfinite(one)]
    if len(values) > width:
        last = len(values) - 1
        values = [values[round(i * last / (width - 1))] for i in range(width)]
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)


def count(result: EvalSummary) -> str:
    """``28 of 64``."""
    return f"{result.solved:,} of {result.of:,}"


def interval(result: EvalSummary) -> str:
    """``32.3% to 55.9%``."""
    return f"{percent(result.low)} to {percent(result.high)}"


def result_words(result: EvalSummary) -> str:
    """``28 of 64 (43.8%, 95% interval 32.3% to 55.9%)``."""
    return f"{count(result)} ({percent(result.success)}, 95% interval {interval(result)})"


def gain(baseline: EvalSummary, final: EvalSummary) -> str:
    """What changed between two evals of one set, with what the intervals allow to say."""
    change = final.success - baseline.success
    if final.low > baseline.high:
        sure = "The 95% intervals do not overlap."
    elif final.high < baseline.low:
        sure = "The 95% intervals do not overlap: it got worse."
    else:
        sure = "The 95% intervals overlap: this may be chance."
    return f"{points(change)}. {sure}"


def target_sentence(target: float, final: EvalSummary | None) -> str:
    """Whether the final policy is at the target on the fixed set."""
    if final is None:
        return f"The target of {percent(target)} cannot be judged: there is no final eval."
    if final.success >= target:
        return f"The target of {percent(target)} was reached."
    return f"The target of {percent(target)} was missed by {abs(target - final.success) * 100:.1f} points."


def ceiling_sentence(ceiling: float) -> str:
    """What the oracle says about the fixed set."""
    if ceiling >= 1:
        return "Every item of the fixed set can be solved."
    return f"No policy can solve more than {percent(ceiling)} of the fixed set."


def attempt_sentence(line: AttemptLine) -> str:
    """One attempt for a message: where it started, how it ended, what it cost. At most about 900 characters."""
    begin = f"from step {line.resumed_step}" if line.resumed_step else "from the start"
    node = f" ({bounded(clean(line.node), 80)})" if line.node else ""
    took = f" after {duration(between(line.started_at, line.ended_at).total_seconds())}" if line.ended_at else ""
    also = attempt_notes(line)
    return (
        f"Attempt {line.n}: {begin}; {cause_words(line.end_cause)}{node}{took}; "
        f"last saved step {line.last_saved_step}; {hours(line.gpu_hours)} GPU-hours{f'; {also}' if also else ''}"
    )


def attempt_notes(line: AttemptLine) -> str:
    """What was different about an attempt: smaller values, and what its guard did. Empty where nothing was."""
    smaller = "with smaller values" if line.smaller else ""
    return "; ".join(part for part in (smaller, bounded(clean(line.guard), 300)) if part)


def resume_sentence(before: AttemptLine, after: AttemptLine) -> str:
    """How exactly an attempt went on from the one before it."""
    if after.resumed_step is None:
        return f"Attempt {after.n} reported no step to go on from."
    lost = before.last_saved_step - after.resumed_step
    if lost == 0:
        return f"Attempt {after.n} went on from step {after.resumed_step}, exactly the last step that was saved."
    if lost > 0:
        return (
            f"Attempt {after.n} went on from step {after.resumed_step}, "
            f"{plural(lost, 'step')} before the last one that was saved ({before.last_saved_step})."
        )
    return (
        f"Attempt {after.n} went on from step {after.resumed_step}, "
        f"later than the last save that was reported ({before.last_saved_step})."
    )


def best_sentence(best: EvalSummary, confirmed: EvalSummary | None) -> str:
    """The best adapter on the set that it was chosen on, and on the one that nobody chose by. Without the second figure the
    first says too much."""
    told = f"Best adapter, step {best.step:,}: {result_words(best)} on the fixed set, which it was chosen on"
    if confirmed is None:
        return f"{told}; not confirmed on a hold-out."
    return f"{told}; {result_words(confirmed)} on the hold-out."


def headline(manifest: Manifest) -> str:
    """The run in one sentence: with a best adapter its two figures, for it is what people take."""
    if manifest.baseline and manifest.best and manifest.holdout_best:
        fair = f"{count(manifest.holdout_best)} on the hold-out"
        return f"From {count(manifest.baseline)} to {count(manifest.best)} solved, {fair}"
    if manifest.baseline and manifest.final:
        return f"From {count(manifest.baseline)} to {count(manifest.final)} solved"
    if manifest.final:
        return f"{count(manifest.final)} solved"
    if manifest.baseline:
        return f"{count(manifest.baseline)} solved before training; no final result"
    return "No eval result"
