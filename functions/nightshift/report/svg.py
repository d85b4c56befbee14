"""Pictures as inline SVG: the curve of a run, and an interval on a bar. Colours come from classes in ``style.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import count as count_up
from itertools import pairwise

from nightshift.contract.evals import EvalSummary
from nightshift.contract.publication import AttemptLine, Manifest
from nightshift.report.text import count, interval
from nightshift.report.words import cause_words, percent

SERIES = 4
"""Attempts told apart by colour and by the shape of their marks; the fifth looks like the first."""


@dataclass(frozen=True)
class Plot:
    """Where things lie in a picture of ``width`` x ``height`` units; x is the step, y is success from 0 to 1."""

    width: int
    height: int
    last_step: int
    left: int = 46
    right: int = 16
    top: int = 40
    bottom: int = 44

    def x(self, step: float) -> float:
        return round(self.left + (self.width - self.left - self.right) * step / max(1, self.last_step), 1)

    def y(self, share: float) -> float:
        return round(self.height - self.bottom - (self.height - self.top - self.bottom) * share, 1)


def kept_points(curve: Sequence[EvalSummary], attempts: Sequence[AttemptLine]) -> list[EvalSummary]:
    """The evals that the final policy descends from: one a step, in the order of steps.

    An eval of an attempt is left out where a later attempt resumed below its step: that policy was lost with its
    attempt, and the later one trained those steps again.
    """
    kept: dict[int, EvalSummary] = {}
    for one in sorted(curve, key=lambda e: (e.attempt, e.at)):
        later = [line.resumed_step or 0 for line in attempts if line.n > one.attempt]
        if all(one.step <= resumed for resumed in later):
            kept[one.step] = one
    return [kept[step] for step in sorted(kept)]


def step_ticks(last_step: int, most: int) -> list[int]:
    """Round steps for the x axis, at most ``most`` of them besides 0."""
    for exponent in count_up():
        for factor in (1, 2, 5):
            size = factor * 10**exponent
            if last_step <= most * size:
                return list(range(0, last_step + 1, size))
    raise AssertionError("unreachable: the sizes grow without end")


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, css: str, text: str, anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _axes(plot: Plot) -> list[str]:
    parts = []
    for fifth in range(6):
        y = plot.y(fifth / 5)
        parts.append(_line(plot.left, y, plot.width - plot.right, y, "grid" if fifth else "axis"))
        parts.append(_text(plot.left - 8, y + 4, "tick", f"{fifth * 20}%", "end"))
    for step in step_ticks(plot.last_step, max(3, plot.width // 90)):
        parts.append(_text(plot.x(step), plot.height - plot.bottom + 18, "tick", f"{step:,}", "middle"))
    middle = (plot.left + plot.width - plot.right) / 2
    parts.append(_text(middle, plot.height - 8, "label", "training step", "middle"))
    parts.append(_text(6, 14, "label", "solved on the fixed set, with 95% band"))
    return parts


def _levels(plot: Plot, target: float | None, ceiling: float | None) -> list[str]:
    """Target and ceiling as labelled lines; their labels stand at different ends and sides, so they never collide."""
    parts = []
    if ceiling is not None:
        y = plot.y(ceiling)
        parts.append(_line(plot.left, y, plot.width - plot.right, y, "ceiling"))
        parts.append(_text(plot.width - plot.right, y - 5, "note", f"ceiling {percent(ceiling)}", "end"))
    if target is not None:
        y = plot.y(target)
        parts.append(_line(plot.left, y, plot.width - plot.right, y, "target"))
        parts.append(_text(plot.left + 6, y + 15, "note", f"target {percent(target)}"))
    return parts


def _recoveries(plot: Plot, attempts: Sequence[AttemptLine]) -> list[str]:
    parts = []
    by_number = {line.n: line for line in attempts}
    for line in attempts:
        if line.n < 2:
            continue
        step = line.resumed_step or 0
        before = by_number.get(line.n - 1)
        why = cause_words(before.end_cause) if before else "reason unknown"
        title = f"Attempt {line.n} went on from step {step}. Before it: {why}."
        x = plot.x(step)
        label = f"attempt {line.n} goes on from {step}" if plot.width > 600 else f"attempt {line.n}"
        fits = x + 6 + 6.5 * len(label) < plot.width - plot.right
        label_x, anchor = (x + 6, "start") if fits else (x - 6, "end")
        label_y = plot.height - plot.bottom - 10 - 15 * ((line.n - 2) % 3)
        parts.append(
            f"<g><title>{escape(title)}</title>"
            + _line(x, plot.top - 6, x, plot.height - plot.bottom, "recovery")
            + _text(label_x, label_y, "note", label, anchor)
            + "</g>"
        )
    return parts


def mark(x: float, y: float, series: int, css: str = "") -> str:
    """The mark of an attempt: circle, square, triangle or diamond."""
    name = f"mark s{series} {css}".strip()
    shapes = (
        f'<circle class="{name}" cx="{x}" cy="{y}" r="4.5"/>',
        f'<rect class="{name}" x="{x - 4.2:.1f}" y="{y - 4.2:.1f}" width="8.4" height="8.4"/>',
        f'<polygon class="{name}" points="{x},{y - 5.5:.1f} {x + 5:.1f},{y + 4:.1f} {x - 5:.1f},{y + 4:.1f}"/>',
        f'<polygon class="{name}" points="{x},{y - 6:.1f} {x + 5.5:.1f},{y} {x},{y + 6:.1f} {x - 5.5:.1f},{y}"/>',
    )
    return shapes[series]


def series_of(attempt: int) -> int:
    """Which of the ``SERIES`` looks an attempt has."""
    return (attempt - 1) % SERIES


def _point(plot: Plot, one: EvalSummary, css: str = "") -> str:
    lost = " This state was lost with its attempt." if css else ""
    title = f"Step {one.step}, attempt {one.attempt}: {count(one)}, {percent(one.success)} ({interval(one)}).{lost}"
    shape = mark(plot.x(one.step), plot.y(one.success), series_of(one.attempt), css)
    return f"<g><title>{escape(title)}</title>{shape}</g>"


def _curve(plot: Plot, kept: Sequence[EvalSummary], lost: Sequence[EvalSummary]) -> list[str]:
    upper = [f"{plot.x(one.step)},{plot.y(one.high)}" for one in kept]
    lower = [f"{plot.x(one.step)},{plot.y(one.low)}" for one in reversed(kept)]
    parts = [f'<polygon class="band" points="{" ".join(upper + lower)}"/>'] if len(kept) > 1 else []
    for a, b in pairwise(kept):
        css = f"stroke s{series_of(b.attempt)}"
        parts.append(_line(plot.x(a.step), plot.y(a.success), plot.x(b.step), plot.y(b.success), css))
    parts += [_point(plot, one) for one in kept]
    parts += [_point(plot, one, "lost") for one in lost]
    return parts


def curve_svg(manifest: Manifest, width: int = 880, height: int = 360) -> str:
    """Success on the fixed set by training step: 95% band, each attempt's share of the line, recoveries, levels.

    ``width`` and ``height`` are the units of its view box; text has 12 units. Without evals a sentence instead.
    """
    kept = kept_points(manifest.curve, manifest.attempts)
    if not kept:
        return '<p class="empty">No eval on the fixed set was published.</p>'
    lost = [one for one in manifest.curve if one not in kept]
    steps = [one.step for one in manifest.curve] + [line.resumed_step or 0 for line in manifest.attempts]
    plot = Plot(width=width, height=height, last_step=max([1, *steps]))
    first, last = kept[0], kept[-1]
    summary = (
        f"Line chart of {len(kept)} evals on the fixed set: {percent(first.success)} at step {first.step}, "
        f"{percent(last.success)} at step {last.step}."
    )
    body = [
        *_axes(plot),
        *_levels(plot, manifest.target, manifest.ceiling),
        *_recoveries(plot, manifest.attempts),
        *_curve(plot, kept, lost),
    ]
    return (
        f'<svg class="curve" role="img" viewBox="0 0 {width} {height}" aria-label="{escape(summary)}">'
        f"{''.join(body)}</svg>"
    )


def legend_svg(attempt: int) -> str:
    """The mark of an attempt on a piece of its line, for a legend. Decoration: the legend's text says the rest."""
    series = series_of(attempt)
    line = _line(0, 8, 30, 8, f"stroke s{series}")
    return f'<svg class="key" viewBox="0 0 30 16" aria-hidden="true">{line}{mark(15, 8, series)}</svg>'


def interval_svg(result: EvalSummary, css: str) -> str:
    """One result on a bar from 0% to 100%: the 95% interval as a thick line, the share as a dot."""
    title = f"{count(result)}, {percent(result.success)}, 95% interval {interval(result)}"
    low, high, at = (round(6 + 288 * share, 1) for share in (result.low, result.high, result.success))
    return (
        f'<svg class="bar" role="img" viewBox="0 0 300 16" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"{_line(6, 8, 294, 8, 'track')}{_line(low, 8, high, 8, f'range {css}')}"
        f'<circle class="dot {css}" cx="{at}" cy="8" r="6"/></svg>'
    )
