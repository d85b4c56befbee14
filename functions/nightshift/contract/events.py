"""EventBridge events of the project itself: a start request in, stages of a run out."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from nightshift.contract.base import Document, ExternalText, Model
from nightshift.contract.evals import EvalSummary
from nightshift.contract.publication import AttemptLine, Spend
from nightshift.contract.redaction import without_secrets
from nightshift.contract.spec import NotifyLevel

EVENT_SOURCE = "nightshift"
START_DETAIL_TYPE = "Training Run Requested"
STAGE_DETAIL_TYPE = "Training Run State Changed"


class StartRequest(Document):
    """Detail of a start event and body of ``POST /runs``. ``spec`` is validated later, so that errors can be named."""

    spec: dict[str, Any]
    owner: str | None = Field(None, max_length=200, description="of an event; the API takes it from the caller")


class ScheduledStart(Document):
    """What EventBridge Scheduler hands over: which spec, and for when. ``run_id`` of the spec holds ``{date}`` or ``{time}``,
    filled from ``scheduled_time``, so that the same time is the same run however often it comes."""

    scheduled_time: AwareDatetime
    schedule: str = Field("", max_length=1_600, description="ARN of the schedule: the run's owner is its name")
    spec_uri: str | None = Field(
        None, max_length=1_024, description="s3:// address of a YAML or JSON spec, below schedules/ of the bucket"
    )
    spec: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_spec(self) -> Self:
        if (self.spec is None) == (self.spec_uri is None):
            raise ValueError("exactly one of spec and spec_uri is wanted")
        return self


def _no_secrets(value: object) -> object:
    """Whatever says why a request is refused, nothing in the form of a credential is repeated: refusals are stored and sent."""
    return without_secrets(value) if isinstance(value, str) else value


class FieldError(Model):
    """One reason why a request was refused: ``field`` is a dotted path into the spec."""

    field: str
    problem: Annotated[ExternalText, BeforeValidator(_no_secrets)]


class RequestAnswer(Document):
    """``answers/<name>.json``: what became of a spec that was dropped under ``requests/``."""

    request: str = Field(description="key of the dropped file")
    run_id: str | None = Field(None, description="none where it was refused")
    created: bool = Field(description="False where the same request had started the run before")
    errors: list[FieldError] = []


class Stage(StrEnum):
    """Points of a run worth a notification."""

    REJECTED = "rejected"
    QUEUED = "queued"
    """It waits for somebody: another run at its pool, or Kueue. A run whose pool is free waits for nobody, and says nothing."""
    STARTED = "started"
    FIRST_EVAL = "first_eval"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    ASKING = "asking"
    TARGET_REACHED = "target_reached"
    BUDGET = "budget"
    """Four fifths of a limit are used."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Stage.FINISHED, Stage.FAILED, Stage.CANCELLED)


class BudgetUse(Model):
    """How much of one limit a run has used; both in the unit of its name."""

    name: Literal["wall_hours", "gpu_hours", "dollars"]
    used: float = Field(ge=0)
    limit: float = Field(gt=0)


class StageEvent(Document):
    """Detail of "Training Run State Changed": everything that a message needs, bounded. ``key`` is unique per stage
    event of a run (``started``, ``recovering-a1``, ...): a receiver uses it to drop what it has seen. Every stage is sent,
    however quiet the run is to be: ``notify`` says what its owner wants to hear of, and is for those who make messages."""

    run_id: str
    stage: Stage
    key: str
    owner: str | None = None
    notify: NotifyLevel = NotifyLevel.NORMAL
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
    best: EvalSummary | None = None
    holdout_best: EvalSummary | None = None
    budget: BudgetUse | None = None
    target: float | None = Field(None, description="share of the fixed set that the spec names")
    log_tail: ExternalText = Field("", description="of a failure: the driver log's last lines")
    curve: list[float] = Field([], max_length=200, description="success on the fixed set, oldest first, thinned")
    attempts: list[AttemptLine] = Field([], max_length=20)
    gpu_hours: float | None = None
    spend: Spend | None = None
    links: dict[str, str] = Field({}, description="label -> address")
