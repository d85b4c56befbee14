"""Two writes that meet in the store itself: a transaction on the same item, a lease taken while its run is being ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nightshift.adapters.run_store import DynamoRunStore, base
from nightshift.core.errors import StaleExecution, TransientError
from nightshift.core.run import RunState, Signal, SignalKind
from tests.builders import NOW, attempt, run
from tests.interleavings.table import SmallTable, refusal

NEW = run(state=RunState.QUEUED, attempt=0)
SIGNAL = Signal(kind=SignalKind.OUTCOME, at=NOW)


class Busy(SmallTable):
    """Another transaction is on the items for the next ``times`` writes."""

    times = 0

    def _meets(self, name: str, write: Callable[..., Any], request: dict[str, Any]) -> Any:
        if self.times:
            self.times -= 1
            if name == "transact_write_items":
                raise refusal("TransactionCanceledException", name, ["TransactionConflict", "None"])
            raise refusal("TransactionConflictException", name)
        return write(**request)

    def update_item(self, **request: Any) -> Any:
        return self._meets("update_item", super().update_item, request)

    def put_item(self, **request: Any) -> Any:
        return self._meets("put_item", super().put_item, request)

    def transact_write_items(self, **request: Any) -> Any:
        return self._meets("transact_write_items", super().transact_write_items, request)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Any:
    table: Any = Busy()
    DynamoRunStore(table).create(NEW)
    monkeypatch.setattr(base, "PAUSES", (0.0,) * 4)
    return table


def test_a_signal_that_meets_a_transaction_is_counted_once_and_answers_its_token(busy: Any) -> None:
    store = DynamoRunStore(busy)
    store.begin_look("maze-1", 1, NOW)
    store.nap(NEW, "t1", 60, NOW, 0, 1)
    busy.times = 4
    nap = store.bump("maze-1", SIGNAL)
    assert nap is not None and nap.token == "t1"
    assert store.load("maze-1", 1).signal_counter == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.update(NEW, step=3),
        lambda s: s.take_lease(NEW, NOW),
        lambda s: s.claim_attempt(NEW, attempt(1)),
        lambda s: s.save_attempt(NEW, attempt(1)),
        lambda s: s.finish(NEW, RunState.FAILED),
        lambda s: s.succeed(NEW),
    ],
)
def test_a_write_that_meets_a_transaction_is_repeated(call: Callable[[Any], Any], busy: Any) -> None:
    busy.times = 4
    assert call(DynamoRunStore(busy)) and busy.times == 0


def test_a_transaction_that_never_gets_through_is_left_to_the_state_machine(busy: Any) -> None:
    busy.times = 99
    with pytest.raises(TransientError, match="TransactionConflict"):
        DynamoRunStore(busy).take_lease(NEW, NOW)
    with pytest.raises(ClientError, match="TransactionConflict"):
        DynamoRunStore(busy).bump("maze-1", SIGNAL)


class Between(SmallTable):
    """``then`` happens once, right after a lease was read, or a record the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.key: tuple[str, str] | None = None
        self.then: Callable[[], Any] = lambda: None

    def get_item(self, **request: Any) -> Any:
        found = super().get_item(**request)
        if self.key == (request["Key"]["pk"], request["Key"]["sk"]):
            self.key = None
            self.then()
        return found


def test_a_lease_that_is_taken_while_its_run_ends_is_not_left_behind() -> None:
    table: Any = Between()
    store = DynamoRunStore(table)
    store.create(NEW)
    table.key, table.then = ("POOL#default", "LEASE"), lambda: store.take_lease(NEW, NOW)
    ended = store.finish(NEW, RunState.CANCELLED)
    assert ended.state is RunState.CANCELLED and ended.leased_at == NOW
    assert store.lease_holder("default") is None and store.leases() == []
    assert not store.take_lease(NEW, NOW)


def test_a_run_that_ends_while_it_is_ended_is_ended_once() -> None:
    table: Any = Between()
    store = DynamoRunStore(table)
    store.create(NEW)
    table.key, table.then = ("POOL#default", "LEASE"), lambda: store.finish(NEW, RunState.FAILED)
    with pytest.raises(StaleExecution):
        store.finish(NEW, RunState.CANCELLED)
    assert store.load("maze-1", 1).state is RunState.FAILED


def test_a_successor_takes_over_an_attempt_that_was_claimed_meanwhile() -> None:
    table: Any = Between()
    store = DynamoRunStore(table)
    store.create(NEW)
    table.key, table.then = ("RUN#maze-1", "RUN"), lambda: store.claim_attempt(NEW, attempt(1))
    assert store.succeed(NEW).k == 2
    assert not store.save_attempt(NEW, attempt(1, message="an orphan's"))
    assert store.attempts("maze-1")[0].message == ""
