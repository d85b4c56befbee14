"""The outside world as the steps see it. Adapters implement these; tests replace them only to produce errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from nightshift.contract.api import AuditLine, RunLine
from nightshift.contract.control import Control
from nightshift.contract.evals import EvalSummary
from nightshift.contract.events import FieldError, StageEvent
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, Progress
from nightshift.contract.reading import MAX_DOCUMENT
from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import HyperPodView
from nightshift.core.causes import EndCause
from nightshift.core.costs import CapacityChange
from nightshift.core.errors import NightshiftError
from nightshift.core.measures import Measure
from nightshift.core.observation import ClusterView, JobView, OwnedCluster, RayView
from nightshift.core.reconcile import ExecutionStatus, Lease, OpenRun
from nightshift.core.registration import Registration
from nightshift.core.run import Attempt, Run, RunState, Signal
from nightshift.core.scaling import PoolScaling

NO_LOG = "no driver log: "
"""What a log that cannot be had begins with; the reason follows."""


@dataclass(frozen=True)
class Nap:
    """A registered token: answering it ends the nap. ``interval`` seconds go back into the state machine with it."""

    token: str
    interval: int
    last_look_at: datetime | None


@dataclass(frozen=True)
class Rejection:
    """A refused request, as recorded."""

    digest: str
    run_id: str
    owner: str
    errors: list[FieldError]
    at: datetime


@dataclass(frozen=True)
class NotBelieved:
    """A stored object that was treated as missing, and why."""

    key: str
    why: str


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Page(Generic[T_co]):
    """Some items of a list; ``after`` is the position from which the next page goes on, None on the last one."""

    items: tuple[T_co, ...]
    after: str | None = None


class RunStore(Protocol):
    """The table. Every write of a step is conditional on the run's k and on the run not being over."""

    def create(self, run: Run) -> tuple[Run, bool]:
        """Put a new run; answers the run that is there, and whether it is this one or one from before."""

    def get(self, run_id: str) -> Run | None: ...

    def load(self, run_id: str, k: int) -> Run:
        """Raises StaleExecution."""

    def update(self, run: Run, look_seq: int | None = None, **changes: Any) -> Run:
        """Write the named fields (None removes one); with ``look_seq`` only if no later look began. ``shift_seq`` is
        counted up by one whatever number is given, so that no repeat uses a number again. Raises StaleExecution."""

    def enqueue(self, run: Run, **changes: Any) -> Run:
        """Into the queue of its pool: a run takes a place there only once its execution runs. Raises StaleExecution."""

    def succeed(self, run: Run) -> Run:
        """The next k, whose history begins at the run's ``shift_seq``, in one write. Raises StaleExecution."""

    def reopen(self, run: Run, **changes: Any) -> Run | None:
        """A run that failed or was cancelled goes on under its next k: ``changes`` (None removes one, ``reopened_at`` is
        needed), its place in every index and its current attempt change in one transaction. None, and nothing written, while
        its last message has not been accepted. Raises StaleExecution where it is not over, or another k is."""

    def begin_look(self, run_id: str, k: int, now: datetime, interval: int = 60, entry: str = "") -> Run:
        """Count the look and drop the registered token, in one write. ``entry`` sorts looks by when their token was made:
        one that is older than the last look's is refused, since nobody waits for its token any more. ``interval`` is
        in seconds, until another look follows if this one dies. Raises StaleExecution."""

    def nap(self, run: Run, token: str, interval: int, now: datetime, counter: int, look_seq: int) -> bool:
        """Register the token if the signal counter is still ``counter`` and no look later than ``look_seq`` began; False
        otherwise."""

    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        """Count a signal and read the registered token in one write, and record the signal under its number."""

    def signals_since(self, run_id: str, counter: int) -> Sequence[Signal]: ...

    def claim_attempt(self, run: Run, attempt: Attempt) -> Run | None:
        """Make ``attempt`` the run's current one, once; None if that was done before. Raises StaleExecution."""

    def save_attempt(self, run: Run, attempt: Attempt, look_seq: int | None = None) -> bool:
        """Write an attempt that has not ended; False, and nothing written, where it has, or where a later k wrote it: an
        end is never rewritten. With ``look_seq``, which an end needs, only if no later look began; raises StaleExecution
        then."""

    def correct_cause(self, run: Run, attempt: int, wrong: EndCause, right: EndCause) -> None:
        """An ended attempt's cause, once better known; nothing where it is not ``wrong`` any more."""

    def attempts(self, run_id: str) -> Sequence[Attempt]: ...

    def audit(self, run_id: str, line: AuditLine) -> None: ...

    def audit_trail(self, run_id: str, limit: int) -> Sequence[AuditLine]:
        """Newest last."""

    def lease_holder(self, pool: str) -> str | None: ...

    def next_in_line(self, pool: str) -> str | None:
        """The queued run of the pool that is next: urgent ones first, then the oldest."""

    def take_lease(self, run: Run, now: datetime) -> bool:
        """The pool's lease and the run's state in one transaction; False where somebody else holds it."""

    def finish(self, run: Run, state: RunState, **changes: Any) -> Run:
        """The run's last write: its final state, and the lease given back if it is this run's, in one transaction.
        Raises StaleExecution where the run is over already."""

    def active_on(self, hyperpod_cluster: str) -> Sequence[Run]:
        """Runs that are not over on that HyperPod cluster."""

    def open_runs(self, limit: int) -> Sequence[OpenRun]:
        """Every run that is not over with the time by which its next look is due, oldest first; also one whose look died
        half-way and one whose execution never started. What an index says may be seconds old."""

    def leases(self) -> Sequence[Lease]:
        """Every lease that is held."""

    def free_since(self, group: str, now: datetime) -> datetime:
        """When an instance group was first seen to be of use to nobody: ``now``, unless it was noted before."""

    def needed_again(self, group: str) -> None:
        """Forget that. Idempotent."""

    def release_lease(self, lease: Lease) -> bool:
        """Give back a lease whose holder is over or has no record, in one transaction that checks both; False, and nothing
        written, where the holder is open or the lease is not that one any more."""

    def untold(self, limit: int) -> Sequence[str]:
        """Ids of runs that are over and whose final message was not accepted yet, oldest first: ``finish`` lists a run
        there, ``told`` takes it off."""

    def told(self, run_id: str) -> None:
        """The final message was accepted. Idempotent; nothing where the run is not over or is told already."""

    def reject(self, rejection: Rejection) -> bool:
        """Record a refused request; False if the same one is recorded already."""

    def rejections(self, run_id: str) -> Sequence[Rejection]: ...


class Listings(Protocol):
    """Lists for people, a page a call: at most ``limit`` items are read. Steps of a run need none of them. What an index says
    may be seconds old."""

    def runs_of(self, owner: str, after: str | None, limit: int) -> Page[RunLine]:
        """Newest first."""

    def runs_by_age(self, over: bool, after: str | None, limit: int) -> Page[RunLine]:
        """Those that are over, or those that are not; newest first."""

    def records(self, run_ids: Sequence[str]) -> Sequence[Run]:
        """Of at most 100 runs, in any order. What is gone or cannot be read is left out. Raises TransientError."""

    def line_of(self, pool: str, after: str | None, limit: int) -> Page[Run]:
        """Who waits for the pool, in the order in which they get it."""

    def lease_of(self, pool: str) -> Lease | None: ...

    def events(self, run_id: str, newest_first: bool, after: str | None, limit: int) -> Page[AuditLine]:
        """A run's audit trail."""


class CapacityLog(Protocol):
    """What instances HyperPod had: an entry a change, never rewritten."""

    def capacity_at(self, hyperpod_cluster: str, at: datetime) -> CapacityChange | None:
        """The last change up to a moment; None where nothing is known of it."""

    def capacity_changed(self, hyperpod_cluster: str, change: CapacityChange) -> None: ...

    def capacity_changes(
        self, hyperpod_cluster: str, after: datetime, before: datetime, limit: int
    ) -> Page[CapacityChange]:
        """Changes after one moment and up to another, oldest first; a page's ``after`` is a moment."""


class Downloads(Protocol):
    """Objects of a run for people to read."""

    def page(self, run_id: str, after: str | None, limit: int) -> Page[tuple[str, int]]:
        """(key below the run's prefix, bytes), by key."""

    def address(self, run_id: str, key: str, seconds: int) -> str:
        """From where anybody may read that object for so long."""


class Dashboards(Protocol):
    """Ray's dashboards behind the endpoint."""

    def address(self, raycluster: str) -> str:
        """A presigned one, good for a quarter of an hour and one session. Raises PermanentError, TransientError."""


class Clusters(Protocol):
    """RayClusters, through the Kubernetes API."""

    def create(self, spec: RunSpec, owner: str, excluded: Sequence[str] = ()) -> bool:
        """False where the run's RayCluster is there already; its placement is then as it was, see ``exclude``. Raises
        PermanentError if the API refuses the manifest."""

    def view(self, name: str) -> ClusterView: ...

    def delete(self, name: str) -> None:
        """Idempotent."""

    def owned(self) -> Sequence[OwnedCluster]:
        """Every RayCluster of the namespace that carries a run's label and is not being deleted."""

    def occupied(self) -> Mapping[str, Sequence[str]]:
        """Instance group -> pods, of any namespace, on its nodes, that are neither over nor on every node anyway (DaemonSets). A
        node whose group is not known counts for the group ``""``. Bounded to 5 names a group."""

    def delete_pods(
        self,
        name: str,
        instances: frozenset[str] | None = None,
        created_before: datetime | None = None,
        force: bool = False,
    ) -> int:
        """Delete the RayCluster's pods: on these instances only, and only those made before a moment, where given. KubeRay
        makes new ones as long as the RayCluster exists. ``force`` also takes pods out of the API that are being deleted
        already: for a node that will not confirm. Says how many it asked to go. Idempotent."""

    def exclude(self, spec: RunSpec, owner: str, excluded: Sequence[str]) -> bool:
        """Keep the pods of the run's RayCluster off these instances: its templates are changed, and pods that sit there
        are deleted. False where nothing was left to change, also where there is no RayCluster. Idempotent."""

    def pod_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The RayCluster's pods for a person: placement, conditions, how containers ended. No environment. Bounded."""

    def event_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Kubernetes events about the RayCluster and its pods, past ones included, newest last. Bounded."""

    def node_records(self, instances: frozenset[str]) -> Sequence[Mapping[str, Any]]:
        """Labels, taints and conditions of those instances' nodes."""


class Jobs(Protocol):
    """Ray jobs of one RayCluster, through the authenticated endpoint."""

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        """Submit, or adopt the job where it is there already. Raises TransientError."""

    def view(self, submission_id: str) -> JobView: ...

    def ray(self) -> RayView: ...

    def stop(self, submission_id: str) -> None:
        """Ask the job to stop; what is unknown or already over is no error."""

    def logs(self, submission_id: str) -> str:
        """The driver log's tail, bounded; ``NO_LOG`` and the reason where there is none."""

    def records(self) -> Mapping[str, Any]:
        """Ray's nodes, actors, placement groups and jobs for a person; a sentence in place of what cannot be had."""

    def infra_logs(self, seconds: float) -> str:
        """Ends of the raylets', the GCS's and the workers' own logs, as far as ``seconds`` go; a sentence for the rest."""

    def stacks(self, seconds: float) -> str:
        """Stacks of the driver's and the workers' threads, as far as ``seconds`` go and the head's dashboard may dump them;
        a sentence for the rest."""


class HyperPod(Protocol):
    def view(self) -> HyperPodView: ...

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        """Ask HyperPod to replace instances: instance -> why it will not, empty where it does or has done so. Idempotent.
        Raises TransientError."""

    def resize(self, targets: Mapping[str, int]) -> str:
        """Instance group -> how many instances it is to have; groups that are not named stay as they are. Why HyperPod refuses;
        empty where it accepts, or where they are meant to have so many already. Raises TransientError."""


class Artifacts(Protocol):
    """The bucket, for one run at a time. Unreadable documents are reported as None, with the object's name logged."""

    def spec(self, run_id: str) -> RunSpec: ...

    def put_spec(self, spec: RunSpec) -> None: ...

    def progress(self, run_id: str, attempt: int) -> Progress | None: ...

    def outcome(self, run_id: str, attempt: int) -> Outcome | None: ...

    def summaries(self, run_id: str) -> Sequence[EvalSummary]: ...

    def curve(self, run_id: str, limit: int) -> Sequence[EvalSummary]:
        """Summaries of the fixed set, evenly thinned to ``limit`` of them; the newest is among them."""

    def exports(self, run_id: str) -> Sequence[ExportRecord]: ...

    def control(self, control: Control) -> None: ...

    def put(self, run_id: str, key: str, body: bytes, content_type: str) -> FileDigest: ...

    def copy_export(self, record: ExportRecord, folder: str) -> dict[str, FileDigest]:
        """Copy an export's files into ``folder``; key -> digest."""

    def digests(self, run_id: str) -> dict[str, FileDigest]:
        """Key below the run's prefix -> digest of the bytes as they are stored now. Exports, which a long run has by
        the hundred, are not read again: theirs are what their writer computed, and their sizes are checked."""

    def read_small(self, key: str, limit: int = MAX_DOCUMENT, version: str = "") -> bytes | None:
        """None where it is missing or larger than ``limit`` bytes. ``version``: S3's, of the object; none for the newest."""

    def manifest(self, run_id: str) -> bytes | None: ...

    def doubt(self, key: str, why: str) -> None:
        """Log an object that could be read and is not believed all the same."""

    def not_believed(self) -> Sequence[NotBelieved]:
        """Every object so far that was not believed; a step that decides without it tells of it."""

    def links(self, run_id: str) -> dict[str, str]:
        """Label -> address, for people."""


class Registry(Protocol):
    """A model registry."""

    def register(self, wanted: Registration) -> str:
        """The ARN of the run's one model package: made now, or by a call before. Raises NightshiftError."""


class Stages(Protocol):
    """Stage events to EventBridge. A message that cannot be sent never touches the run."""

    def emit(self, event: StageEvent) -> bool:
        """False where it was not accepted."""


class Executions(Protocol):
    """Step Functions."""

    def start(self, name: str, payload: dict[str, Any]) -> None:
        """Start a training_run; one that is there already is no error."""

    def status(self, name: str) -> ExecutionStatus | None:
        """Of a training_run; None where there is none of that name. Raises TransientError."""

    def answer(self, token: str, payload: dict[str, Any]) -> bool:
        """SendTaskSuccess; False where the token is not waited for any more."""


Together = Callable[[Mapping[str, Callable[[], None]], float], Mapping[str, str]]
"""Do named things at once, within so many seconds in all; answers, by name, why one was not done. Raises nothing."""


def one_by_one(calls: Mapping[str, Callable[[], None]], seconds: float) -> Mapping[str, str]:
    """A ``Together`` without threads and without a deadline, in the given order."""
    failed: dict[str, str] = {}
    for name, call in calls.items():
        try:
            call()
        except NightshiftError as error:
            failed[name] = str(error)
    return failed


def unmeasured(_: Measure) -> None:
    """For functions and tests that measure nothing."""


@dataclass(frozen=True)
class Ports:
    """Everything that the controller's steps may touch."""

    runs: RunStore
    clusters: Clusters
    jobs: Callable[[str], Jobs]
    """Jobs of a RayCluster by its name; a client is made for each call, since its cookie is never renewed."""
    hyperpod: HyperPod
    artifacts: Artifacts
    stages: Stages
    executions: Executions
    now: Callable[[], datetime]
    sleep: Callable[[float], None]
    remaining: Callable[[], float]
    """Seconds that this invocation may still run."""
    together: Together = one_by_one
    scaling: Mapping[str, PoolScaling] = field(default_factory=dict)
    """Pool -> its instance groups that may be scaled; empty: none ever is."""
    registry: Registry | None = None
    """None where a function registers nothing."""
    measure: Callable[[Measure], None] = unmeasured
    """Take one value of a metric. Raises nothing and writes nowhere but to the function's output."""
