"""curve.png: success on the fixed eval set over the steps, for people."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from nightshift.contract import EvalSet, EvalSummary
from training_job.evals import curve_of


def draw_curve(
    run_id: str,
    summaries: Sequence[EvalSummary],
    resumed: Mapping[int, int],
    target: float | None,
    ceiling: float | None,
) -> bytes:
    """PNG with the 95% band, the hold-out's points, and a mark where each later attempt began.

    ``summaries`` are of all attempts; ``resumed`` is the step at which each attempt after the first began. Raises
    ValueError where no summary is of the fixed set.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curve = curve_of(summaries)
    if not curve:
        raise ValueError("a curve needs at least one eval of the fixed set")
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = [one.step for one in curve]
    axes.fill_between(
        steps,
        [100 * one.low for one in curve],
        [100 * one.high for one in curve],
        alpha=0.2,
        color="tab:blue",
        linewidth=0,
        label="95% interval (Wilson)",
    )
    label = f"fixed set, {curve[-1].of} items"
    axes.plot(steps, [100 * one.success for one in curve], marker="o", markersize=4, color="tab:blue", label=label)
    _draw_holdout(axes, summaries)
    _draw_attempts(axes, resumed)
    if ceiling is not None:
        axes.axhline(
            100 * ceiling,
            color="tab:gray",
            linestyle=":",
            linewidth=1,
            label=f"ceiling of the fixed set {100 * ceiling:.1f}%",
        )
    if target is not None:
        axes.axhline(100 * target, color="tab:green", linestyle="--", linewidth=1, label=f"target {100 * target:.1f}%")
    axes.set_xlabel("training step")
    axes.set_ylabel("success (%)")
    axes.set_ylim(0, 104)
    first, last = (f"{one.solved}/{one.of} at step {one.step}" for one in (curve[0], curve[-1]))
    axes.set_title(f"{run_id}: {first}, {last}")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_holdout(axes: Any, summaries: Sequence[EvalSummary]) -> None:
    points = {one.step: one for one in summaries if one.eval_set is EvalSet.HOLDOUT}
    if points:
        steps = sorted(points)
        share = [100 * points[step].success for step in steps]
        below = [100 * (points[step].success - points[step].low) for step in steps]
        above = [100 * (points[step].high - points[step].success) for step in steps]
        label = f"hold-out, {points[steps[0]].of} items"
        axes.errorbar(
            steps, share, yerr=[below, above], fmt="s", markersize=4, capsize=3, color="tab:orange", label=label
        )


def _draw_attempts(axes: Any, resumed: Mapping[int, int]) -> None:
    for attempt, step in sorted(resumed.items()):
        axes.axvline(step, color="tab:red", linestyle="-", linewidth=1, alpha=0.7)
        text = f"attempt {attempt}"
        axes.annotate(text, (step, 2), xytext=(3, 0), textcoords="offset points", fontsize=8, color="tab:red")
