"""Eval results: one row an item, one summary an eval."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from nightshift.contract.base import Document, Model


class EvalSet(StrEnum):
    """``fixed`` is evaluated every eval_interval steps; ``holdout`` at the start and at the end, and once with the best
    adapter where that is not the last one."""

    FIXED = "fixed"
    HOLDOUT = "holdout"


class EvalRow(Model):
    """One eval item, as published (JSON lines).

    ``item`` names it within its data (``seed:17``); ``score`` is the sum of the rewards; ``success`` follows the
    task's success rule and is not SkyRL's pass_at_1.
    """

    item: str
    success: bool
    score: float
    turns: int = Field(ge=0)
    stop_reason: str


class Flip(Model):
    """One item that another policy state decided otherwise, as published (JSON lines): solved now, or not any more."""

    item: str
    solved: bool


def flips(before: Iterable[EvalRow], after: Iterable[EvalRow]) -> list[Flip]:
    """What two evals of one set differ in, in the order of the later one. An item that only one of them has is left out."""
    then = {row.item: row.success for row in before}
    return [Flip(item=row.item, solved=row.success) for row in after if then.get(row.item, row.success) != row.success]


class EvalSummary(Document):
    """One eval of one policy state on one set. Published beside its rows."""

    run_id: str
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    eval_set: EvalSet
    solved: int = Field(ge=0)
    of: int = Field(ge=1)
    low: float
    high: float
    avg_score: float
    pass_at_1: float
    rows_sha256: str
    previous_step: int | None = Field(
        None, ge=0, description="of the eval of this set that gained and lost compare with"
    )
    gained: int | None = Field(None, ge=0, description="items solved now and not then")
    lost: int | None = Field(None, ge=0, description="items solved then and not now")
    at: datetime

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.solved > self.of:
            raise ValueError(f"{self.solved} of {self.of} items cannot be solved")
        return self

    @property
    def success(self) -> float:
        """Share of the items solved, 0 to 1."""
        return self.solved / self.of


def wilson_interval(solved: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion. Raises ValueError for an empty set."""
    if of <= 0:
        raise ValueError("an interval needs at least one item")
    share = solved / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, centre - half), min(1.0, centre + half)


def evals_without_rise(successes: Sequence[float], min_gain: float) -> int:
    """How many evals at the end of a curve are no rise: a rise is ``min_gain`` above the value at the last rise, the first
    eval being one. Slow but steady gains therefore count, once they add up."""
    level, quiet = -math.inf, 0
    for success in successes:
        if success >= level + min_gain - 1e-9:
            level, quiet = success, 0
        else:
            quiet += 1
    return quiet


def is_superseded(attempt: int, step: int, resumed: Mapping[int, int | None]) -> bool:
    """An object of attempt a at a step above the step from which a later attempt resumed is not part of the run's history:
    that stretch was trained again. ``resumed``: attempt -> the step that it resumed from, None where it is not known."""
    return any(n > attempt and begun is not None and step > begun for n, begun in resumed.items())


def best_of(curve: Iterable[EvalSummary], exported: Collection[int]) -> EvalSummary | None:
    """The highest success on the fixed set among steps that have an export, the later one of equals."""
    return max((s for s in curve if s.step in exported), key=lambda s: (s.solved, s.step), default=None)
