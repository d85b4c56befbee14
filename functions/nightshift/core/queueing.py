"""A run's place in a queue: whom it waits for at its pool, and what Kueue says about its RayCluster.

Kueue (kueue.x-k8s.io) keeps one Workload for a RayCluster that names a LocalQueue. It creates the RayCluster suspended,
admits the Workload when the whole of it fits the quota, and suspends it again, head and all, when it evicts it. What counts
are the Workload's conditions and the moment of its admission: pods come and go for other reasons too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from nightshift.core.errors import bounded
from nightshift.core.observation import ClusterView, WorkloadView
from nightshift.core.run import Run

QUEUE_DEADLINE = timedelta(days=30)
"""How long a run may stand in a queue that moves before somebody is asked about it."""

REFUSALS = frozenset({"Inadmissible", "Misconfigured", "NoMatchingFlavor", "ExceedsMaxQuota", "Suspended"})
"""Reasons of QuotaReserved=False with which waiting alone cannot help. The first is what Kueue says unless a feature gate
makes it say more."""

DEACTIVATED = "Deactivated"
"""Reason, or its beginning, of an eviction that only a person takes back."""

NEVER_FITS = "maximum capacity"
"""Part of Kueue's sentence about a request that is larger than the whole quota; its reason is plain Pending."""

MAX_SAID = 300


class Standing(StrEnum):
    """How a run stands with Kueue."""

    UNKNOWN = "has no Workload"
    REFUSED = "cannot be admitted as things are"
    WAITING = "waits for quota"
    EVICTED = "was evicted and waits to be admitted again"
    ADMITTED = "is admitted"


STUCK = frozenset({Standing.UNKNOWN, Standing.REFUSED})
"""Where waiting alone does not help, unless somebody is repairing the queue just now."""


def workload_view(document: Mapping[str, Any]) -> WorkloadView:
    """A Workload (v1beta1 or v1beta2) as JSON, read; anything that is not there counts as not so."""
    status, spec = _mapping(document.get("status")), _mapping(document.get("spec"))
    listed = status.get("conditions")
    conditions = {str(c.get("type")): c for c in (listed if isinstance(listed, list) else []) if isinstance(c, dict)}
    quota, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
    admitted, preempted = conditions.get("Admitted", {}), conditions.get("Preempted", {})
    is_evicted = _true(evicted)
    refused = None
    if spec.get("active") is False or (is_evicted and str(evicted.get("reason", "")).startswith(DEACTIVATED)):
        refused = DEACTIVATED
    elif quota.get("status") == "False" and (
        quota.get("reason") in REFUSALS or NEVER_FITS in str(quota.get("message", ""))
    ):
        refused = str(quota.get("reason"))
    telling = [c for c in (evicted, preempted) if _true(c)] or [c for c in (quota, admitted) if not _true(c)]
    return WorkloadView(
        quota_reserved=_true(quota),
        admitted=_true(admitted) and not is_evicted,
        admitted_at=_moment(admitted.get("lastTransitionTime")) if _true(admitted) else None,
        evicted=bounded(str(evicted.get("reason", "")), 100) if is_evicted else None,
        refused=bounded(refused, 100) if refused else None,
        pods_ready=_true(conditions.get("PodsReady", {})),
        message=bounded("; ".join(str(c["message"]) for c in telling if c.get("message")), MAX_SAID),
    )


def standing(cluster: ClusterView) -> Standing:
    """How a RayCluster that names a queue stands with Kueue."""
    workload = cluster.workload
    if workload is None:
        return Standing.UNKNOWN
    if workload.refused is not None and not workload.admitted:
        return Standing.REFUSED
    if workload.evicted is not None:
        return Standing.EVICTED
    return Standing.ADMITTED if workload.admitted else Standing.WAITING


def said(run: Run, cluster: ClusterView) -> str:
    """One sentence about the wait; what stands behind the colon may change often."""
    where, workload = f"the run {standing(cluster)} in Kueue's queue {run.queue}", cluster.workload
    if workload is None:
        return f"{where}: is Kueue there, does it take RayClusters, and may the controller read workloads?"
    details = [d for d in (workload.evicted or workload.refused, workload.message) if d]
    return f"{where}: {', '.join(details)}" if details else where


def is_stuck(run: Run, now: datetime, minutes: int) -> bool:
    """Kueue has been saying for so long that the run cannot be admitted; an answer to a question starts the time anew."""
    if run.stuck_since is None:
        return False
    return now - max(run.stuck_since, run.waiting_since or run.stuck_since) > timedelta(minutes=minutes)


def is_overdue(run: Run, now: datetime) -> bool:
    """The run stands in a queue for so long that somebody should know."""
    return now - (run.waiting_since or now) > QUEUE_DEADLINE


def since_admission(run: Run, cluster: ClusterView) -> Run:
    """The run as its wait for nodes sees it: only from its admission on can nodes come, and a question about the queue has
    answered itself. Not to be stored."""
    at = cluster.workload.admitted_at if run.queue is not None and cluster.workload is not None else None
    if at is None:
        return run
    changes: dict[str, Any] = {}
    if run.waiting_since is not None and at > run.waiting_since:
        changes["waiting_since"] = at
    if _outdated(run, cluster):
        changes["question"] = None
    return run.model_copy(update=changes)


def _outdated(run: Run, cluster: ClusterView) -> bool:
    """An open question from before the run's admission: what it asked about is over."""
    question, workload = run.question, cluster.workload
    if question is None or question.given_up_by is not None or workload is None or not workload.admitted:
        return False
    return workload.admitted_at is not None and question.asked_at < workload.admitted_at


def noted(run: Run, cluster: ClusterView, now: datetime) -> dict[str, Any]:
    """Changes to the record of a run that waits for a RayCluster in a Kueue queue: since when it is stuck, what it waits
    for, and that a question is answered by what happened. Empty where nothing changed."""
    if run.queue is None or not cluster.exists:
        return {}
    stands = standing(cluster)
    moving = stands not in STUCK
    changes: dict[str, Any] = {
        "stuck_since": None if moving else run.stuck_since or now,
        "waiting_for": "" if stands is Standing.ADMITTED else said(run, cluster),
    }
    question = run.question
    repaired = stands in (Standing.WAITING, Standing.EVICTED) and not is_overdue(run, now)
    if question is not None and question.given_up_by is None and (repaired or _outdated(run, cluster)):
        changes["question"] = None
    return {name: value for name, value in changes.items() if value != getattr(run, name)}


def is_news(before: str, after: str) -> bool:
    """Whether a wait's text changed in what it is about, not only in Kueue's numbers behind the colon."""
    return before.partition(":")[0] != after.partition(":")[0]


def preempted(run: Run, cluster: ClusterView) -> str | None:
    """Why the whole RayCluster of the current attempt is gone or going by Kueue's will; None where it is not, or where
    nothing is known. Never to be read from pods that are missing: nodes die too."""
    if run.queue is None:
        return None
    if not cluster.exists:
        return "the RayCluster is gone, as task governance deletes a whole one that it preempts"
    workload = cluster.workload
    if workload is not None and workload.evicted is not None:
        return f"Kueue evicted the RayCluster ({workload.evicted}): {workload.message or 'it does not say why'}"
    if cluster.suspended:
        return "the RayCluster is suspended" + (f": {workload.message}" if workload and workload.message else "")
    if workload is None or workload.admitted_at is None:
        return None
    if run.admitted_at is not None and workload.admitted_at != run.admitted_at:
        return f"Kueue evicted the RayCluster and admitted it again at {workload.admitted_at:%Y-%m-%d %H:%M:%S} UTC"
    return None


def nothing_left(run: Run, cluster: ClusterView) -> str | None:
    """Why nothing of the old attempt can live any more, without asking Ray: a suspended RayCluster has lost all of its pods
    before Kueue gives its quota away, and so before it is admitted again."""
    if run.queue is None or not cluster.exists:
        return None
    here = [p for p in cluster.pods if p.instance_id not in cluster.silent_instances]  # nobody confirms the others' end
    if cluster.suspended and not here:
        return "the RayCluster is suspended and has no pods"
    workload = cluster.workload
    if workload is None or not workload.admitted or run.admitted_at is None:
        return None
    if workload.admitted_at is not None and workload.admitted_at != run.admitted_at:
        return "all pods are of a later admission by Kueue"
    return None


def admission(run: Run, cluster: ClusterView, now: datetime) -> dict[str, Any]:
    """Changes to the record when the RayCluster is whole: the admission that its next attempt runs under. Wall hours count
    from the first one, and stand still from the end of an attempt until the next admission."""
    if run.queue is None or cluster.workload is None:
        return {}
    at = cluster.workload.admitted_at or now
    changes: dict[str, Any] = {"admitted_at": at, "stuck_since": None, "waiting_for": ""}
    if run.leased_at is None:
        changes["leased_at"] = at
    elif run.admitted_at is not None and at > run.admitted_at and run.recovering_since is not None:
        changes["leased_at"] = run.leased_at + max(timedelta(), at - run.recovering_since)
    return changes


def holder_text(run: Run, holder: str | None, first: str | None) -> str:
    """Whom a run waits for at its pool."""
    if run.queue is not None:
        return f"Waiting for Kueue's queue {run.queue}."
    if holder is not None and holder != run.run_id:
        return f"Waiting for pool {run.pool}, held by {holder}."
    if first is not None and first != run.run_id:
        return f"Waiting for pool {run.pool}, behind {first}."
    return f"Waiting for pool {run.pool}."


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _true(condition: Mapping[str, Any]) -> bool:
    return condition.get("status") == "True"


def _moment(value: Any) -> datetime | None:
    """A time as Kubernetes writes it; None for anything else."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
