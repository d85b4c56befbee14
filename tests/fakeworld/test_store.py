"""One contract for all run stores: the real one on moto's DynamoDB, the real one on the small table on which interleavings
are explored, and the one in memory that chaos runs on. Each scenario's whole answer is compared, so none can drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.contract.api import AuditLine, Retry
from nightshift.contract.events import FieldError
from nightshift.contract.spec import Priority
from nightshift.core.causes import EndCause
from nightshift.core.errors import StaleExecution
from nightshift.core.reconcile import Lease
from nightshift.core.reopen import reopening
from nightshift.core.run import RunState, Signal, SignalKind
from nightshift.steps.ports import Rejection, RunStore
from tests.builders import IMAGE, NOW, attempt, run
from tests.fakeworld.store import MemoryRunStore
from tests.interleavings.table import SmallTable
from tests.steps.world import create_table

NEW = run(state=RunState.ADMITTED, attempt=0, waiting_since=None, instances=())
LATER = NOW + timedelta(minutes=5)
SIGNAL = Signal(kind=SignalKind.NODE_HEALTH, instance_id="i-w1", detail="Xid", at=NOW)
Call = Callable[[RunStore], Any]


@pytest.fixture(scope="module")
def tables() -> Iterator[Callable[[], DynamoRunStore]]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        session = boto3.Session(region_name="us-east-1")
        table = create_table(session)

        def empty() -> DynamoRunStore:
            for item in table.scan()["Items"]:
                table.delete_item(Key={"pk": item["pk"], "sk": item["sk"]})
            return DynamoRunStore(table)

        yield empty


def nap(token: str, counter: int, look_seq: int) -> Call:
    return lambda s: s.nap(s.load("maze-1", 1), token, 60, NOW, counter, look_seq)


def write(**changes: Any) -> Call:
    return lambda s: s.update(NEW, **changes)


def finish(state: RunState = RunState.FAILED, run_id: str = "maze-1", **changes: Any) -> Call:
    return lambda s: s.finish(s.load(run_id, 1), state, **changes)


def create(s: RunStore) -> Any:
    return s.create(NEW)


def look(s: RunStore) -> Any:
    return s.begin_look("maze-1", 1, NOW)


def bump(s: RunStore) -> Any:
    return s.bump("maze-1", SIGNAL)


def claim(n: int, **changes: Any) -> Call:
    return lambda s: s.claim_attempt(NEW, attempt(n, **changes))


def save(n: int, **changes: Any) -> Call:
    return lambda s: s.save_attempt(NEW, attempt(n, **changes))


def enqueue(s: RunStore) -> Any:
    return s.enqueue(NEW, waiting_since=NOW)


OTHER = run(run_id="maze-2", state=RunState.ADMITTED, attempt=0, created_at=NOW - timedelta(hours=2))


def create_other(s: RunStore) -> Any:
    return s.create(OTHER)


def enqueue_other(s: RunStore) -> Any:
    return s.enqueue(OTHER, waiting_since=NOW)


def take(s: RunStore) -> Any:
    return s.take_lease(NEW, LATER)


def take_other(s: RunStore) -> Any:
    return s.take_lease(OTHER, LATER)


URGENT = NEW.model_copy(update={"run_id": "maze-3", "priority": Priority.URGENT, "created_at": LATER})
ENDED = {"ended_at": NOW, "end_cause": EndCause.NODE_LOST}
OLD = NEW.model_copy(update={"k": 2})


def reopen(run_id: str = "maze-1", **changes: Any) -> Call:
    def call(s: RunStore) -> Any:
        there = s.get(run_id)
        assert there is not None
        return s.reopen(there, **reopening(there, Retry(image=IMAGE), LATER), **changes)

    return call


SCENARIOS: dict[str, list[Call]] = {
    "a run is created once": [create, lambda s: s.create(NEW.model_copy(update={"owner": "b"})), create_other],
    "another k reads and writes nothing": [
        create,
        lambda s: s.load("maze-1", 2),
        lambda s: s.load("nobody", 1),
        lambda s: s.update(OLD, step=3),
        lambda s: s.begin_look("maze-1", 2, NOW),
        lambda s: s.begin_look("nobody", 1, NOW),
        lambda s: s.enqueue(OLD),
        lambda s: s.claim_attempt(OLD, attempt(1)),
        lambda s: s.take_lease(OLD, NOW),
        lambda s: s.finish(OLD, RunState.FAILED),
    ],
    "fields are written and removed": [
        create,
        write(
            step=7,
            success=0.25,
            cause=EndCause.NODE_LOST,
            lost_instance="i-w1",
            instances=("i-1", "i-2"),
            recovering_since=LATER,
        ),
        write(success=None, cause=None, lost_instance=None, recovering_since=None),
        write(verdict=RunState.FAILED, sentence="why", published=True),
    ],
    "a write of an older look is refused": [
        create,
        look,
        lambda s: s.update(NEW, 1, step=1),
        look,
        lambda s: s.update(NEW, 1, step=2),
        lambda s: s.update(NEW, 2, step=3),
    ],
    "a nap is registered, and a signal reads its token": [create, look, nap("t1", 0, 1), bump, bump],
    "a look drops the token": [create, look, nap("t1", 0, 1), look, bump],
    "a signal during a look prevents its nap": [create, look, bump, nap("t1", 0, 1), bump, nap("t2", 2, 1), bump],
    "a later look prevents the nap of an older one": [create, look, look, nap("old", 0, 1), bump, nap("new", 1, 2)],
    "a nap of a run that is over is refused": [create, look, finish(), nap("t1", 0, 1), bump],
    "a nap of an older k is stale": [create, look, lambda s: s.nap(OLD, "t", 60, NOW, 0, 1)],
    "a signal for nobody is refused": [bump],
    "a signal after the end is counted": [create, look, nap("t1", 0, 1), finish(), bump],
    "signals are read from a number on": [create, bump, bump, bump, lambda s: s.signals_since("maze-1", 1)],
    "an attempt is claimed once": [create, claim(1), claim(1), claim(3), claim(2), claim(1)],
    "a run that is over claims nothing": [create, finish(), claim(1)],
    "an attempt that exists already is not claimed over": [create, save(1), claim(1)],
    "an attempt's end is never rewritten": [create, claim(1), save(1, message="a"), save(1, **ENDED), save(1)],
    "only the wrong cause is corrected": [
        create,
        claim(1),
        lambda s: s.correct_cause(NEW, 1, EndCause.NODE_LOST, EndCause.NODE_REPLACED),
        save(1, **ENDED),
        lambda s: s.correct_cause(NEW, 1, EndCause.HEAD_LOST, EndCause.STOPPED),
        lambda s: s.correct_cause(NEW, 1, EndCause.NODE_LOST, EndCause.NODE_REPLACED),
        lambda s: s.correct_cause(NEW, 2, EndCause.NODE_LOST, EndCause.NODE_REPLACED),
    ],
    "the oldest run of the queue is first": [create, create_other, enqueue, enqueue_other, take_other, take],
    "a lease is taken by one, and again by the same": [create, create_other, enqueue, take, take, take_other],
    "a lease goes back with the last write": [create, create_other, take, take_other, finish(), take_other, take],
    "finishing gives back no lease of another": [create, create_other, take_other, finish(), finish()],
    "finishing ends every write": [
        create,
        enqueue,
        finish(RunState.CANCELLED, sentence="so", cause=None),
        write(step=1),
        look,
        enqueue,
        take,
        finish(),
    ],
    "a finished run is not active": [create, create_other, finish(run_id="maze-2")],
    "an open run is found from its record on, whatever died": [
        create,
        create_other,
        lambda s: s.begin_look("maze-1", 1, LATER, 30),
        lambda s: s.nap(s.load("maze-1", 1), "t", 90, LATER, 0, 1),
        lambda s: s.begin_look("maze-1", 1, LATER + timedelta(seconds=90), 60),
        lambda s: s.open_runs(1),
        write(step=1),
        write(waiting_since=LATER + timedelta(hours=1)),
        lambda s: s.succeed(s.load("maze-2", 1)),
        finish(run_id="maze-1"),
    ],
    "a successor writes from now on": [
        create,
        look,
        write(shift_seq=1),
        write(shift_seq=1),
        nap("t1", 0, 1),
        lambda s: s.succeed(s.load("maze-1", 1)),
        bump,
        lambda s: s.succeed(NEW),
        look,
        write(step=1),
        lambda s: s.begin_look("maze-1", 2, NOW),
        lambda s: s.succeed(s.load("maze-1", 2)),
        lambda s: s.finish(s.load("maze-1", 3), RunState.FAILED),
        lambda s: s.succeed(s.load("maze-1", 3)),
    ],
    "an attempt changes hands with its run": [
        create,
        claim(1),
        save(1, message="r1"),
        lambda s: s.succeed(s.load("maze-1", 1)),
        save(1, message="an orphan's"),
        save(1, **ENDED),
        lambda s: s.save_attempt(s.load("maze-1", 2), attempt(1, message="r2")),
        lambda s: s.save_attempt(s.load("maze-1", 2), attempt(1, **ENDED), 0),
        lambda s: s.correct_cause(NEW, 1, EndCause.NODE_LOST, EndCause.NODE_REPLACED),
        lambda s: s.correct_cause(s.load("maze-1", 2), 1, EndCause.NODE_LOST, EndCause.NODE_REPLACED),
    ],
    "only the look in charge ends an attempt": [
        create,
        claim(1),
        look,
        look,
        lambda s: s.save_attempt(NEW, attempt(1, **ENDED), 1),
        lambda s: s.save_attempt(OLD, attempt(1, **ENDED), 2),
        lambda s: s.save_attempt(NEW, attempt(1, **ENDED), 2),
        lambda s: s.save_attempt(NEW, attempt(1, **ENDED), 2),
        finish(),
        lambda s: s.save_attempt(NEW, attempt(1, **ENDED), 2),
    ],
    "a shift's number is never used twice": [create, write(shift_seq=1), write(shift_seq=1), write(shift_seq=0)],
    "a look of an older state is refused": [
        create,
        lambda s: s.begin_look("maze-1", 1, NOW, 60, "2026-11-30T03:00:00#000"),
        nap("t1", 0, 1),
        lambda s: s.begin_look("maze-1", 1, NOW, 60, "2026-11-30T02:59:59#000"),
        bump,
        lambda s: s.begin_look("maze-1", 1, NOW, 60, "2026-11-30T03:00:00#000"),
        lambda s: s.begin_look("maze-1", 1, NOW, 60, "2026-11-30T03:00:00#001"),
        look,
        lambda s: s.begin_look("maze-1", 1, NOW, 60, "2026-11-30T03:00:00#000"),
    ],
    "urgent runs are first in line, then the oldest": [
        create,
        create_other,
        lambda s: s.create(URGENT),
        enqueue,
        enqueue_other,
        lambda s: s.enqueue(URGENT),
        lambda s: s.take_lease(URGENT, NOW),
        take_other,
    ],
    "only a lease whose holder is over, or has no record, is released": [
        create,
        take,
        lambda s: s.release_lease(Lease("default", "maze-1", LATER)),
        lambda s: s.release_lease(Lease("default", "nobody", LATER)),
        finish(),
        lambda s: s.release_lease(Lease("default", "maze-1", LATER)),
    ],
    "an end is told once": [
        create,
        create_other,
        lambda s: s.told("maze-1"),
        finish(ended_at=LATER),
        finish(run_id="maze-2", ended_at=NOW),
        lambda s: s.untold(1),
        lambda s: s.told("maze-1"),
        lambda s: s.told("maze-1"),
        lambda s: s.told("nobody"),
    ],
    "a run that failed goes on under its next k, once its last message was sent": [
        create,
        create_other,
        enqueue,
        take,
        claim(1),
        save(1, **ENDED),
        look,
        nap("t1", 0, 1),
        write(verified_step=20, step=25, question=None, verdict=RunState.FAILED, cause=EndCause.BUDGET_SPENT),
        reopen(),
        finish(ended_at=NOW, sentence="so"),
        reopen(),
        lambda s: s.told("maze-1"),
        reopen(),
        reopen(),
        lambda s: s.reopen(NEW, **reopening(NEW, Retry(), LATER)),
        write(step=1),
        look,
        save(1, message="an orphan's"),
        lambda s: s.save_attempt(s.load("maze-1", 2), attempt(1, message="nor this: it has ended")),
        enqueue_other,
        lambda s: s.enqueue(s.load("maze-1", 2), waiting_since=LATER),
        take_other,
        lambda s: s.finish(s.load("maze-2", 1), RunState.SUCCEEDED),
        lambda s: s.told("maze-2"),
        reopen("maze-2"),
        lambda s: s.take_lease(s.load("maze-1", 2), LATER),
        lambda s: s.begin_look("maze-1", 2, LATER),
        lambda s: s.claim_attempt(s.load("maze-1", 2), attempt(2)),
        lambda s: s.finish(s.load("maze-1", 2), RunState.CANCELLED, ended_at=LATER),
        lambda s: s.told("maze-1"),
        reopen(),
    ],
    "audit lines are kept in order": [
        create,
        lambda s: s.audit("maze-1", AuditLine(at=LATER, actor="b", what="second", signal=None, detail="")),
        lambda s: s.audit("maze-1", AuditLine(at=NOW, actor="a", what="first", signal="timer", detail="d")),
        lambda s: s.audit_trail("maze-1", 1),
    ],
    "a refusal is recorded once": [
        lambda s: s.reject(Rejection("d", "x", "o", [FieldError(field="f", problem="p")], NOW)),
        lambda s: s.reject(Rejection("d", "x", "o", [], NOW)),
        lambda s: s.reject(Rejection("c", "x", "o", [], NOW)),
        lambda s: s.rejections("x"),
    ],
}


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return plain(value.model_dump(mode="json")) if hasattr(value, "model_dump") else value


def everything(store: RunStore) -> list[Any]:
    runs = ("maze-1", "maze-2")
    return [
        *(store.get(r) for r in runs),
        *(store.attempts(r) for r in runs),
        *(store.signals_since(r, 0) for r in runs),
        *(store.audit_trail(r, 200) for r in runs if store.get(r)),
        store.open_runs(10),
        store.untold(10),
        store.leases(),
        store.lease_holder("default"),
        store.next_in_line("default"),
        store.active_on("hp"),
    ]


def played(store: RunStore, calls: list[Call]) -> list[Any]:
    """The answer or error of each call, and all that can be read after it."""
    told = []
    for call in calls:
        try:
            answer = plain(call(store))
        except StaleExecution:
            answer = "StaleExecution"
        except ClientError as error:  # boto3 raises a subclass of its own for each code
            answer = f"ClientError {error.response['Error']['Code']}"
        told.append((answer, plain(everything(store))))
    return told


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_stores_answer_alike(name: str, tables: Callable[[], DynamoRunStore]) -> None:
    real = played(tables(), SCENARIOS[name])
    assert played(MemoryRunStore(), SCENARIOS[name]) == real
    assert played(DynamoRunStore(SmallTable()), SCENARIOS[name]) == real


def test_the_contract_is_not_vacuous() -> None:
    """The scenarios reach refusals as well as successes of every conditional call."""
    answers = [a for calls in SCENARIOS.values() for a, _ in played(MemoryRunStore(), calls)]
    assert "StaleExecution" in answers and "ClientError ConditionalCheckFailedException" in answers
    assert True in answers and False in answers and None in answers
