"""Planted faults: each takes one promise out of the shipped code, and names the property that must find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from nightshift.adapters.run_store import DynamoRunStore, attempts, base
from nightshift.core.run import Run
from nightshift.steps import look, signals
from nightshift.steps.ports import Nap
from tests.interleavings.model import Budget

Plant = Callable[[pytest.MonkeyPatch], None]

SEEN, REGISTERED, DEAD = (
    "each signal is seen",
    "the token that waits is registered",
    "no dead token over a live one",
)
RISE, GOES_ON = "numbers only rise", "somebody goes on with the run"
ONCE, OLD_K, NUMBERS = "one recovery for one failure", "nobody writes for an old k", "a shift's number is used once"


@dataclass(frozen=True)
class Mutant:
    name: str
    plant: Plant
    budget: Budget
    found_by: tuple[str, ...]


def _without(wanted: str) -> Plant:
    """The guarded write, with a part of its condition left out."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = DynamoRunStore._guarded

        def guarded(self: Any, *given: Any, condition: str | None, **how: Any) -> Run:
            parts = [part for part in (condition or "").split(" AND ") if part and part != wanted]
            return real(self, *given, condition=" AND ".join(parts) or None, **how)

        patch.setattr(DynamoRunStore, "_guarded", guarded)

    return plant


def _any_look_may_begin(patch: pytest.MonkeyPatch) -> None:
    real = DynamoRunStore.begin_look
    patch.setattr(DynamoRunStore, "begin_look", lambda s, run_id, k, now, interval, entry: real(s, run_id, k, now))


def _keep_the_old_token(patch: pytest.MonkeyPatch) -> None:
    real = DynamoRunStore._write

    def write(self: Any, run_id: str, k: int, changes: dict[str, Any], *more: Any, **how: Any) -> Run:
        kept = {n: v for n, v in changes.items() if (n, v) != ("token", None)}
        return real(self, run_id, k, kept, *more, **how)

    patch.setattr(DynamoRunStore, "_write", write)


def _read_the_token_before_the_count(patch: pytest.MonkeyPatch) -> None:
    real = DynamoRunStore.bump

    def bump(self: Any, run_id: str, signal: Any) -> Nap | None:
        there = self._table.get_item(Key={"pk": f"RUN#{run_id}", "sk": "RUN"}, ConsistentRead=True)["Item"]
        real(self, run_id, signal)
        return Nap(there["token"], 60, None) if "token" in there else None

    patch.setattr(DynamoRunStore, "bump", bump)


def _answer_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(signals, "wake", lambda ports, run_id, signal: ports.runs.bump(run_id, signal) and None)


def _answer_before_the_write(patch: pytest.MonkeyPatch) -> None:
    real = look.recover

    def recover(ports: Any, spec: Any, judged: Any, look_seq: int, interval: int) -> Any:
        there = ports.runs.load(judged.run.run_id, judged.run.k)
        payload = {"decision": "recover", "shift": str(there.shift_seq + 1)}
        ports.executions.answer(f"t{there.look_seq}.0", payload)
        return real(ports, spec, judged, look_seq, interval)

    patch.setattr(look, "recover", recover)


def _number_shifts_by_hand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(base, "COUNTED", frozenset({"look_seq"}))
    patch.setattr(look, "_handed_over", _handed_over_by_anybody)


def _handed_over_by_anybody(ports: Any, run: Run, look_seq: int, decision: str, interval: int) -> Any:
    run = ports.runs.update(run, **look.next_shift(run))
    return look.Reply(decision=decision, shift=str(run.shift_seq), interval=interval)


def _write_for_any_k(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(base, "WRITABLE", base.WRITABLE.replace("k = :k", "k >= :k"))


def _an_attempt_of_any_k(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts, "OF_THIS_K", "(attribute_not_exists(k) OR k <= :k OR k > :k)")


def _recover_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(look, "_settled", lambda run, awaiting: None)


def _end_a_look_that_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(look, "_stale", lambda ports, request, interval: look.Reply(decision="stale", interval=interval))


MUTANTS = (
    Mutant("register without a look at the counter", _without("signal_counter = :seen"), Budget(senders=1), (SEEN,)),
    Mutant("register for an older look", _without("look_seq = :look"), Budget(senders=1, repeats=1), (DEAD,)),
    Mutant("let an older look begin", _any_look_may_begin, Budget(senders=1, repeats=1), (DEAD, REGISTERED)),
    Mutant("keep the old token", _keep_the_old_token, Budget(senders=1), (DEAD,)),
    Mutant("read the token before the count", _read_the_token_before_the_count, Budget(senders=1), (SEEN,)),
    Mutant("wake nobody", _answer_nobody, Budget(senders=1), (SEEN,)),
    Mutant("answer before the write", _answer_before_the_write, Budget(failures=1, senders=1), (NUMBERS,)),
    Mutant("number shifts by hand", _number_shifts_by_hand, Budget(failures=1, repeats=1), (NUMBERS, RISE)),
    Mutant("write for any k", _write_for_any_k, Budget(successions=1, senders=1), (OLD_K,)),
    Mutant("an orphan's attempt", _an_attempt_of_any_k, Budget(failures=1, successions=1), (OLD_K,)),
    Mutant("decide again what was decided", _recover_again, Budget(failures=1, senders=1, crashes=1), (ONCE,)),
    Mutant(
        "end a shift that was only overtaken", _end_a_look_that_was_overtaken, Budget(failures=1, repeats=1), (GOES_ON,)
    ),
)
