"""Ray's jobs as the controller reaches them, through the endpoint. A job table lives and dies with its head's pod."""

from __future__ import annotations

from typing import Any

from nightshift.core.errors import TransientError
from nightshift.core.observation import JobState, JobView, RayView
from nightshift.steps.ports import NO_LOG
from tests.fakeworld.cluster import Fleet, Pod
from tests.fakeworld.job import Job


class RayPorts:
    """Implements ``steps.ports.Jobs`` for one RayCluster."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet, self._name = fleet, name

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        fleet, loop = self._fleet, self._fleet.loop
        if self.view(submission_id).state not in (JobState.MISSING, JobState.UNREACHABLE):
            return
        loop.touch("Ray")
        head = fleet.head_of(self._name)
        if head is None:
            raise TransientError(run_id, f"job {submission_id} could not be submitted: no answer")
        if submission_id not in head.jobs:
            job = Job(fleet, fleet.clusters[self._name], head, entrypoint.split(), submission_id)
            head.jobs[submission_id] = job
            fleet.submitted(job)
            fleet.jobs.append(job)
            fleet.submits.append((submission_id, head.name))
            loop.note(f"job {submission_id} submitted, floor {job.floor}{', smaller' if job.smaller else ''}")
        loop.wrote("submit job")

    def view(self, submission_id: str) -> JobView:
        head = self._asked()
        if head is None:
            return JobView(JobState.UNREACHABLE, "connection refused")
        job = head.jobs.get(submission_id)
        return JobView(JobState.MISSING) if job is None else JobView(job.state, job.message, (head.name, job.n))

    def ray(self) -> RayView:
        head = self._asked()
        if head is None:
            return RayView()
        now, pods = self._fleet.loop.time, self._fleet.clusters[self._name].pods
        workers = [p for p in pods if not p.is_head and p.ready_at <= now]
        living = sum(3 for j in head.jobs.values() if j.lives or j.actors_until > now)
        return RayView(
            {p.name: 2 for p in workers},
            living,
            placement_groups=int(living > 0),
            dying_by_ip={p.name: 1 for p in workers if any(j.holds(p) for j in head.jobs.values())},
            drivers=frozenset((head.name, j.n) for j in head.jobs.values() if j.lives),
        )

    def stop(self, submission_id: str) -> None:
        head, loop = self._asked(), self._fleet.loop
        job = head.jobs.get(submission_id) if head is not None else None
        if job is not None and job.lives and loop.rng.random() >= self._fleet.job_faults.ignores_stop:
            loop.at(loop.rng.uniform(0.5, 15), lambda: job.end(None, JobState.STOPPED, "stopped"))
        loop.wrote("stop job")

    def logs(self, submission_id: str) -> str:
        head = self._asked()
        job = head.jobs.get(submission_id) if head is not None else None
        return f"{NO_LOG}nobody answers" if job is None else job.log

    def records(self) -> dict[str, Any]:
        return {}

    def infra_logs(self, seconds: float) -> str:
        return "infra"

    def stacks(self, seconds: float) -> str:
        return "stacks"

    def _asked(self) -> Pod | None:
        try:
            self._fleet.loop.touch("Ray")
        except TransientError:  # the adapter turns every failed read into "no answer"
            return None
        return self._fleet.head_of(self._name)
