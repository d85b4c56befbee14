"""The people of a seed: they cancel, and they answer questions, or do not.

Gap: whoever answers "go on" has first repaired what was asked about, as far as this world has it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from nightshift.contract.events import Stage, StageEvent
from nightshift.steps import control
from tests.fakeworld.cluster import GPU, HEAD, Node

if TYPE_CHECKING:
    from tests.fakeworld.world import World


class Answers(StrEnum):
    """What they say when they are asked."""

    NOTHING = "nothing"
    GO_ON = "go on"
    GO_ON_UNREPAIRED = "go on, without any repair"
    GIVE_UP = "give up"


class People:
    """Notified by each stage event. The API repeats nothing, so they ask again where they get an error; nobody says "go on" for
    ever."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers = Answers.NOTHING
        self.after = (60.0, 3_000.0)
        self.patience = 3

    def told(self, event: StageEvent) -> None:
        if event.stage is Stage.ASKING and self.answers is not Answers.NOTHING and self.patience:
            self.patience -= 1
            self._world.at(self._world.rng.uniform(*self.after), lambda: self._answer(event.run_id))

    def cancel(self, run_id: str) -> None:
        self._world.note(f"{run_id} is cancelled")
        self._call("cancel", lambda: control.cancel(self._world.ports, run_id, "team"))

    def _answer(self, run_id: str) -> None:
        if self.answers is Answers.GO_ON:
            self._repair(run_id)
        go_on = self.answers is not Answers.GIVE_UP
        self._world.note(f"{run_id} is answered: {self.answers}")
        self._call("answer", lambda: control.answer(self._world.ports, run_id, go_on, "team"))

    def _call(self, what: str, call: Callable[[], object]) -> None:
        def once() -> None:
            try:
                call()
            except (control.NoSuchRun, control.NotPossible) as refused:
                self._world.note(str(refused))

        self._world.loop.deliver(what, 29, once)

    def _repair(self, run_id: str) -> None:
        fleet, loop = self._world.fleet, self._world.loop
        fleet.storage_full = fleet.kueue_refuses = False
        cluster = fleet.clusters.get(run_id)
        if cluster is not None and cluster.suspended:
            fleet.admit(cluster)
        excluded = cluster.excluded if cluster is not None else frozenset[str]()
        for kind, wanted in ((HEAD, 1), (GPU, 3)):
            there = [n for n in fleet.nodes if n.kind == kind and n.dead_at is None and n.frozen_at is None]
            for node in there:
                node.taken_until = min(node.taken_until, loop.time)
            fit = sum(n.name not in excluded for n in there)
            for number in range(wanted - fit):
                fleet.join(Node(f"i-new{len(fleet.nodes)}{number}", kind))
