"""Bad items in the table: named by their key, left out where that is safe, and never a reason to try again for ever.

Explored on the small table, which answers as DynamoDB does; what is particular to DynamoDB's types is tried on moto."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.contract.api import AuditLine
from nightshift.contract.events import FieldError, Stage
from nightshift.core.causes import EndCause
from nightshift.core.errors import PermanentError, StaleExecution, TransientError
from nightshift.core.observation import JobState, JobView
from nightshift.core.reconcile import Lease
from nightshift.core.run import Awaiting, Question, RunState, Signal, SignalKind
from nightshift.steps.ending import finish_for
from nightshift.steps.ports import Rejection
from nightshift.steps.reconcile import reconcile
from nightshift.steps.signals import wake
from nightshift.steps.view import view_run
from tests.builders import NOW, attempt, run
from tests.interleavings.table import SmallTable
from tests.steps.test_signals import running
from tests.steps.world import World

ASKED = Question(cause=EndCause.NODE_LOST, text="?", asked_at=NOW, until=NOW + timedelta(hours=1))
NEW = run(state=RunState.ADMITTED, attempt=0, question=ASKED)
OTHER = run(run_id="maze-2", state=RunState.ADMITTED, attempt=0)
SIGNAL = Signal(kind=SignalKind.NODE_HEALTH, at=NOW)
ENDED = attempt(1, ended_at=NOW, end_cause=EndCause.NODE_LOST)
RECORD, ATTEMPT, LEASE = ("RUN#maze-1", "RUN"), ("RUN#maze-1", "ATTEMPT#00001"), ("POOL#default", "LEASE")
INDEXED = {"cluster_pk", "cluster_sk", "look_pk", "look_sk", "owner_pk", "owner_sk", "pool_pk", "pool_sk"}
"""DynamoDB keeps these strings itself."""

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.text(max_size=12),
    st.binary(max_size=4),
    st.sampled_from(["2026-11-30T03:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "running"]),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
GONE = object()


def filled() -> Any:
    """A run with one of everything, and another run beside it."""
    table: Any = SmallTable()
    store = DynamoRunStore(table)
    store.create(NEW)
    store.create(OTHER)
    store.enqueue(OTHER)
    store.take_lease(NEW, NOW)
    store.claim_attempt(NEW, attempt(1))
    store.bump("maze-1", SIGNAL)
    store.begin_look("maze-1", 1, NOW)
    store.nap(NEW, "t1", 60, NOW, 1, 1)
    store.audit("maze-1", AuditLine(at=NOW, actor="a", what="w", signal=None, detail=""))
    store.reject(Rejection("d", "maze-3", "o", [FieldError(field="f", problem="p")], NOW))
    return table


FILLED = filled().items
CALLS: dict[str, Callable[[DynamoRunStore], Any]] = {
    "create": lambda s: s.create(NEW),
    "get": lambda s: s.get("maze-1"),
    "load": lambda s: s.load("maze-1", 1),
    "update": lambda s: s.update(NEW, step=3, shift_seq=2),
    "enqueue": lambda s: s.enqueue(NEW),
    "succeed": lambda s: s.succeed(NEW),
    "begin_look": lambda s: s.begin_look("maze-1", 1, NOW, 60, "2026#000"),
    "nap": lambda s: s.nap(NEW, "t2", 60, NOW, 1, 1),
    "bump": lambda s: s.bump("maze-1", SIGNAL),
    "signals_since": lambda s: s.signals_since("maze-1", 0),
    "claim_attempt": lambda s: s.claim_attempt(NEW, attempt(2)),
    "save_attempt": lambda s: s.save_attempt(NEW, attempt(1)),
    "end an attempt": lambda s: s.save_attempt(NEW, ENDED, 1),
    "correct_cause": lambda s: s.correct_cause(NEW, 1, EndCause.NODE_LOST, EndCause.NODE_REPLACED),
    "attempts": lambda s: s.attempts("maze-1"),
    "audit_trail": lambda s: s.audit_trail("maze-1"),
    "rejections": lambda s: s.rejections("maze-3"),
    "lease_holder": lambda s: s.lease_holder("default"),
    "next_in_line": lambda s: s.next_in_line("default"),
    "take_lease": lambda s: s.take_lease(NEW, NOW),
    "leases": lambda s: s.leases(),
    "release_lease": lambda s: s.release_lease(Lease("default", "maze-1", NOW)),
    "finish": lambda s: s.finish(NEW, RunState.FAILED),
    "active_on": lambda s: s.active_on("hp"),
    "open_runs": lambda s: s.open_runs(10),
    "untold": lambda s: s.untold(10),
    "told": lambda s: s.told("maze-1"),
}
EXPECTED = (PermanentError, StaleExecution, TransientError)


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """The filled table with some attributes of one item replaced, or taken away."""
    key = draw(st.sampled_from(sorted(FILLED)))
    names = sorted(set(FILLED[key]) - {"pk", "sk"} - INDEXED)
    changes = draw(st.dictionaries(st.sampled_from(names), st.just(GONE) | JUNK, min_size=1, max_size=3))
    item = {n: v for n, v in {**FILLED[key], **changes}.items() if v is not GONE}
    return SmallTable({**FILLED, key: item})


@pytest.mark.parametrize("name", CALLS)
@given(table=spoilt())
def test_whatever_an_item_holds_a_call_answers_or_says_what_is_wrong(name: str, table: Any) -> None:
    try:
        CALLS[name](DynamoRunStore(table))
    except EXPECTED as error:
        assert str(error).startswith("run maze-1: ")


@given(table=spoilt())
def test_a_bad_item_hides_no_other_run(table: Any) -> None:
    store = DynamoRunStore(table)
    spoils_the_other = table.items["RUN#maze-2", "RUN"] is not FILLED["RUN#maze-2", "RUN"]
    for listed in (store.active_on("hp"), [r.run for r in store.open_runs(10)]):
        assert spoils_the_other or "maze-2" in [r.run_id for r in listed]


def changed(key: tuple[str, str], **changes: Any) -> DynamoRunStore:
    item = {n: v for n, v in {**FILLED[key], **changes}.items() if v is not GONE}
    table: Any = SmallTable({**FILLED, key: item})
    return DynamoRunStore(table)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("k", "one"),
        ("state", "dreaming"),
        ("owner", GONE),
        ("run_id", "maze-9"),
        ("waiting_since", "2026-11-30T03:00:00"),
        ("created_at", "0001-01-01T00:00:00+14:00"),
        ("question", {**FILLED[RECORD]["question"], "until": "2026-11-30T03:00:00"}),
    ],
)
def test_a_record_that_cannot_be_read_is_named_with_its_field_and_what_to_do(field: str, value: Any) -> None:
    with pytest.raises(PermanentError) as told:
        changed(RECORD, **{field: value}).get("maze-1")
    assert "RUN#maze-1 / RUN" in str(told.value) and field in str(told.value) and "Repair the item" in str(told.value)


def test_a_counter_that_is_no_number_is_named_and_not_tried_again() -> None:
    store = changed(RECORD, signal_counter="many")
    with pytest.raises(PermanentError, match="RUN#maze-1 / RUN"):
        store.bump("maze-1", SIGNAL)


def test_a_bad_signal_and_a_bad_line_are_skipped_and_named(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = [key for key in FILLED if key[1].startswith("AUDIT#")]
    assert changed(line, version=2).audit_trail("maze-1") == []
    signal = ("RUN#maze-1", "SIGNAL#000000000001")
    store = changed(signal, kind="rumour")
    store.bump("maze-1", SIGNAL)
    assert [s.counter for s in store.signals_since("maze-1", 0)] == [2]
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert any(" / ".join(line) in t for t in told) and any(" / ".join(signal) in t and "kind" in t for t in told)


@pytest.mark.parametrize("field", ["interval", "last_look_at"])
def test_a_nap_that_cannot_be_read_whole_is_answered_all_the_same(field: str) -> None:
    nap = changed(RECORD, **{field: "soon"}).bump("maze-1", SIGNAL)
    assert nap is not None and (nap.token, nap.interval, nap.last_look_at) == ("t1", 60, None)


def test_a_lease_without_a_holder_is_nobodys_to_take(caplog: pytest.LogCaptureFixture) -> None:
    store = changed(LEASE, run_id=GONE)
    assert store.leases() == [] and not store.take_lease(OTHER, NOW)
    assert store.lease_holder("default") not in (None, "maze-1", "maze-2")
    assert "POOL#default / LEASE" in caplog.text


def test_of_a_bad_attempt_its_number_its_job_and_what_can_be_read_remain(caplog: pytest.LogCaptureFixture) -> None:
    bad = {"version": 2, "n": "x", "submission_id": 7, "started_at": "2026-11-30", "floor": -1, "last_saved_step": 40}
    (there,) = changed(ATTEMPT, **bad).attempts("maze-1")
    assert (there.n, there.submission_id, there.last_saved_step, there.floor) == (1, "maze-1-a1", 40, 0)
    assert there.gpus == 0 and there.ended_at is None and "started_at" in there.message
    assert "RUN#maze-1 / ATTEMPT#00001" in caplog.text


def test_a_bad_attempt_that_had_ended_has_ended() -> None:
    (there,) = changed(ATTEMPT, ended_at="yesterday", end_cause="node_lost").attempts("maze-1")
    assert there.ended_at is not None and there.end_cause is EndCause.NODE_LOST


def spoil(world: World, sk: str, **changes: Any) -> None:
    item = world.table.get_item(Key={"pk": "RUN#maze-1", "sk": sk})["Item"]
    world.table.put_item(Item={**item, **changes})


def test_a_run_with_a_bad_attempt_goes_on_to_its_next_one(world: World) -> None:
    running(world)
    spoil(world, "ATTEMPT#00001", version=Decimal(2), started_at="?")
    world.jobs.states["maze-1-a1"] = JobView(JobState.FAILED, "it is gone")
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "recover"
    assert world.run().state is RunState.RECOVERING


def test_the_finisher_ends_a_run_whose_attempt_and_signals_are_bad(world: World) -> None:
    running(world)
    wake(world.ports, "maze-1", SIGNAL)
    spoil(world, "SIGNAL#000000000001", at=Decimal(1))
    spoil(world, "ATTEMPT#00001", started_at="?")
    assert finish_for(world.ports, "maze-1", 1, "FAILED", "States.Runtime")
    assert world.run().state is RunState.FAILED and world.runs.lease_holder("default") is None
    assert world.stages.events[-1].stage is Stage.FAILED


def test_a_bad_record_stops_its_own_run_only(world: World) -> None:
    running(world)
    world.runs.take_lease(world.run(), NOW)
    world.ask(run_id="maze-2")
    spoil(world, "RUN", k="one")
    with pytest.raises(PermanentError, match="RUN#maze-1 / RUN"):
        view_run(world.ports, "maze-1", "bucket")
    assert [r.run_id for r in world.runs.active_on("hp")] == ["maze-2"]
    world.with_remaining(300)
    told = reconcile(world.ports)
    assert [a.run_id for a in told.alarms if "RUN#maze-1 / RUN" in a.why] == ["maze-1"]
    assert "maze-2" not in [a.run_id for a in told.alarms]


def test_dynamodb_refuses_to_count_what_is_no_number_and_the_record_is_named(world: World) -> None:
    running(world)
    spoil(world, "RUN", look_seq="many", signal_counter="many")
    for call in (lambda: world.runs.begin_look("maze-1", 1, NOW), lambda: world.runs.bump("maze-1", SIGNAL)):
        with pytest.raises(PermanentError, match="RUN#maze-1 / RUN"):
            call()
