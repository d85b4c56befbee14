"""EventBridge events of the project itself: a start request in, stages of a run out."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from nightshift.contract.base import Document, ExternalText, Model
from nightshift.contract.evals import EvalSummary
from nightshift.contract.publication import AttemptLine, Spend

EVENT_SOURCE = "nightshift"
START_DETAIL_TYPE = "Training Run Requested"
STAGE_DETAIL_TYPE = "Training Run State Changed"


class StartRequest(Document):
    """Detail of a start event and body of ``POST /runs``. ``spec`` is validated later, so that errors can be named."""

    spec: dict[str, Any]
    owner: str | None = Field(None, max_length=200, description="of an event; the API takes it from the caller")


class FieldError(Model):
    """One reason why a request was refused: ``field`` is a dotted path into the spec."""

    field: str
    problem: ExternalText


class Stage(StrEnum):
    """Points of a run worth a notification."""

    REJECTED = "rejected"
    QUEUED = "queued"
    STARTED = "started"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    ASKING = "asking"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Stage.FINISHED, Stage.FAILED, Stage.CANCELLED)


class StageEvent(Document):
    """Detail of "Training Run State Changed": everything that a message needs, bounded. ``key`` is unique per stage
    event of a run (``started``, ``recovering-a1``, ...): a receiver uses it to drop what it has seen."""

    run_id: str
    stage: Stage
    key: str
    owner: str | None = None
    at: datetime
    sentence: ExternalText = Field(
        "", description="one sentence for a person: what happened and what to do, if anything"
    )
    errors: list[FieldError] = Field([], max_length=50)
    attempt: int | None = None
    step: int | None = None
    total_steps: int | None = None
    cause: str | None = None
    node: str | None = None
    until: datetime | None = Field(None, description="of a question: when the run stops waiting for an answer")
    seconds: float | None = Field(None, description="of a recovery: from the decision to the first sign of life")
    baseline: EvalSummary | None = None
    final: EvalSummary | None = None
    holdout_baseline: EvalSummary | None = None
    holdout_final: EvalSummary | None = None
    curve: list[float] = Field([], max_length=200, description="success on the fixed set, oldest first, thinned")
    attempts: list[AttemptLine] = Field([], max_length=20)
    gpu_hours: float | None = None
    spend: Spend | None = None
    links: dict[str, str] = Field({}, description="label -> address")
