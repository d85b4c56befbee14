"""Answers of the HTTP API."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, StrictBool

from nightshift.contract.base import Document, ExternalText, Model
from nightshift.contract.events import FieldError
from nightshift.contract.publication import AttemptLine, Spend


class AuditLine(Model):
    """One entry of a run's audit trail. ``signal`` says what made the controller look."""

    at: datetime
    actor: str = Field(description="step, look, signal, intake or finisher")
    what: str
    signal: str | None = None
    detail: ExternalText = ""


class RunView(Document):
    """``GET /runs/{run_id}``."""

    run_id: str
    state: str
    owner: str
    pool: str
    created_at: datetime
    attempt: int
    step: int = Field(description="last step that the job reported")
    verified_step: int = Field(description="last step that the job verified after its save: the floor")
    total_steps: int
    success: float | None = None
    eta_seconds: float | None = None
    cause: str | None = None
    sentence: ExternalText = ""
    waiting_for: ExternalText = Field("", description="whom or what a queued run waits for")
    spend: Spend | None = None
    attempts: list[AttemptLine]
    audit: list[AuditLine]
    question: ExternalText = Field("", description="what the run asks a person")
    answer_until: datetime | None = Field(None, description="when the run ends if nobody answers its question")
    cancel_requested: bool = False
    errors: list[FieldError] = []
    prefix: str = Field(description="s3:// address of everything the run leaves")


class RunAccepted(Document):
    """``POST /runs``: 201 for a new run, 200 for one that was already asked for with the same content."""

    run_id: str
    state: str
    created: bool


class Answer(Document):
    """``POST /runs/{run_id}/answer``: what a person says to the run's open question."""

    go_on: StrictBool = Field(description="true: go on; false: give up, and the run ends for the question's cause")


class RunTold(Document):
    """``POST /runs/{run_id}/cancel`` and ``/answer``: the request is recorded and the run is woken."""

    run_id: str
    state: str


class Problem(Model):
    """RFC 9457 problem details; ``errors`` names fields."""

    type: str = "about:blank"
    title: str
    status: int
    detail: ExternalText = ""
    errors: list[FieldError] = []
