"""Eval results: one row an item, one summary an eval."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from nightshift.contract.base import Document, Model


class EvalSet(StrEnum):
    """``fixed`` is evaluated every eval_interval steps; ``holdout`` at the start and at the end only."""

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
