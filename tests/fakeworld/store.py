"""The run store in memory, with exactly the semantics of ``DynamoRunStore``; ``test_store.py`` holds both to one contract.

Gap: indexes are consistent at once, as in DynamoDB on a good day. ``wrote`` is called after each single write with its
name, so that a caller can die there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from nightshift.contract.api import AuditLine
from nightshift.contract.spec import Priority
from nightshift.core.causes import EndCause
from nightshift.core.errors import StaleExecution
from nightshift.core.reconcile import Lease, OpenRun
from nightshift.core.reopen import REOPENABLE
from nightshift.core.run import Attempt, Run, RunState, Signal
from nightshift.steps.ports import Nap, Rejection

MAX_TRAIL, SOON = 200, timedelta(seconds=60)
COUNTED = frozenset({"look_seq", "shift_seq"})
DEFAULTS = {name: info.get_default() for name, info in Run.model_fields.items() if not info.is_required()}


@dataclass
class Item:
    """One run's record and everything beside it. ``token``, ``interval`` and the index keys are no fields of a run."""

    run: Run
    due: datetime
    token: str | None = None
    interval: int | None = None
    last_look_at: datetime | None = None
    look_entry: str = ""
    listed: bool = True
    untold_since: datetime | None = None
    queue_place: tuple[int, datetime, str] | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    signals: dict[int, Signal] = field(default_factory=dict)
    trail: list[AuditLine] = field(default_factory=list)


class MemoryRunStore:
    """Implements ``steps.ports.RunStore``."""

    def __init__(self, wrote: Callable[[str], None] | None = None) -> None:
        self.items: dict[str, Item] = {}
        self.held: dict[str, str] = {}
        self.held_since: dict[str, datetime] = {}
        self.refused: dict[tuple[str, str], Rejection] = {}
        self.wrote = wrote or (lambda _: None)

    # runs -------------------------------------------------------------------------------------------------------

    def create(self, run: Run) -> tuple[Run, bool]:
        there = self.items.get(run.run_id)
        if there is not None:
            return there.run, False
        self.items[run.run_id] = Item(run, run.created_at + SOON)
        self.wrote("create")
        return run, True

    def get(self, run_id: str) -> Run | None:
        item = self.items.get(run_id)
        return None if item is None else item.run

    def load(self, run_id: str, k: int) -> Run:
        run = self.get(run_id)
        if run is None:
            raise StaleExecution(run_id, k, "the run has no record")
        if run.k != k:
            raise StaleExecution(run_id, k, f"the record holds r{run.k}")
        return run

    def update(self, run: Run, look_seq: int | None = None, **changes: Any) -> Run:
        item = self._writable(run.run_id, run.k)
        if look_seq is not None and item.run.look_seq != look_seq:
            raise StaleExecution(run.run_id, run.k, "a later look began")
        return self._write(item, "update", changes)

    def enqueue(self, run: Run, **changes: Any) -> Run:
        item = self._writable(run.run_id, run.k)
        asked_at = run.reopened_at or run.created_at
        item.queue_place = (0 if run.priority is Priority.URGENT else 1, asked_at, run.run_id)
        return self._write(item, "enqueue", {**changes, "state": RunState.QUEUED})

    def succeed(self, run: Run) -> Run:
        item = self._writable(run.run_id, run.k)
        item.token = None
        return self._write(item, "succeed", {"k": run.k + 1, "history_base": item.run.shift_seq})

    def reopen(self, run: Run, **changes: Any) -> Run | None:
        item = self.items.get(run.run_id)
        if item is None or item.run.k != run.k or item.run.state not in REOPENABLE or item.untold_since is not None:
            if self.load(run.run_id, run.k).state not in REOPENABLE:
                raise StaleExecution(run.run_id, run.k, "the run is not over")
            return None
        item.due, item.listed = changes["reopened_at"] + SOON, True
        self._write(item, "reopen", {**changes, "k": run.k + 1})
        return self.load(run.run_id, run.k + 1)

    def begin_look(self, run_id: str, k: int, now: datetime, interval: int = 60, entry: str = "") -> Run:
        item = self._writable(run_id, k)
        if entry and entry < item.look_entry:
            raise StaleExecution(run_id, k, "a later look began")
        item.token, item.last_look_at, item.look_entry = None, now, entry or item.look_entry
        item.due = now + timedelta(seconds=interval)
        return self._write(item, "begin_look", {"look_seq": 1})

    def nap(self, run: Run, token: str, interval: int, now: datetime, counter: int, look_seq: int) -> bool:
        try:
            item = self._writable(run.run_id, run.k)
        except StaleExecution:
            self.load(run.run_id, run.k)
            return False
        if item.run.signal_counter != counter or item.run.look_seq != look_seq:
            return False
        item.token, item.interval, item.due = token, interval, now + timedelta(seconds=interval)
        self._write(item, "nap", {"seen_counter": counter})
        return True

    def _writable(self, run_id: str, k: int) -> Item:
        item = self.items.get(run_id)
        if item is None or item.run.k != k or item.run.state.is_final:
            raise StaleExecution(run_id, k, "its record was written by somebody else, or the run is over")
        return item

    def _write(self, item: Item, name: str, changes: dict[str, Any]) -> Run:
        known = {n: DEFAULTS[n] if v is None else v for n, v in changes.items()}
        known |= {n: getattr(item.run, n) + 1 for n in COUNTED & known.keys()}
        if known.get("waiting_since") is not None:
            item.due = known["waiting_since"] + SOON
        if known.get("state", RunState.QUEUED) is not RunState.QUEUED:
            item.queue_place = None
        item.run = run = item.run.model_copy(update=known)
        self.wrote(name)
        return run

    # signals ----------------------------------------------------------------------------------------------------

    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        item = self.items.get(run_id)
        if item is None:
            code = {"Error": {"Code": "ConditionalCheckFailedException", "Message": "The conditional request failed"}}
            raise ClientError(code, "UpdateItem")
        run = self._write(item, "bump", {"signal_counter": item.run.signal_counter + 1})
        nap = None if item.token is None else Nap(item.token, item.interval or 0, item.last_look_at)
        item.signals[run.signal_counter] = signal.model_copy(update={"counter": run.signal_counter})
        self.wrote("signal")
        return nap

    def signals_since(self, run_id: str, counter: int) -> Sequence[Signal]:
        item = self.items.get(run_id)
        found = item.signals if item is not None else {}
        return [found[n] for n in sorted(found) if n > counter][:MAX_TRAIL]

    # attempts ---------------------------------------------------------------------------------------------------

    def claim_attempt(self, run: Run, attempt: Attempt) -> Run | None:
        item = self.items.get(run.run_id)
        free = item is not None and item.run.attempt == attempt.n - 1 and attempt.n not in item.attempts
        if item is None or item.run.k != run.k or item.run.state.is_final or not free:
            if self.load(run.run_id, run.k).attempt >= attempt.n:
                return None
            raise StaleExecution(run.run_id, run.k, "an attempt could not be claimed: the run is over")
        item.attempts[attempt.n] = attempt
        return self._write(item, "claim_attempt", {"attempt": attempt.n})

    def save_attempt(self, run: Run, attempt: Attempt, look_seq: int | None = None) -> bool:
        item = self.items[run.run_id]
        if look_seq is not None and self._writable(run.run_id, run.k).run.look_seq != look_seq:
            raise StaleExecution(run.run_id, run.k, "a later look began")
        there = item.attempts.get(attempt.n)
        if run.k < item.run.k or (there is not None and there.ended_at is not None):
            return False
        item.attempts[attempt.n] = attempt
        self.wrote("save_attempt")
        return True

    def correct_cause(self, run: Run, attempt: int, wrong: EndCause, right: EndCause) -> None:
        attempts = self.items[run.run_id].attempts
        there = attempts.get(attempt)
        if there is not None and there.end_cause is wrong and run.k >= self.items[run.run_id].run.k:
            attempts[attempt] = there.model_copy(update={"end_cause": right})
            self.wrote("correct_cause")

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        item = self.items.get(run_id)
        return [] if item is None else [item.attempts[n] for n in sorted(item.attempts)]

    # audit and refusals -----------------------------------------------------------------------------------------

    def audit(self, run_id: str, line: AuditLine) -> None:
        self.items[run_id].trail.append(line)
        self.wrote("audit")

    def audit_trail(self, run_id: str, limit: int = MAX_TRAIL) -> Sequence[AuditLine]:
        return sorted(self.items[run_id].trail, key=lambda line: line.at)[-min(limit, MAX_TRAIL) :]

    def reject(self, rejection: Rejection) -> bool:
        key = (rejection.run_id, rejection.digest)
        if key in self.refused:
            return False
        self.refused[key] = rejection
        self.wrote("reject")
        return True

    def rejections(self, run_id: str) -> Sequence[Rejection]:
        return [self.refused[key] for key in sorted(self.refused) if key[0] == run_id]

    # leases -----------------------------------------------------------------------------------------------------

    def lease_holder(self, pool: str) -> str | None:
        return self.held.get(pool)

    def next_in_line(self, pool: str) -> str | None:
        waiting = [i.queue_place for i in self.items.values() if i.queue_place is not None and i.run.pool == pool]
        return min(waiting)[2] if waiting else None

    def take_lease(self, run: Run, now: datetime) -> bool:
        item = self.items.get(run.run_id)
        free = self.held.get(run.pool) in (None, run.run_id)
        if not free or item is None or item.run.k != run.k or item.run.state.is_final:
            self.load(run.run_id, run.k)
            return False
        self.held[run.pool], self.held_since[run.pool] = run.run_id, now
        item.queue_place, item.due = None, now + SOON
        self._write(item, "take_lease", {"state": RunState.PROVISIONING, "leased_at": now})
        return True

    def finish(self, run: Run, state: RunState, **changes: Any) -> Run:
        item = self._writable(run.run_id, run.k)
        if self.held.get(run.pool) == run.run_id:
            del self.held[run.pool]
        item.token, item.queue_place, item.listed = None, None, False
        item.untold_since = changes.get("ended_at") or run.created_at
        kept = {name: value for name, value in changes.items() if value is not None}
        self._write(item, "finish", {**kept, "state": state})
        return self.load(run.run_id, run.k)

    def active_on(self, hyperpod_cluster: str) -> Sequence[Run]:
        listed = [self.items[n] for n in sorted(self.items) if self.items[n].listed]
        return [i.run for i in listed if i.run.hyperpod_cluster == hyperpod_cluster and not i.run.state.is_final]

    def leases(self) -> Sequence[Lease]:
        return [Lease(pool, self.held[pool], self.held_since[pool]) for pool in sorted(self.held)]

    def release_lease(self, lease: Lease) -> bool:
        holder, same = self.get(lease.run_id), self.held.get(lease.pool) == lease.run_id
        open_ = holder is not None and not holder.state.is_final
        if open_ or not same or self.held_since[lease.pool] != lease.since:
            return False
        del self.held[lease.pool]
        self.wrote("release_lease")
        return True

    # for the reconciler -----------------------------------------------------------------------------------------

    def open_runs(self, limit: int) -> Sequence[OpenRun]:
        found = [OpenRun(i.run, i.due) for i in self.items.values() if not i.run.state.is_final]
        return sorted(found, key=lambda r: (r.due, r.run.run_id))[:limit]

    def untold(self, limit: int) -> Sequence[str]:
        found = [(i.untold_since, n) for n, i in self.items.items() if i.untold_since is not None]
        return [n for _, n in sorted(found)][:limit]

    def told(self, run_id: str) -> None:
        item = self.items.get(run_id)
        if item is not None and item.untold_since is not None:
            item.untold_since = None
            self.wrote("told")
