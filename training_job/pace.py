"""How long the rest takes: medians of the last steps, evals and saves, and how many of each are still to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import lcm
from statistics import median
from time import monotonic
from typing import Final, Literal

from nightshift.contract.spec import Training

_KEPT: Final = 20
"""Values of each kind whose median counts."""

Kind = Literal["step", "eval", "save"]


class Pace:
    """Laps from one step's end to the next, each taken apart into its step, its eval and its saves. ``steps_per_epoch``: at
    the end of an epoch is a save, too."""

    def __init__(self, training: Training, steps_per_epoch: int, clock: Callable[[], float] = monotonic) -> None:
        self._total, self._clock = training.total_steps, clock
        self._due: dict[Kind, Sequence[int]] = {
            "step": (1,),
            "eval": (training.eval_interval,),
            "save": (training.ckpt_interval, training.hf_save_interval, steps_per_epoch),
        }
        self._kept: dict[Kind, deque[float]] = {kind: deque(maxlen=_KEPT) for kind in self._due}
        self._lap: dict[Kind, float] = {}
        self._last: float | None = None

    def begin(self) -> None:
        """The first step begins now: what was before it is no step."""
        self._last, self._lap = self._clock(), {}

    def stepped(self) -> None:
        """A step has ended now."""
        now, lap = self._clock(), self._lap
        if self._last is not None:
            lap["step"] = max(0.0, now - self._last - sum(lap.values()))
        for kind, seconds in lap.items():
            self._kept[kind].append(seconds)
        self._last, self._lap = now, {}

    @contextmanager
    def spending(self, kind: Kind) -> Iterator[None]:
        """An eval, or a part of a save (checkpoint, export), that training waits for."""
        began = self._clock()
        try:
            yield
        finally:
            self._lap[kind] = self._lap.get(kind, 0.0) + self._clock() - began

    def eta(self, step: int) -> float | None:
        """Seconds from after ``step`` to the end of the run; None before the first step."""
        if not self._kept["step"]:
            return None
        return sum(
            median(kept) * times_due(self._due[kind], step, self._total) for kind, kept in self._kept.items() if kept
        )


def times_due(intervals: Sequence[int], step: int, total: int) -> int:
    """How many of the steps after ``step`` up to ``total`` are the last one or a multiple of one of the intervals."""
    if step >= total:
        return 0
    count = 0 if any(total % one == 0 for one in intervals) else 1
    for size in range(1, len(intervals) + 1):
        for some in combinations(intervals, size):
            every = lcm(*some)
            count += (1 if size % 2 else -1) * (total // every - step // every)
    return count
