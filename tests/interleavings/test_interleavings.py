"""A signal, a look and everything that can come between them: all orders, over the shipped steps and the shipped store.

Each budget is explored to its end; its properties are those of ``model.py``. ``explore.py`` takes other budgets by hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.core.run import Awaiting
from nightshift.steps.look import look
from tests.builders import NOW, attempt, run
from tests.interleavings.explore import Found, explore
from tests.interleavings.model import INTERVAL, Budget, Look
from tests.interleavings.mutants import MUTANTS, Mutant
from tests.interleavings.outside import ports
from tests.interleavings.table import SmallTable

BUDGETS = {
    "two signals and a late repeat of any look": Budget(senders=2, repeats=1),
    "a signal, a late repeat, and a crash after any call": Budget(senders=1, repeats=1, crashes=1),
    "a signal, a crash and a timeout": Budget(senders=1, crashes=1, timeouts=1),
    "a failed job, its signal and a crash": Budget(failures=1, senders=1, crashes=1),
    "a failed job, a repeat and a timeout": Budget(failures=1, repeats=1, timeouts=1),
    "a successor, an orphan of the old k, a signal and a timeout": Budget(successions=1, senders=1, timeouts=1),
    "a successor, an orphan of the old k and a repeat": Budget(successions=1, repeats=1),
    "a successor, an orphan of the old k and a crash": Budget(successions=1, crashes=1),
    "a successor while a job fails and is recovered by both": Budget(failures=1, successions=1),
}
"""A crash is a death right after a call, or a function that lives on while its state is tried again without it."""


@pytest.mark.parametrize("name", BUDGETS)
def test_no_order_of_events_breaks_a_promise(name: str) -> None:
    explored = explore(BUDGETS[name])
    assert explored.states > 3_000 and explored.rests > 10, explored


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    with pytest.raises(Found) as found:
        explore(mutant.budget)
    assert found.value.name in mutant.found_by, str(found.value)


def test_the_same_exploration_counts_the_same() -> None:
    assert explore(Budget(senders=1, crashes=1)) == explore(Budget(senders=1, crashes=1))


class AtOnce:
    """Answers every call of an actor at once."""

    def __init__(self) -> None:
        self.table: Any = SmallTable()
        self.answered: list[tuple[str, str]] = []
        store = DynamoRunStore(self.table)
        store.create(run(attempt=0))
        store.claim_attempt(run(attempt=0), attempt(1, running_at=NOW))

    def __call__(self, kind: str, *what: Any) -> Any:
        if kind == "table":
            method, request = what
            holder = self.table.meta.client if method == "transact_write_items" else self.table
            return getattr(holder, method)(**request)
        if kind == "answer":
            self.answered.append((what[0], what[1]))
        return {"job": "running", "answer": True}.get(kind)

    def look(self, visit: int, entered: datetime | None) -> None:
        one = Look(1, Awaiting.ATTEMPT, visit)
        look(ports(self), one.request.model_copy(update={"entered": entered}), INTERVAL)

    @property
    def token(self) -> str | None:
        token: str | None = self.table.items["RUN#maze-1", "RUN"].get("token")
        return token


def test_a_late_repeat_of_an_older_look_leaves_the_live_token_alone() -> None:
    at_once = AtOnce()
    at_once.look(1, NOW)
    at_once.look(2, NOW + timedelta(seconds=2))
    at_once.look(1, NOW)
    assert at_once.token == "t2.0" and at_once.answered == [("t1.0", "look")]


def test_a_look_whose_clock_was_behind_looks_again_and_is_not_stranded() -> None:
    at_once = AtOnce()
    at_once.look(1, NOW)
    at_once.look(2, NOW - timedelta(seconds=1))
    assert at_once.answered == [("t2.0", "look")]
    at_once.look(3, NOW + timedelta(seconds=1))
    assert at_once.token == "t3.0"


def test_an_execution_from_before_looks_were_told_apart_still_looks() -> None:
    at_once = AtOnce()
    at_once.look(1, NOW)
    at_once.look(2, None)
    assert at_once.token == "t2.0" and at_once.answered == []
