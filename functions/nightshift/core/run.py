"""The run and its attempts, as the controller keeps them."""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum

from pydantic import Field

from nightshift.contract.api import Retry
from nightshift.contract.base import Document, ExternalText
from nightshift.contract.control import ControlCommand
from nightshift.contract.costs import Span
from nightshift.contract.job import GuardReport
from nightshift.contract.lineage import Lineage
from nightshift.contract.spec import Priority
from nightshift.core.causes import EndCause


class RunState(StrEnum):
    """Where a run is; the last four are final."""

    ADMITTED = "admitted"
    QUEUED = "queued"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    RECOVERING = "recovering"
    PUBLISHING = "publishing"
    TEARDOWN = "teardown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.REJECTED})


class Awaiting(StrEnum):
    """What a shift waits for."""

    LEASE = "lease"
    CLUSTER = "cluster"
    FENCE = "fence"
    ATTEMPT = "attempt"


class SignalKind(StrEnum):
    """A reason to look now."""

    NODE_HEALTH = "hyperpod_node_health"
    CLUSTER_EVENT = "hyperpod_cluster_event"
    CLUSTER_STATE = "hyperpod_cluster_state"
    OUTCOME = "outcome"
    LEASE_FREE = "lease_free"
    CANCEL = "cancel"
    ANSWER = "answer"
    RECONCILE = "reconcile"
    TIMER = "timer"

    @property
    def is_node_event(self) -> bool:
        return self in (SignalKind.NODE_HEALTH, SignalKind.CLUSTER_EVENT)


class Signal(Document):
    """One hint, as recorded: it wakes, and everything is read afresh then."""

    kind: SignalKind
    counter: int = Field(0, ge=0)
    instance_id: str | None = None
    detail: ExternalText = ""
    at: datetime


class Question(Document):
    """What a person is asked, and until when the run waits for an answer; then it ends for ``cause``.

    "Go on" clears the question; "give up" leaves it with the name of who said so."""

    cause: EndCause
    text: ExternalText
    asked_at: datetime
    until: datetime
    given_up_by: ExternalText | None = None


class Attempt(Document):
    """One Ray job of a run."""

    n: int = Field(ge=1)
    submission_id: str
    floor: int = Field(0, ge=0, description="the step below which this attempt must not resume")
    started_at: datetime
    running_at: datetime | None = None
    heard_at: datetime | None = Field(None, description="when its first progress was seen")
    ended_at: datetime | None = None
    end_cause: EndCause | None = None
    signal: str | None = None
    message: ExternalText = ""
    node: str | None = Field(None, description="the instance that is blamed for the end, where one is")
    smaller: bool = Field(False, description="runs with the spec's smaller values after an out of memory")
    resumed_step: int | None = None
    last_saved_step: int = 0
    guard: GuardReport | None = Field(None, description="what the job's guard did before the trainer started")
    gpus: int = 0

    def gpu_hours(self, now: datetime) -> float:
        """Hours that this attempt's GPUs were attributed to it."""
        return self.gpus * max(0.0, ((self.ended_at or now) - self.started_at).total_seconds()) / 3_600


class Run(Document):
    """The run record. ``k`` is the number of the only execution that may write; ``look_seq`` and ``signal_counter``
    only rise; ``seen_counter`` is the counter that the last look had seen."""

    run_id: str
    k: int = Field(ge=1)
    state: RunState
    owner: str
    pool: str
    spec_sha256: str
    image: str
    parent: Lineage | None = Field(None, description="whose weights it begins with, as resolved at its admission")
    hyperpod_cluster: str
    namespace: str
    raycluster: str
    created_at: datetime
    total_steps: int
    attempt: int = 0
    step: int = 0
    verified_step: int = 0
    recoveries_without_progress: int = 0
    recovery_floor: int = Field(
        0, description="verified step at the last recovery: progress beyond it resets the count"
    )
    instances: tuple[str, ...] = Field((), description="instances that host the run's pods, as last seen")
    lost_instance: str | None = None
    announced: tuple[str, ...] = Field((), description="instances of the run that a node event was about")
    taken_away: tuple[str, ...] = Field(
        (), description="instances from which Kubernetes took a pod of the current attempt although they were well"
    )
    leased_at: datetime | None = Field(
        None, description="when the run began to hold its pool: wall hours count from here"
    )
    dollars_per_hour: float | None = Field(None, description="list price of all its nodes, as known at intake")
    prices_as_of: date | None = Field(None, description="day of the oldest price in it")
    signal_counter: int = 0
    seen_counter: int = 0
    look_seq: int = 0
    shift_seq: int = 0
    shift_first_look: int = 0
    waiting_since: datetime | None = None
    recovering_since: datetime | None = None
    cancel_requested: bool = False
    cancel_requested_at: datetime | None = None
    cancel_now: bool = Field(False, description="no checkpoint of the job is waited for")
    question: Question | None = None
    blamed: tuple[str, ...] = Field((), description="instances blamed for ended attempts, oldest first, with repeats")
    excluded: tuple[str, ...] = Field((), description="instances on which no pod of the run may be placed any more")
    smaller: bool = Field(False, description="further attempts run with the spec's smaller values")
    fence_level: int = Field(0, ge=0, le=2, description="0: the job was asked to stop; 1: pods deleted; 2: recreated")
    fence_level_at: datetime | None = None
    priority: Priority = Priority.NORMAL
    queue: str | None = Field(
        None, description="Kueue LocalQueue that admits the run's RayCluster, in place of a lease"
    )
    admitted_at: datetime | None = Field(
        None, description="when Kueue admitted the RayCluster that the current attempt runs on, by Kueue's clock"
    )
    stuck_since: datetime | None = Field(
        None, description="since when Kueue says that the run cannot be admitted as things are"
    )
    waiting_for: ExternalText = Field("", description="whom or what the run waits for in its queue")
    scalings: int = Field(0, ge=0, description="UpdateCluster calls that were made for it")
    history_base: int = Field(0, description="shift_seq when execution k began: its history grows with the difference")
    step_times: tuple[float, ...] = Field((), description="seconds of the last steps, for the run's own pace")
    witness: str | None = Field(
        None, description="fingerprint of the driver's log, asked for while progress is overdue"
    )
    witness_at: datetime | None = Field(None, description="when the log was last seen to change, or first asked for")
    control_seq: int = 0
    control_command: ControlCommand | None = None
    verdict: RunState | None = Field(None, description="the final state that is being worked towards")
    cause: EndCause | None = None
    sentence: ExternalText = ""
    success: float | None = None
    eta_seconds: float | None = None
    noticed: tuple[str, ...] = Field(
        (), description="keys of what was told once: first eval, target, limits that are near"
    )
    published: bool = False
    model_package: str | None = Field(None, description="ARN in SageMaker's model registry")
    registration_problem: ExternalText = Field("", description="why there is no model package although one was wanted")
    ended_at: datetime | None = Field(None, description="when the record became final")
    reopenings: int = Field(0, ge=0, description="how often the run was over and a person had it go on")
    reopened_at: datetime | None = None
    held_before: float = Field(0.0, ge=0, description="seconds for which it held its nodes before it was reopened")
    held_earlier: tuple[Span, ...] = Field((), description="when that was; of a run reopened long ago not all is kept")
    project: str | None = Field(None, description="the spec's: for whom it is paid")
    retry: Retry | None = Field(None, description="what its retries change of its spec, all of them together")
