"""A retry, and whatever else may touch the record of a run that is over: at every call to the table of the one, the other
happens as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.contract.api import RaisedBudgets, Retry
from nightshift.core.errors import NightshiftError
from nightshift.core.reconcile import Lease
from nightshift.core.run import RunState, Signal, SignalKind
from nightshift.steps.retry import retry
from nightshift.steps.transitions import admit
from tests.builders import NOW, attempt, run, spec
from tests.interleavings.table import SmallTable
from tests.steps.world import step

NEW = run(state=RunState.ADMITTED, attempt=0, verified_step=20, waiting_since=None)
OTHER = run(run_id="maze-2", state=RunState.ADMITTED, attempt=0)
ENDED = {"ended_at": NOW, "message": "as it was"}


class Struck(SmallTable):
    """``then`` happens as a whole right before the ``at``-th call from now on. A transaction is one call."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.calls, self.then, self.within = -1, 0, lambda: None, False
        self.meta = SimpleNamespace(client=SimpleNamespace(transact_write_items=self._transacted))

    def _called(self) -> None:
        self.calls += not self.within
        if self.calls == self.at and not self.within:
            self.then()

    def _transacted(self, **request: Any) -> Any:
        self._called()
        self.within = True
        try:
            return self.transact_write_items(**request)
        finally:
            self.within = False


def _counted(name: str) -> Callable[..., Any]:
    def call(self: Struck, **request: Any) -> Any:
        self._called()
        return getattr(SmallTable, name)(self, **request)

    return call


for _name in ("get_item", "put_item", "update_item", "delete_item", "query"):
    setattr(Struck, _name, _counted(_name))


class Scene:
    """A run that failed in its first attempt; its last message is sent, unless ``untold``. Another run waits for the pool."""

    def __init__(self, untold: bool = False) -> None:
        self.table: Any = Struck()
        self.store = store = DynamoRunStore(self.table)
        self.started: set[str] = set()  # by name, as Step Functions starts them
        store.create(NEW)
        store.create(OTHER)
        store.enqueue(OTHER, waiting_since=NOW)
        store.take_lease(NEW, NOW)
        store.claim_attempt(store.load("maze-1", 1), attempt(1))
        store.begin_look("maze-1", 1, NOW)
        store.save_attempt(store.load("maze-1", 1), attempt(1, **ENDED), 1)
        store.finish(store.load("maze-1", 1), RunState.FAILED, ended_at=NOW)
        if not untold:
            store.told("maze-1")
        self.ports: Any = SimpleNamespace(
            runs=store,
            artifacts=SimpleNamespace(spec=lambda _: spec(), put_spec=lambda _: None),
            executions=SimpleNamespace(start=lambda name, _: self.started.add(name)),
            stages=SimpleNamespace(emit=lambda _: True),
            now=lambda: NOW,
            sleep=lambda _: None,
        )

    def retry(self) -> None:
        retry(self.ports, "maze-1", Retry(budgets=RaisedBudgets(wall_hours=500)), "team")

    def told(self) -> None:
        self.store.told("maze-1")

    def late_look(self) -> None:
        self.store.begin_look("maze-1", 1, NOW)

    def late_end(self) -> None:
        self.store.finish(NEW, RunState.CANCELLED, ended_at=NOW)

    def late_attempt(self) -> None:
        self.store.save_attempt(NEW, attempt(1, message="an orphan's"))

    def late_succession(self) -> None:
        self.store.succeed(NEW)

    def late_signal(self) -> None:
        self.store.bump("maze-1", Signal(kind=SignalKind.OUTCOME, at=NOW))

    def freed(self) -> None:
        self.store.release_lease(Lease("default", "maze-1", NOW))

    def the_other_takes_the_pool(self) -> None:
        self.store.take_lease(self.store.load("maze-2", 1), NOW)

    def admitted(self) -> None:
        admit(self.ports, step("admit", k=2))

    def item(self) -> dict[str, Any]:
        return dict(self.table.items["RUN#maze-1", "RUN"])


LATE = ("retry", "late_look", "late_end", "late_attempt", "late_succession", "late_signal", "freed",
        "the_other_takes_the_pool", "told", "admitted")  # fmt: skip


def met(one: str, other: str, untold: bool = False) -> Iterator[Scene]:
    """Each scene in which ``other`` happened at one of the calls of ``one``, up to right after the last."""
    at = 1
    while True:
        scene = Scene(untold)
        scene.table.calls, scene.table.at = 0, at

        def then(scene: Scene = scene) -> None:
            with suppress(NightshiftError):
                getattr(scene, other)()

        scene.table.then = then
        with suppress(NightshiftError):
            getattr(scene, one)()
        over = scene.table.calls < at
        if over:
            then()
        yield scene
        if over:
            return
        at += 1


def holds(scene: Scene) -> None:
    """What is true of the record at every moment, whoever wrote it."""
    item, now = scene.item(), scene.store.get("maze-1")
    assert now is not None
    assert now.k == 1 + now.reopenings and now.reopenings <= 1, "one retry, one k"
    assert len(scene.started) == now.reopenings and scene.started <= {"maze-1-r2"}
    is_open = not now.state.is_final
    assert item["list_pk"] == ("RUNS#OPEN" if is_open else "RUNS#OVER")
    assert (item.get("look_pk") == "LOOK#OPEN") == is_open and ("cluster_pk" in item) == is_open
    [first] = scene.store.attempts("maze-1")
    assert (first.message, first.ended_at) == ("as it was", NOW), "an end is never rewritten"
    assert scene.store.lease_holder("default") != "maze-1", "it holds nothing before it waited for it"
    if is_open:
        assert now.retry is not None and now.retry.budgets.wall_hours == 500 and now.verified_step == 20


@pytest.mark.parametrize("other", LATE)
def test_a_retry_is_whole_or_not_at_all_whatever_comes_in_between(other: str) -> None:
    scenes = list(met("retry", other))
    for scene in scenes:
        holds(scene)
    assert len(scenes) > 4 and all(s.store.load("maze-1", 2) for s in scenes), "nothing of this stops it"


@pytest.mark.parametrize("one", [name for name in LATE if name not in ("retry", "admitted")])
def test_a_retry_in_the_middle_of_what_comes_late_loses_nothing(one: str) -> None:
    for scene in met(one, "retry"):
        holds(scene)
        assert scene.store.load("maze-1", 2).state is RunState.ADMITTED


@pytest.mark.parametrize(("one", "other"), [*product(("retry",), ("told", "retry")), ("told", "retry")])
def test_a_run_whose_last_message_is_not_sent_is_never_reopened_before_it_is(one: str, other: str) -> None:
    for scene in met(one, other, untold=True):
        holds(scene)
        reopened = scene.store.get("maze-1").state is RunState.ADMITTED  # type: ignore[union-attr]
        assert not reopened or "told" in (one, other)
        assert scene.store.untold(9) == ([] if reopened or "told" in (one, other) else ["maze-1"])
