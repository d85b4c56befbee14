"""The invariants. Each speaks of the world's own truth, never of what the code under test says about itself."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from nightshift.core.run import Run, RunState
from nightshift.steps.ports import Nap
from tests.fakeworld.cluster import Job

if TYPE_CHECKING:
    from tests.fakeworld.world import World

WAKES_WITHIN = 12.0
"""Seconds from a counted signal to the look it causes, where no function failed on the way."""

INTERVAL = 60.0
DEAD_TOKEN_AFTER = 2.5


class Violation(Exception):
    """``name`` is the invariant's."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name, self.what = name, what


class Watch:
    """Raises ``Violation`` out of the world's loop, past every handler of the code under test."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.found: Violation | None = None
        self.stopped = False
        self._seen: dict[str, int] = defaultdict(int)
        self._stale: dict[str, bool] = {}
        self._claims: dict[str, list[int]] = defaultdict(list)
        self._final: dict[str, RunState] = {}

    def fail(self, name: str, what: str) -> None:
        if self.found is None:
            self.found = Violation(name, what)
            self._world.note(f"VIOLATED {self.found}")

    # told by the world ------------------------------------------------------------------------------------------

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
        stale = self._stale[run_id]
        calm = not failures and not world.loop.rates.slow and not stale
        if calm and left is not None and world.time - left > DEAD_TOKEN_AFTER:
            self.fail("signals are never lost", f"{run_id}: signal {counter} met {nap.token}, which nobody waits for")

        def check() -> None:
            item = world.table.items[run_id]
            asleep = self._seen[run_id] < counter and item.token == nap.token
            if asleep and failures == world.loop.failures and not world.loop.rates.slow and not self.stopped:
                self.fail("signals are never lost", f"{run_id}: signal {counter} woke nobody")

        world.at(WAKES_WITHIN + (INTERVAL if stale else 0.0), check, background=True)

    def claimed(self, run: Run) -> None:
        """Attempts that start from the same verified step: the first, and as many recoveries as the budget allows."""
        claims, spec = self._claims[run.run_id], self._world.bucket.spec(run.run_id)
        claims.append(run.verified_step)
        same = claims.count(run.verified_step)
        if same > spec.budgets.max_recoveries_without_progress + 1:
            self.fail("never over the recovery budget", f"{run.run_id}: {same} attempts from step {run.verified_step}")

    def resumed(self, job: Job) -> None:
        known = max((j.reported for j in self._world.fleet.jobs if j.run_id == job.run_id and j.n < job.n), default=0)
        if job.resumed < known:
            self.fail("never below the floor", f"{job.id} resumed at {job.resumed}, step {known} was reported")
        if job.floor < known:
            self.fail("never below the floor", f"{job.id} has floor {job.floor}, step {known} was reported")

    # after every event ------------------------------------------------------------------------------------------

    def look(self) -> None:
        world = self._world
        live: dict[str, str] = {}
        for job in world.fleet.jobs:
            if job.lives:
                if job.run_id in live:
                    self.fail("never two live attempts", f"{live[job.run_id]} and {job.id}")
                live[job.run_id] = job.id
        if len(set(world.fleet.submits)) < len(world.fleet.submits):
            self.fail("submitted once", f"{world.fleet.submits[-1][0]} was submitted again")
        for run_id, item in world.table.items.items():
            if item.run.state.is_final and run_id not in self._final:
                self._final[run_id] = item.run.state
                self._ended(item.run)
        if world.loop.unexpected:
            self.fail("no step breaks", world.loop.unexpected[0])

    def _ended(self, run: Run) -> None:
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
        for run_id, item in world.table.items.items():
            run = item.run
            if not run.state.is_final:
                self.fail("always a terminal state", f"{run_id} is {run.state}")
            if (run_id, "final") not in told:
                self.fail("always a final message", f"{run_id} is {run.state}")
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
