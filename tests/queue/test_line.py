"""The line before a pool: random arrivals, looks, cancels and ends, over both run stores, against a list that cannot err."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import boto3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.contract.spec import Priority
from nightshift.core.decision import Verb
from nightshift.core.decisions.lease import decide_lease
from nightshift.core.observation import ClusterView, Observation
from nightshift.core.run import Run, RunState
from nightshift.steps.ports import RunStore
from tests.builders import NOW, run
from tests.fakeworld.store import MemoryRunStore
from tests.steps.world import create_table

POOLS = ("blue", "green")
ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


@dataclass
class Line:
    """Runs over one store, and what must hold of them: ``waiting`` is every queued run, oldest first."""

    store: RunStore
    time: datetime = NOW
    made: int = 0
    waiting: list[Run] = field(default_factory=list)
    holders: dict[str, Run] = field(default_factory=dict)
    order: list[tuple[str, str]] = field(default_factory=list)

    def arrive(self, pool: str, urgent: bool) -> None:
        self.time += timedelta(seconds=1)
        self.made += 1
        new, _ = self.store.create(
            run(
                run_id=f"run-{self.made}",
                state=RunState.ADMITTED,
                pool=pool,
                attempt=0,
                created_at=self.time,
                priority=Priority.URGENT if urgent else Priority.NORMAL,
            )
        )
        self.waiting.append(self.store.enqueue(new, waiting_since=self.time))

    def look(self, number: int) -> None:
        """One look of a waiting run, as its shift makes it, and twice as a repeated invocation does."""
        if not self.waiting:
            return
        one = self.waiting[number % len(self.waiting)]
        for _ in range(2):
            seen = Observation(
                ClusterView(exists=False),
                lease_holder=self.store.lease_holder(one.pool),
                next_in_line=self.store.next_in_line(one.pool),
            )
            if decide_lease(one, seen, self.time).verb is Verb.READY and self.store.take_lease(one, self.time):
                self._took(one)

    def barge_in(self, number: int) -> None:
        """Whoever takes without looking: the transaction refuses while somebody holds the pool."""
        if self.waiting and (one := self.waiting[number % len(self.waiting)]).pool in self.holders:
            assert not self.store.take_lease(one, self.time), "a holder is never interrupted"

    def _took(self, one: Run) -> None:
        holder = self.holders.get(one.pool)
        assert holder is None or holder.run_id == one.run_id, "a pool is held by one run"
        if holder is None:
            before = [r for r in self.waiting if r.pool == one.pool]
            first = min(before, key=lambda r: (r.priority is not Priority.URGENT, before.index(r)))
            assert first.run_id == one.run_id, f"{one.run_id} overtook {first.run_id}"
            self.waiting.remove(one)
            self.holders[one.pool] = one

    def cancel(self, number: int) -> None:
        if self.waiting:
            one = self.waiting.pop(number % len(self.waiting))
            held = self.store.lease_holder(one.pool)
            self.store.finish(self.store.load(one.run_id, 1), RunState.CANCELLED)
            assert self.store.lease_holder(one.pool) == held, "who waits has nothing to give back"

    def end(self, number: int) -> None:
        pool = POOLS[number % len(POOLS)]
        if (one := self.holders.pop(pool, None)) is not None:
            self.store.finish(self.store.load(one.run_id, 1), ENDS[number % len(ENDS)])

    def check(self) -> None:
        for pool in POOLS:
            holder = self.holders.get(pool)
            assert self.store.lease_holder(pool) == (holder.run_id if holder else None)

    def drain(self) -> None:
        """Everybody who is left gets the pool at last, one after the other."""
        for number in range(2 * len(self.waiting) + len(POOLS)):
            self.end(number)
            for waiting in range(len(self.waiting)):
                self.look(waiting)
        assert not self.waiting, "somebody waits for ever"
        self.end(0), self.end(1)
        self.check()


KINDS = ["arrive", "arrive", "arrive urgent", "look", "look", "look", "barge in", "cancel", "end"]


def actions_of(least: int, most: int) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5)), min_size=least, max_size=most)


def play(store: RunStore, actions: list[tuple[str, int]]) -> None:
    line = Line(store)
    for action, number in actions:
        match action:
            case "arrive" | "arrive urgent":
                line.arrive(POOLS[number % len(POOLS)], urgent=action == "arrive urgent")
            case "look":
                line.look(number)
            case "barge in":
                line.barge_in(number)
            case "cancel":
                line.cancel(number)
            case "end":
                line.end(number)
        line.check()
    line.drain()


@settings(max_examples=200, deadline=None)
@given(actions_of(0, 40))
def test_nobody_is_overtaken_by_a_later_one_of_the_same_level_and_no_pool_is_held_by_two(
    actions: list[tuple[str, int]],
) -> None:
    play(MemoryRunStore(), actions)


@pytest.fixture(scope="module")
def tables() -> Iterator[Callable[[], DynamoRunStore]]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        table = create_table(boto3.Session(region_name="us-east-1"))

        def empty() -> DynamoRunStore:
            for item in table.scan()["Items"]:
                table.delete_item(Key={"pk": item["pk"], "sk": item["sk"]})
            return DynamoRunStore(table)

        yield empty


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions_of(8, 16))
def test_the_table_keeps_the_same_line(tables: Callable[[], DynamoRunStore], actions: list[tuple[str, int]]) -> None:
    play(tables(), actions)


def test_an_urgent_run_goes_before_all_that_wait_and_never_before_the_holder() -> None:
    line = Line(MemoryRunStore())
    line.arrive("blue", urgent=False)
    line.look(0)
    for urgent in (False, True, False, True):
        line.arrive("blue", urgent)
    line.look(1), line.look(3)
    assert line.store.lease_holder("blue") == "run-1"
    got = []
    while line.waiting:
        line.end(0)
        for number in range(len(line.waiting)):
            line.look(number)
        got.append(line.store.lease_holder("blue"))
    assert got == ["run-3", "run-5", "run-2", "run-4"]


def test_a_store_that_forgot_the_level_would_be_found() -> None:
    class Forgetful(MemoryRunStore):
        def next_in_line(self, pool: str) -> str | None:
            waiting = [i.run for i in self.items.values() if i.queue_place is not None and i.run.pool == pool]
            return min(waiting, key=lambda r: r.created_at).run_id if waiting else None

    actions = [("arrive", 0), ("arrive urgent", 0), ("look", 0)]
    with pytest.raises(AssertionError, match="overtook"):
        play(Forgetful(), actions)
