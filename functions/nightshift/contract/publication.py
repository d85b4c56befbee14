"""What a finished run leaves: provenance.json, and manifest.json as its last object."""

from __future__ import annotations

from datetime import date, datetime

from pydantic import Field

from nightshift.contract.base import Document, ExternalText, Model
from nightshift.contract.evals import EvalSummary
from nightshift.contract.job import FileDigest
from nightshift.contract.lineage import Lineage
from nightshift.contract.spec import SmallerValues


class Spend(Model):
    """What the run's nodes (head and workers) cost at list prices while it held them. HyperPod bills nodes whether they
    are used or not: this is attributed, not caused."""

    dollars: float = Field(ge=0)
    dollars_per_hour: float = Field(ge=0)
    prices_as_of: date = Field(description="day of the oldest price in it")
    prices_old: bool = Field(False, description="that day was more than 90 days before")


class AttemptLine(Model):
    """One attempt as the report, the manifest and the last message show it. Times are UTC."""

    n: int = Field(ge=1)
    started_at: datetime
    ended_at: datetime | None = None
    end_cause: str | None = None
    signal: str | None = Field(None, description="what made the controller look when it decided")
    message: ExternalText = ""
    node: str | None = Field(None, description="instance id that was lost, where one was")
    resumed_step: int | None = None
    last_saved_step: int = 0
    gpu_hours: float = 0.0
    smaller: bool = Field(False, description="trained with the spec's smaller values after an out of memory")
    guard: ExternalText = Field(
        "", description="what the job's guard moved aside or repaired, in words; empty: nothing"
    )


class Provenance(Document):
    """What the run was made from; resolved once at admission and the same for every attempt."""

    run_id: str
    owner: str
    spec_sha256: str
    image: str
    task_environment: str
    task_code: str
    model: str
    skyrl_version: str | None = None
    controller_version: str
    created_at: datetime
    parent: Lineage | None = Field(None, description="the run whose weights it began with")


class Manifest(Document):
    """The list of all published objects with their digests. Written last: where it exists, publication is complete."""

    run_id: str
    state: str
    parent: Lineage | None = Field(None, description="the run whose weights it began with; the baseline is theirs then")
    target: float | None = None
    ceiling: float | None = None
    attempts: list[AttemptLine]
    baseline: EvalSummary | None = None
    final: EvalSummary | None = None
    best: EvalSummary | None = None
    holdout_baseline: EvalSummary | None = None
    holdout_final: EvalSummary | None = None
    holdout_best: EvalSummary | None = Field(None, description="the best adapter, confirmed once on the hold-out")
    curve: list[EvalSummary]
    adapters: dict[str, int] = Field(description="published adapter name -> step")
    gpu_hours: float
    spend: Spend | None = None
    smaller: SmallerValues | None = Field(None, description="values that attempts marked as smaller trained with")
    objects: dict[str, FileDigest] = Field(description="key below runs/<run_id>/ -> digest; manifest.json itself not")
    at: datetime
