"""The HTTP API's requests and answers; ``docs/openapi.json`` is made from these models."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, StrictBool

from nightshift.contract.base import CONTRACT_VERSION, Document, ExternalText, Model
from nightshift.contract.events import FieldError
from nightshift.contract.lineage import Lineage
from nightshift.contract.publication import AttemptLine, Spend
from nightshift.contract.spec import Budgets, ImageRef, RunSpec

PROBLEM_TYPES = "urn:nightshift:problem:"
"""What a problem's ``type`` begins with; its kind follows."""


# requests -------------------------------------------------------------------------------------------------------------


class Request(Model):
    """A body that somebody sends. A field that is not known is refused: it was meant to do something."""

    version: Literal[1] = CONTRACT_VERSION


class CancelMode(StrEnum):
    """``now`` waits for no checkpoint. Either way what there is gets published."""

    AFTER_CHECKPOINT = "after_checkpoint"
    NOW = "now"


class Cancel(Request):
    """``POST /runs/{run_id}/cancel``; no body at all is ``after_checkpoint``."""

    mode: CancelMode = CancelMode.AFTER_CHECKPOINT


class Answer(Request):
    """``POST /runs/{run_id}/answer``: what a person says to the run's open question."""

    go_on: StrictBool = Field(description="true: go on; false: give up, and the run ends for the question's cause")


class RaisedBudgets(Model):
    """Limits of a run's spec that a retry raises; what is not named stays as it is."""

    max_recoveries_without_progress: int | None = Field(None, ge=0, le=100)
    max_rollback_steps: int | None = Field(None, ge=0, le=1_000_000)
    start_minutes: int | None = Field(None, ge=1, le=60 * 24 * 7)
    node_wait_minutes: int | None = Field(None, ge=1, le=60 * 24 * 30)
    wall_hours: float | None = Field(None, gt=0, le=24 * 365)
    gpu_hours: float | None = Field(None, gt=0, le=1e9)
    dollars: float | None = Field(None, gt=0, le=1e9)
    ask_hours: float | None = Field(None, gt=0, le=24 * 30)

    def named(self) -> dict[str, int | float]:
        """Limit -> its new value."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Retry(Request):
    """``POST /runs/{run_id}/retry``: the run goes on from its checkpoints, with what is named here changed."""

    budgets: RaisedBudgets = RaisedBudgets()
    image: ImageRef | None = Field(None, description="another image, by its digest")

    def after(self, earlier: Retry | None) -> Retry:
        """This one on top of an earlier one."""
        if earlier is None:
            return self
        budgets = RaisedBudgets.model_validate(earlier.budgets.named() | self.budgets.named())
        return Retry(budgets=budgets, image=self.image or earlier.image)

    def applied_to(self, spec: RunSpec) -> RunSpec:
        """The spec with which the run goes on. Applying it again changes nothing."""
        budgets = Budgets.model_validate(spec.budgets.model_dump() | self.budgets.named())
        return spec.model_copy(update={"budgets": budgets, "image": self.image or spec.image})


# answers --------------------------------------------------------------------------------------------------------------


class AuditLine(Model):
    """One entry of a run's audit trail. ``signal`` says what made the controller look."""

    at: datetime
    actor: str = Field(description="step, look, signal, intake, finisher or person")
    what: str
    signal: str | None = None
    detail: ExternalText = ""


class CurvePoint(Model):
    """One eval of the fixed set."""

    step: int
    attempt: int
    solved: int
    of: int
    success: float = Field(description="share of the items solved, 0 to 1")
    low: float = Field(description="lower end of the 95% Wilson interval")
    high: float


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
    parent: Lineage | None = Field(None, description="the run whose weights it begins with")
    success: float | None = None
    eta_seconds: float | None = None
    cause: str | None = None
    sentence: ExternalText = ""
    waiting_for: ExternalText = Field("", description="whom or what a queued run waits for")
    spend: Spend | None = None
    gpu_hours: float = Field(0.0, description="of all attempts")
    curve: list[CurvePoint] = Field([], description="success on the fixed set, oldest first, thinned to 200")
    attempts: list[AttemptLine]
    audit: list[AuditLine] = Field(description="the newest lines, newest last; /events has all")
    question: ExternalText = Field("", description="what the run asks a person")
    answer_until: datetime | None = Field(None, description="when the run ends if nobody answers its question")
    cancel_requested: bool = False
    cancel_mode: CancelMode | None = Field(None, description="how, where a cancel was requested")
    retries: int = Field(0, description="how often the run was over and went on by a retry")
    image: str = ""
    ended_at: datetime | None = None
    errors: list[FieldError] = []
    prefix: str = Field(description="s3:// address of everything the run leaves")
    links: dict[str, str] = Field({}, description="label -> s3:// address of what was published")


class RunLine(Model):
    """One run in a list."""

    run_id: str
    state: str
    owner: str
    pool: str
    created_at: datetime
    attempt: int = 0
    step: int = 0
    total_steps: int = 0
    success: float | None = None
    cause: str | None = None
    ended_at: datetime | None = None


class RunList(Document):
    """``GET /runs``: runs that are not over first, then the others, newest first each. A page may be shorter than asked
    for, or empty, and still have a ``next``: filters are applied to what was read."""

    runs: list[RunLine]
    next: str | None = Field(None, description="what the next page is asked for with; none: this was the last")


class EventList(Document):
    """``GET /runs/{run_id}/events``: the audit trail."""

    run_id: str
    events: list[AuditLine]
    next: str | None = Field(None, description="what the next page is asked for with; none: this was the last")


class Holder(Model):
    """The run that holds a pool."""

    run_id: str
    since: datetime
    owner: str = ""
    state: str = ""
    step: int = 0
    total_steps: int = 0
    eta_seconds: float | None = None


class Place(Model):
    """A run that waits in a pool's line."""

    place: int = Field(ge=1)
    run_id: str
    owner: str
    priority: str
    created_at: datetime


class PoolView(Document):
    """``GET /pools/{pool}``: who holds it, and who waits for it, in order. Runs that Kueue admits stand in no line."""

    pool: str
    holder: Holder | None = None
    waiting: list[Place]
    next: str | None = Field(None, description="what the next page is asked for with; none: this was the last")


class Artifact(Model):
    """One object below the run's prefix, with an address that anybody may read it from until it expires."""

    key: str = Field(description="below runs/<run_id>/")
    size: int = Field(ge=0)
    sha256: str | None = Field(None, description="as the manifest promises it, where it lists the object")
    url: str


class ArtifactList(Document):
    """``GET /runs/{run_id}/artifacts``."""

    run_id: str
    published: bool = Field(description="whether a manifest was written and read back")
    expires_at: datetime = Field(description="until when the addresses can be used, at the latest")
    artifacts: list[Artifact]
    next: str | None = Field(None, description="what the next page is asked for with; none: this was the last")


class DashboardLink(Document):
    """``POST /runs/{run_id}/dashboard``. Whoever has the address is let in: it is to be opened, and not to be kept."""

    run_id: str
    url: str
    expires_at: datetime = Field(description="until when a session can be begun with it")


class Rollouts(Model):
    """What the spec's sizes come to."""

    gpus: int
    per_step: int = Field(description="rollouts: prompts a step times samples a prompt")
    per_gpu: float
    updates_per_step: int = Field(description="optimizer updates")
    evals: int = Field(description="evals of the fixed set, the first one included")
    eval_items: int | None = Field(None, description="items of the fixed set, where they are counted")
    checkpoints: int
    max_rollback_steps: int


class Forecast(Model):
    """The most that the run may cost before its budgets end it, at list prices."""

    dollars_per_hour: float | None = None
    prices_as_of: str | None = Field(None, description="day of the oldest price in it")
    prices_old: bool = False
    wall_hours: float
    gpu_hours: float
    most_dollars: float | None = Field(None, description="none: an instance type has no price in the table")


class Rehearsed(Model):
    """The newest rehearsal of what a plan is about."""

    run_id: str
    number: int = Field(ge=1)
    state: str
    passed: bool = Field(description="it went through the death of its driver, was published and read back")
    ended_at: datetime | None = None


class Plan(Document):
    """``POST /runs/plan``: what ``POST /runs`` would start. Everything was checked, and nothing was started or kept."""

    run_id: str
    spec_sha256: str
    exists: bool = Field(description="the same run was asked for before: starting it would start nothing")
    state: str | None = Field(None, description="of the run that exists")
    pool: str
    owner: str
    parent: Lineage | None = Field(None, description="the run whose weights it would begin with, as of now")
    rollouts: Rollouts
    forecast: Forecast
    ceiling: float | None = Field(None, description="share of the eval set that an oracle can solve, where known")
    capacity: list[str] = Field(description="why the HyperPod cluster could never hold it; empty: it could")
    capacity_known: bool = Field(description="false: the HyperPod cluster could not be asked")
    holder: str | None = Field(None, description="who holds the pool now")
    waiting: int | None = Field(
        None, description="runs that would be before it in the pool's line; none: Kueue decides"
    )
    waiting_is_more: bool = Field(False, description="there are more than were counted")
    rehearsed: Rehearsed | None = Field(None, description="none: nothing with these parts was ever rehearsed")
    spec: dict[str, Any] = Field(description="the spec with every default filled in")


class RunAccepted(Document):
    """``POST /runs``: 201 for a new run, 200 for one that was already asked for with the same content."""

    run_id: str
    state: str
    created: bool


class RunTold(Document):
    """``POST /runs/{run_id}/cancel``, ``/answer`` and ``/retry``: the request is recorded and the run goes by it."""

    run_id: str
    state: str


class Problem(Model):
    """RFC 9457 problem details; ``errors`` names fields, and never repeats their values."""

    type: str = Field("about:blank", description="urn:nightshift:problem:<kind>; stable for each kind")
    title: str
    status: int
    detail: ExternalText = ""
    instance: str = Field("", description="the path that was asked for")
    errors: list[FieldError] = []
