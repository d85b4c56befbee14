"""Read everything that the thing waited for depends on, afresh."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from nightshift.contract.spec import RunSpec
from nightshift.core.decisions.common import lost_instance
from nightshift.core.errors import TransientError, bounded
from nightshift.core.evidence import is_complete, may_end_early
from nightshift.core.hang import is_overdue
from nightshift.core.observation import UNKNOWN_CLUSTER, ClusterView, JobState, JobView, Observation, RayView
from nightshift.core.queueing import preempted
from nightshift.core.run import Attempt, Awaiting, Run, RunState
from nightshift.steps.common import gpu_hours_of, results_of
from nightshift.steps.ports import NO_LOG, Ports
from nightshift.steps.reports import outcome_of, progress_of

NOTHING = ClusterView(exists=False)


def observe(
    ports: Ports, run: Run, spec: RunSpec, awaiting: Awaiting, attempts: Sequence[Attempt], seen_counter: int
) -> Observation:
    """One observation. Signals are those since ``seen_counter``: the counter that the previous look had seen."""
    signals = tuple(ports.runs.signals_since(run.run_id, seen_counter))
    match awaiting:
        case Awaiting.LEASE:
            holder, first = ports.runs.lease_holder(run.pool), ports.runs.next_in_line(run.pool)
            return Observation(NOTHING, lease_holder=holder, next_in_line=first, signals=signals)
        case Awaiting.CLUSTER:
            cluster = ports.clusters.view(run.raycluster)
            ray = ports.jobs(run.raycluster).ray() if cluster.head_ready else RayView()
            return Observation(cluster, ray=ray, signals=signals)
        case Awaiting.FENCE:
            seen = _fence(ports, run, attempts)
            return Observation(**{**vars(seen), "signals": signals})
        case Awaiting.ATTEMPT:
            seen = _attempt(ports, run, spec, attempts[-1], attempts)
            return Observation(**{**vars(seen), "signals": signals})


def _fence(ports: Ports, run: Run, attempts: Sequence[Attempt]) -> Observation:
    cluster = ports.clusters.view(run.raycluster)
    if run.state is RunState.TEARDOWN or not cluster.exists:
        return Observation(cluster)
    jobs = ports.jobs(run.raycluster)
    job = jobs.view(attempts[-1].submission_id)
    return Observation(cluster, job=job, ray=RayView() if job.state is JobState.UNREACHABLE else jobs.ray())


def _attempt(ports: Ports, run: Run, spec: RunSpec, attempt: Attempt, attempts: Sequence[Attempt]) -> Observation:
    outcome = outcome_of(ports, run, attempt.n)
    job, cluster = _job(ports, run, attempt), _cluster(ports, run)
    over = outcome is not None or job.state.is_terminal or job.state is JobState.MISSING
    gone = lost_instance(run, Observation(cluster)) is not None or preempted(run, cluster) is not None
    gone = gone or not cluster.exists
    evidence = False
    if over or gone:
        found = results_of(ports, run.run_id, attempts)
        evidence = is_complete(found, attempt.n, spec.training.total_steps)
        if not evidence and outcome is not None and outcome.cause.is_early:
            evidence = is_complete(found, attempt.n, outcome.step) and may_end_early(found, spec, outcome.cause)
    progress = progress_of(ports, run, attempt.n)
    unreadable = progress is None and attempt.heard_at is not None
    overdue = not over and (unreadable or is_overdue(run, spec, progress, ports.now()))
    return Observation(
        cluster=cluster,
        job=job,
        witness=_witness(ports, run, attempt) if overdue else None,
        progress=progress,
        outcome=outcome,
        evidence=evidence,
        job_since=attempt.started_at if attempt.heard_at is None else None,
        gpu_hours=gpu_hours_of(attempts, ports.now()),
        attempts=tuple(attempts),
    )


def _job(ports: Ports, run: Run, attempt: Attempt) -> JobView:
    try:
        return ports.jobs(run.raycluster).view(attempt.submission_id)
    except TransientError as error:
        return JobView(JobState.UNREACHABLE, bounded(error, 300))


def _cluster(ports: Ports, run: Run) -> ClusterView:
    """A Kubernetes API that does not answer is no reason to give up a job that may well be running."""
    try:
        return ports.clusters.view(run.raycluster)
    except TransientError:
        return UNKNOWN_CLUSTER


def _witness(ports: Ports, run: Run, attempt: Attempt) -> str | None:
    """A fingerprint of the driver's log; None where it cannot be had."""
    try:
        text = ports.jobs(run.raycluster).logs(attempt.submission_id)
    except TransientError:
        return None
    return None if text.startswith(NO_LOG) else hashlib.sha256(text.encode()).hexdigest()
