"""The invariants. Each speaks of the world's own truth, never of what the code under test says about itself; where the record
is read, it is for what was promised in it."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

from nightshift.core.budgets import REPEATS_DETERMINISTIC, REPEATS_OTHER
from nightshift.core.causes import POLICIES, Action, EndCause, from_outcome
from nightshift.core.decisions.cancelled import CANCEL_GRACE
from nightshift.core.decisions.fence import LEVEL_DEADLINES
from nightshift.core.history import parent_at_most
from nightshift.core.run import Attempt, Question, Run, RunState
from nightshift.steps.ports import Nap
from tests.fakeworld.cluster import Fleet, Pod
from tests.fakeworld.job import Job

if TYPE_CHECKING:
    from tests.fakeworld.world import World

WAKES_WITHIN = 12.0
"""Seconds from a counted signal to the look it causes, where no function failed on the way."""

INTERVAL = 60.0
DEAD_TOKEN_AFTER = 2.5
LATE = timedelta(minutes=50)
"""From a deadline until what it ends is over: an outage of 15 minutes, repeats, and naps that nobody ended."""

LINE_MOVES = 60.0
"""Seconds that a look may have gone on since it saw who is first in line."""

TURNS_OVER = 30
"""Turns of a parent between the bound of its history and the next place where it may be told to start its successor: a step
that is tried again and again makes one each time."""


class Violation(Exception):
    """``name`` is the invariant's."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name, self.what = name, what


class Watch:
    """Keeps the first ``Violation``; the world ends with it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.found: Violation | None = None
        self.stopped = False
        self._seen: dict[str, int] = defaultdict(int)
        self._stale: dict[str, bool] = {}
        self._claims: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        self._ends: dict[tuple[str, EndCause, int], int] = defaultdict(int)
        self._final: dict[str, RunState] = {}
        self._queued_at: dict[str, float] = {}
        self._leased_at: dict[str, float] = {}
        self._open: list[Job] = []
        self._asked: dict[str, list[Question]] = defaultdict(list)

    def fail(self, name: str, what: str) -> None:
        if self.found is None:
            self.found = Violation(name, what)
            self._world.note(f"VIOLATED {self.found}")

    # signals ----------------------------------------------------------------------------------------------------

    def observed(self, run_id: str) -> None:
        """Everything that is read from now on is newer than each signal counted so far."""
        self._seen[run_id] = self._world.table.items[run_id].run.signal_counter

    def napped(self, run_id: str, token: str) -> None:
        """A late repeat of an older look registers its own token, which nobody waits for any more: a signal is then seen
        when the nap that it replaced is over, so within one interval all the same."""
        self._stale[run_id] = token in self._world.machines.left
        counter = self._world.table.items[run_id].run.signal_counter
        if counter > self._seen[run_id]:
            self.fail("signals are never lost", f"{run_id} sleeps over signal {counter}")

    def bumped(self, run_id: str, nap: Nap | None) -> None:
        world, counter = self._world, self._world.table.items[run_id].run.signal_counter
        if nap is None or self.stopped or world.table.items[run_id].run.state.is_final:
            return
        failures, left = world.loop.failures, world.machines.left.get(nap.token)
        stale = self._stale.get(run_id, False)
        calm = not failures and not world.loop.rates.slow and not stale
        if calm and left is not None and world.time - left > DEAD_TOKEN_AFTER:
            self.fail("signals are never lost", f"{run_id}: signal {counter} met {nap.token}, which nobody waits for")

        def check() -> None:
            item = world.table.items[run_id]
            asleep = self._seen[run_id] < counter and item.token == nap.token
            if asleep and failures == world.loop.failures and not world.loop.rates.slow and not self.stopped:
                self.fail("signals are never lost", f"{run_id}: signal {counter} woke nobody")

        world.at(WAKES_WITHIN + (INTERVAL if stale else 0.0), check, background=True)

    # the line before a pool -------------------------------------------------------------------------------------

    def queued(self, run_id: str) -> None:
        self._queued_at.setdefault(run_id, self._world.time)

    def line(self, pool: str) -> list[str]:
        """Runs that stand in line, the next one first: urgent ones, then by when they were asked for."""
        runs = [
            i.run for i in self._world.table.items.values() if i.run.state is RunState.QUEUED and i.run.pool == pool
        ]
        return [r.run_id for r in sorted(runs, key=lambda r: (r.priority != "urgent", r.created_at, r.run_id))]

    def leased(self, run_id: str, line: list[str]) -> None:
        self._leased_at.setdefault(run_id, self._world.time)
        before = line[: line.index(run_id)] if run_id in line else []
        passed = [r for r in before if self._world.time - self._queued_at.get(r, self._world.time) > LINE_MOVES]
        if passed:
            self.fail("first come, first served", f"{run_id} got the pool before {passed[0]}")

    # attempts and budgets ---------------------------------------------------------------------------------------

    def claimed(self, run: Run) -> None:
        """Attempts that start from the same verified step: the first, and as many recoveries as the budget allows. What
        waited for nodes or for a person spent none."""
        spec, attempts = self._world.bucket.spec(run.run_id), self._world.table.items[run.run_id].attempts
        before = attempts.get(run.attempt - 1)
        claims = self._claims[run.run_id]
        claims.append((run.verified_step, before is not None and _is_wait(before.end_cause)))
        same = sum(step == run.verified_step and not waited for step, waited in claims)
        if same > spec.budgets.max_recoveries_without_progress + 1:
            self.fail("never over the recovery budget", f"{run.run_id}: {same} attempts from step {run.verified_step}")

    def attempt_ended(self, attempt: Attempt) -> None:
        """What ends a job that Kueue evicted, and that nothing else had touched, is a wait."""
        job = next((j for j in self._world.fleet.jobs if j.id == attempt.submission_id), None)
        if job is None or not job.evicted or job.hurt or job.state.is_terminal or attempt.end_cause is None:
            return
        if POLICIES[attempt.end_cause].action is Action.RECOVER:
            self.fail("waiting spends no recovery", f"{job.id} was evicted by Kueue and ended as {attempt.end_cause}")

    def submitted(self, job: Job) -> None:
        world, now = self._world, self._world.time
        self._open.append(job)
        if (job.id, job.head.name) in world.fleet.submits:
            self.fail("submitted once", f"{job.id} was submitted again")
        run = world.table.items[job.run_id].run
        if world.table.items[job.run_id].attempts[job.n].smaller is not job.smaller:
            self.fail(
                "smaller values reach the job", f"{job.id} runs with {'smaller' if job.smaller else 'the first'} values"
            )
        for pod in job.cluster.pods:
            if pod.node is not None and not pod.terminating and pod.node.name in run.excluded:
                self.fail("an excluded instance hosts no attempt", f"{job.id} on {pod.node.name}")
        for old in (j for j in world.fleet.jobs if j.run_id == job.run_id):
            lingers = (
                old.lingers_in is not None and _is_there(old.lingers_in, world.fleet) and old.holds(old.lingers_in)
            )
            if _is_there(old.head, world.fleet) and not old.gone and (old.actors_until > now or lingers):
                self.fail("the fence holds", f"{job.id} was submitted over processes of {old.id}")
            if self._loops(old):
                self.fail(
                    "never over the crash-loop guard", f"{job.id} follows {old.id}, which ended as {old.cause} again"
                )

    def _loops(self, job: Job) -> bool:
        """Whether a job was the last that may end so, by its own word. A node's death may have explained it better."""
        if job.cause is None or job.hurt or job.cause.is_success:
            return False
        cause = from_outcome(job.cause)
        if POLICIES[cause].action is not Action.RECOVER:
            return False
        jobs = [j for j in self._world.fleet.jobs if j.run_id == job.run_id and j.n <= job.n and not j.hurt]
        ended = {a.n: a.end_cause for a in self._world.table.items[job.run_id].attempts.values()}
        same = [j for j in jobs if j.cause is job.cause and j.saved == job.saved and ended.get(j.n) is cause]
        return len(same) >= (REPEATS_DETERMINISTIC if POLICIES[cause].deterministic else REPEATS_OTHER)

    def resumed(self, job: Job) -> None:
        known = max((j.reported for j in self._world.fleet.jobs if j.run_id == job.run_id and j.n < job.n), default=0)
        if job.resumed < known:
            self.fail("never below the floor", f"{job.id} resumed at {job.resumed}, step {known} was reported")
        if job.floor < known:
            self.fail("never below the floor", f"{job.id} has floor {job.floor}, step {known} was reported")

    # questions --------------------------------------------------------------------------------------------------

    def asks(self, run_id: str, there: Question | None, question: Question) -> None:
        """A question that was written; ``there`` is the one that was open until then."""
        if there is not None and there.asked_at != question.asked_at:
            self.fail("one question at a time", f"{run_id} is asked about {question.cause}, and about {there.cause}")
        self._asked[run_id].append(question)

    # after every event ------------------------------------------------------------------------------------------

    def look(self) -> None:
        world = self._world
        self._jobs()
        for run_id, item in world.table.items.items():
            run = item.run
            if run.state.is_final:
                if run_id not in self._final:
                    self._final[run_id] = run.state
                    self._ended(run)
                continue
            asked = run.cancel_requested_at
            if asked is not None and world.loop.now() > asked + CANCEL_GRACE + LATE:
                self.fail("a cancel ends its run", f"{run_id} is {run.state}, cancelled at {asked:%H:%M:%S}")
            since = run.recovering_since if run.state is RunState.RECOVERING and run.question is None else None
            if since is not None and world.loop.now() > since + sum(LEVEL_DEADLINES, LATE):
                self.fail("a fence ends", f"{run_id} a{run.attempt} is being fenced since {since:%H:%M:%S}")
            if run.question is not None and world.loop.now() > run.question.until + LATE:
                self.fail("no question is waited for without end", f"{run_id} was asked about {run.question.cause}")
            turns = run.shift_seq - run.history_base - TURNS_OVER
            if turns > 0 and parent_at_most(turns) >= world.bounds.parent_events:
                self.fail("histories are bounded", f"{run_id}: execution r{run.k} made {turns + TURNS_OVER} turns")
        if world.loop.unexpected:
            self.fail("no step breaks", world.loop.unexpected[0])

    def _jobs(self) -> None:
        world, live = self._world, dict[str, str]()
        self._open = [job for job in self._open if job.lives]
        for job in self._open:
            if job.frozen:
                continue
            if job.run_id in live:
                self.fail("never two live attempts", f"{live[job.run_id]} and {job.id}")
            live[job.run_id] = job.id
            began = self._leased_at.get(job.run_id)
            hours = job.spec.budgets.wall_hours
            if began is not None and world.time - began > hours * 3_600 + LATE.total_seconds():
                self.fail("never over the wall hours", f"{job.id} lives after {(world.time - began) / 3_600:.1f} h")

    def _ended(self, run: Run) -> None:
        if run.cause is EndCause.BUDGET_SPENT and "recoveries without" in run.sentence:
            spent = sum(not _is_wait(a.end_cause) for a in self._world.table.items[run.run_id].attempts.values())
            if spent <= self._world.bucket.spec(run.run_id).budgets.max_recoveries_without_progress:
                self.fail(
                    "waiting spends no recovery", f"{run.run_id} had {spent} attempts that did not end by waiting"
                )
        if run.state is not RunState.SUCCEEDED:
            return
        proved = [j.n for j in self._world.fleet.jobs if j.run_id == run.run_id and j.proved]
        if not proved:
            self.fail("no success without evidence", f"{run.run_id} succeeded")
        elif run.attempt not in proved:
            self.fail("no evidence of an older attempt", f"{run.run_id} a{run.attempt} succeeded by {proved}")

    # at the end -------------------------------------------------------------------------------------------------

    def at_the_end(self, quiet: bool) -> None:
        world = self._world
        world.fleet.settle()
        told = {(e.run_id, e.key) for e in world.stages.events}
        asked = {(e.run_id, e.until) for e in world.stages.events}
        for run_id, item in world.table.items.items():
            run = item.run
            if not run.state.is_final:
                self.fail("always a terminal state", f"{run_id} is {run.state}")
            if (run_id, "final") not in told:
                self.fail("always a final message", f"{run_id} is {run.state}")
            for question in self._asked[run_id]:
                if (run_id, question.until) not in asked:
                    self.fail("every question is told", f"{run_id}: {question.cause}")
            cluster = world.fleet.clusters.get(run_id)
            if cluster is not None and cluster.exists:
                self.fail("no RayCluster is left", run_id)
            if world.table.held.get(run.pool) == run_id:
                self.fail("no lease is left", run_id)
            if quiet and run.state is not RunState.SUCCEEDED:
                self.fail("a quiet run succeeds", f"{run_id} is {run.state}: {run.sentence}")
        for name, execution in world.machines.executions.items():
            if execution.status == "RUNNING":
                self.fail("always a terminal state", f"execution {name} is in {execution.state}")


def _is_wait(cause: EndCause | None) -> bool:
    return cause is not None and POLICIES[cause].action in (Action.WAIT, Action.ASK)


def _is_there(pod: Pod, fleet: Fleet) -> bool:
    """On a host that does something."""
    node = pod.node
    there = any(pod in c.pods for c in [*fleet.old, *fleet.clusters.values()])
    return there and node is not None and node.dead_at is None and node.frozen_at is None
