"""The reconciler in the fake world: a pass every period, as long as something is left that only it may have to repair.

Gap: a pass is one invocation that is never repeated; the next one comes by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nightshift.core.errors import NightshiftError
from nightshift.steps import reconcile

if TYPE_CHECKING:
    from tests.fakeworld.world import World

PERIOD, SECONDS = 300.0, 240.0
PATIENCE = 30
"""Passes that a world waits for when nothing else is going on: longer than the longest grace of a rule that ends a run."""


class Upkeep:
    """Starts by itself with the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._quiet_passes = 0
        world.at(PERIOD, self._tick)  # the first pass always comes: what was asked for may not have begun at all

    def _tick(self) -> None:
        world = self._world
        self._quiet_passes = 0 if world.loop.busy else self._quiet_passes + 1
        world.loop.call("reconciler", SECONDS, self._pass, sheltered=False)
        waits = self._open_business() and self._quiet_passes < PATIENCE
        world.at(PERIOD, self._tick, background=not waits)

    def _pass(self) -> None:
        report = reconcile.reconcile(self._world.ports)
        for finding in report.repairs:
            self._world.note(f"reconciler: {finding.repair} {finding.run_id}: {finding.why}")
        for alarm in report.alarms:
            self._world.note(f"reconciler alarm: {alarm.run_id}: {alarm.why}")
            if alarm.error is not None and not isinstance(alarm.error, NightshiftError):
                self._world.loop.unexpected.append(f"reconciler: {alarm.why}")

    def _open_business(self) -> bool:
        world = self._world
        items = world.table.items.values()
        clusters = any(cluster.exists for cluster in world.fleet.clusters.values())
        unfinished = any(not i.run.state.is_final or i.untold_since is not None for i in items)
        return unfinished or clusters or bool(world.table.leases())
