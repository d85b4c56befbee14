"""One run, its state machines, and everybody who may touch its record, in any order.

A state is a value; ``Model.moves`` are all states that may follow. The machines are those of ``statemachine/``, told in a few
words: a look's state is left by an answer to its token, by its timeout, or by a retry where its function died, or lives on
and only its connection was lost; what follows is another look, or the parent's next step.

Gaps: time stands still (a timeout may come whenever the look's function has ended, in any order with everything else); the
publishing end of a run is not walked."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.core.run import Awaiting, Run, RunState, Signal, SignalKind
from nightshift.steps import look, signals, transitions
from nightshift.steps.requests import LookRequest, StepRequest
from tests.builders import NOW, attempt, run
from tests.interleavings.outside import ports
from tests.interleavings.replay import Actors, Ask, Call, Contents, Done, Log
from tests.interleavings.table import SmallTable

RUN_KEY = ("RUN#maze-1", "RUN")
INTERVAL = 60


class Look(NamedTuple):
    """One try of one visit of a Look state: the n-th visit of all."""

    k: int
    awaiting: Awaiting
    visit: int
    retry: int = 0
    again: int = 0
    """0 for the invocation itself, above for repeats of it."""

    @property
    def token(self) -> str:
        return f"t{self.visit}.{self.retry}"

    @property
    def request(self) -> LookRequest:
        return LookRequest(
            step="look",
            run_id="maze-1",
            k=self.k,
            awaiting=self.awaiting,
            shift_name=f"maze-1-r{self.k}-s1",
            shift_started=NOW,
            token=self.token,
            entered=NOW + timedelta(seconds=self.visit),
            retry=self.retry,
        )


class Sender(NamedTuple):
    number: int
    kind: str = "sender"


class Parent(NamedTuple):
    """The steps between a fence and the next attempt."""

    k: int
    visit: int
    again: int = 0
    kind: str = "parent"


class Succession(NamedTuple):
    k: int
    kind: str = "succession"


# Named tuples are equal where their values are: hence a kind in those that others could be taken for.
Name = Look | Sender | Parent | Succession


class Machine(NamedTuple):
    """An execution: it waits for ``look``'s token; or for its parent's steps (None). ``shift`` is the number of the last
    shift that it began."""

    k: int
    look: Look | None
    shift: int = 0


class Budget(NamedTuple):
    """What may still happen. ``failures`` of the job; ``successions``: other executions that take over."""

    senders: int = 0
    repeats: int = 0
    crashes: int = 0
    timeouts: int = 0
    failures: int = 0
    successions: int = 0


Table = frozenset[tuple[tuple[str, str], int]]


class State(NamedTuple):
    table: Table
    actors: frozenset[tuple[Name, Log]]
    machines: frozenset[Machine]
    looks: frozenset[Look]
    """Every look that was ever invoked, as long as one may be repeated."""
    left: Budget
    visits: int = 1
    failed: tuple[str, ...] = ()
    seen: int = 0
    """The highest signal that was counted before a look observed."""
    hurt: bool = False
    """Something died, and no state was entered since: what it left may have to wait for a timeout."""


class Record(NamedTuple):
    """The run, the token that is registered, and which look began last."""

    run: Run
    token: str | None
    entry: str


class Violation(Exception):
    """``name`` is the property's."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


def program(name: Hashable, ask: Ask) -> Any:
    """What an actor does: the shipped steps over the shipped store."""
    outside = ports(ask)
    match name:
        case Look():
            look.look(outside, name.request, INTERVAL)
        case Sender():
            signals.wake(outside, "maze-1", Signal(kind=SignalKind.OUTCOME, detail=str(name.number), at=NOW))
        case Parent():
            for step in (transitions.provision, lambda p, r: transitions.submit(p, r, "bucket")):
                step(outside, StepRequest(step="submit", run_id="maze-1", k=name.k))
        case Succession():
            transitions.successor(outside, StepRequest(step="successor", run_id="maze-1", k=name.k))


def beginning(budget: Budget, contents: Contents) -> State:
    """A run in the middle of its first attempt, whose shift has just been entered."""
    table: Any = SmallTable()
    store = DynamoRunStore(table)
    new = run(attempt=0, state=RunState.ADMITTED, shift_seq=0)
    store.create(new)
    store.claim_attempt(new, attempt(1, running_at=NOW))
    store.update(new, state=RunState.RUNNING, attempt=1, shift_seq=1)
    first = Look(1, Awaiting.ATTEMPT, 1)
    return State(
        table=frozenset((key, contents.number(item)) for key, item in table.items.items()),
        actors=frozenset({(first, ())}),
        machines=frozenset({Machine(1, first)}),
        looks=frozenset({first} if budget.repeats else ()),
        left=budget,
    )


class Model:
    """All moves from a state, each with what a person reads of it in a schedule that ends in a violation."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.actors = Actors(program)
        self._records: dict[Table, Record] = {}
        self._made: dict[tuple[Table, Name, Log], tuple[int, Table]] = {}

    # moves ------------------------------------------------------------------------------------------------------

    def moves(self, state: State) -> list[tuple[str, State]]:
        calls = [(name, log, self._next(name, log)) for name, log in sorted(state.actors, key=lambda a: _told(a[0]))]
        for name, log, call in calls:
            if self._is_alone(state, call):
                return [self._step(state, name, log, call)]
        found = [self._step(state, *one) for one in calls]
        if state.left.crashes:
            less = state._replace(left=state.left._replace(crashes=state.left.crashes - 1))
            for name, log, _ in calls:
                if log or isinstance(name, Look | Parent):
                    found += self._crashes(less, name)
        return [*found, *self._timeouts(state), *self._starts(state)]

    def _next(self, name: Name, log: Log) -> Call:
        call = self.actors.next(name, log)
        assert isinstance(call, Call)
        return call

    def _is_alone(self, state: State, call: Call) -> bool:
        """Whether the call has the same answer and the same effect whenever it comes from here on, so that no other order
        of it needs to be tried: an answer to a token that nobody waits for any more, and reading what nobody writes."""
        if call.kind == "answer":
            return all(m.look is None or m.look.token != call.what[0] for m in state.machines)
        if call.kind in ("job", "submit"):
            return not state.left.failures
        quiet = not state.left.failures and not state.failed
        return quiet and call.kind == "table" and _reads(call, "ATTEMPT#")

    def _starts(self, state: State) -> list[tuple[str, State]]:
        left, found = state.left, list[tuple[str, State]]()
        if left.repeats:
            less = state._replace(left=left._replace(repeats=left.repeats - 1))
            less = less if left.repeats > 1 else less._replace(looks=frozenset())
            found += [self._begin(less, one._replace(again=left.repeats)) for one in sorted(state.looks)]
        if left.senders and not left.failures:
            found.append(
                self._begin(state._replace(left=left._replace(senders=left.senders - 1)), Sender(left.senders))
            )
        if left.failures:
            less = state._replace(left=left._replace(failures=left.failures - 1), failed=("maze-1-a1",))
            found.append(("the job fails", less))
        if left.successions:
            less = state._replace(left=left._replace(successions=left.successions - 1))
            found.append(self._begin(less, Succession(self.run(state).k)))
        return found

    def _timeouts(self, state: State) -> list[tuple[str, State]]:
        """A look's state is longer than its function may run."""
        left, running = state.left, {name for name, _ in state.actors}
        less = state._replace(left=left._replace(timeouts=left.timeouts - 1))
        return [
            (f"{machine.look.token} times out", self._enter(less, machine, machine.look.awaiting))
            for machine in state.machines
            if left.timeouts and machine.look is not None and machine.look not in running
        ]

    def _crashes(self, state: State, name: Name) -> list[tuple[str, State]]:
        gone = state._replace(actors=frozenset(a for a in state.actors if a[0] != name), hurt=True)
        found = [(f"{_told(name)} dies", gone)]
        for machine in state.machines:
            if isinstance(name, Look) and machine.look == name:
                again = name._replace(retry=name.retry + 1)
                found.append((f"{_told(name)} dies and is retried", self._invoke(gone, machine, again)))
                found.append((f"{_told(name)} is lost sight of and retried", self._invoke(state, machine, again)))
            if isinstance(name, Parent) and machine[:2] == (name.k, None):
                again = _with(gone, name._replace(again=name.again + 1))
                found.append((f"{_told(name)} dies and is retried", again))
        return found

    # one step ---------------------------------------------------------------------------------------------------

    def _begin(self, state: State, name: Name) -> tuple[str, State]:
        return self._step(_with(state, name), name, (), self._next(name, ()))

    def _step(self, state: State, name: Name, log: Log, call: Call) -> tuple[str, State]:
        before = self.run(state)
        number, state = self._carried_out(state, name, log, call)
        log = (*log, number)
        follows = self.actors.next(name, log)
        others = [a for a in state.actors if a[0] != name]
        if isinstance(follows, Call):
            state = state._replace(actors=frozenset([*others, (name, log)]))
        else:
            state = self._ended(state._replace(actors=frozenset(others)), name, follows)
        self._check(before, state, name)
        return f"{_told(name)}: {call.kind} {_short(call)}", state

    def _carried_out(self, state: State, name: Name, log: Log, call: Call) -> tuple[int, State]:
        match call.kind:
            case "table":
                return self._on_table(state, name, log, call)
            case "job":
                known = "failed" if call.what[0] in state.failed else "running"
                if isinstance(name, Look):
                    state = state._replace(seen=max(state.seen, self._counter_in(log)))
                return self.actors.answered(lambda: known), state
            case "submit":
                return self.actors.answered(lambda: None), state
            case "start":
                machine = Machine(self.run(state).k, None)
                state = state._replace(machines=state.machines | {machine})
                return self.actors.answered(lambda: None), self._enter(state, machine, Awaiting.ATTEMPT)
            case "answer":
                return self._answer(state, *call.what)
        raise AssertionError(call.kind)

    def _on_table(self, state: State, name: Name, log: Log, call: Call) -> tuple[int, State]:
        made = self._made.get((state.table, name, log))
        if made is None:
            made = self._made[state.table, name, log] = self._call_table(state.table, call)
        number, table = made
        if table == state.table:
            return number, state
        if isinstance(name, Look | Parent | Succession) and name.k < self.run(state).k:
            raise Violation("nobody writes for an old k", f"{_told(name)}: {_short(call)}")
        return number, state._replace(table=table)

    def _call_table(self, items: Table, call: Call) -> tuple[int, Table]:
        method, request = call.what
        numbers = dict(items)
        table = SmallTable({key: self.contents[number] for key, number in numbers.items()})
        before = table.items
        number = self.actors.answered(lambda: getattr(table, method)(**request))
        after = {
            key: numbers[key] if before.get(key) is item else self.contents.number(item)
            for key, item in table.items.items()
        }
        return number, frozenset(after.items())

    def _answer(self, state: State, token: str, decision: str, shift: str) -> tuple[int, State]:
        machine = next((m for m in state.machines if m.look is not None and m.look.token == token), None)
        if machine is None or machine.look is None:
            return self.actors.answered(lambda: False), state
        number = self.actors.answered(lambda: True)
        if decision == "look":
            return number, self._enter(state, machine, machine.look.awaiting)
        if decision == "stale":
            return number, state._replace(machines=state.machines - {machine})
        if int(shift) <= machine.shift:
            raise Violation("a shift's number is used once", f"{shift} after {machine.shift}")
        state, machine = _renumbered(state, machine, int(shift))
        if decision == "recover" and machine.look.awaiting is Awaiting.ATTEMPT:
            return number, self._enter(state, machine, Awaiting.FENCE)
        if decision == "ready" and machine.look.awaiting is Awaiting.FENCE:
            return number, _with(_replaced(state, machine, None), Parent(machine.k, state.visits))
        raise Violation("only what happened is decided", f"{machine.look} was answered {decision}")

    def _ended(self, state: State, name: Name, done: Done) -> State:
        if not isinstance(name, Parent):
            if done.error and not isinstance(name, Succession):
                raise Violation("no look and no signal breaks", f"{_told(name)}: {done.error}")
            return state
        machine = next((m for m in state.machines if m[:2] == (name.k, None)), None)
        if machine is None:
            return state
        if done.error:
            return state._replace(machines=state.machines - {machine})
        return self._enter(state, machine, Awaiting.ATTEMPT)

    def _enter(self, state: State, machine: Machine, awaiting: Awaiting) -> State:
        visit = state.visits + 1
        return self._invoke(state._replace(visits=visit), machine, Look(machine.k, awaiting, visit))

    def _invoke(self, state: State, machine: Machine, entered: Look) -> State:
        state = _with(_replaced(state, machine, entered), entered)
        looks = state.looks | {entered} if state.left.repeats else state.looks
        hurt = state.hurt and machine.k < self.run(state).k
        return state._replace(looks=looks, hurt=hurt)

    # properties -------------------------------------------------------------------------------------------------

    def run(self, state: State) -> Run:
        return self._record(state).run

    def _record(self, state: State) -> Record:
        if state.table not in self._records:
            item = self.contents[dict(state.table)[RUN_KEY]]
            self._records[state.table] = Record(Run.model_validate(item), item.get("token"), item.get("look_entry", ""))
        return self._records[state.table]

    def _counter_in(self, log: Log) -> int:
        """The signal counter in the record that the look read last."""
        for number in reversed(log):
            answer = self.actors.answers[number].get("answer") or {}
            record = answer.get("Attributes") or answer.get("Item") or {}
            if "signal_counter" in record:
                return int(record["signal_counter"])
        raise AssertionError("a look observes only after it has begun")

    def _check(self, before: Run, state: State, name: Name) -> None:
        now, token, entry = self._record(state)
        live = self._in_charge(state)
        if now.recoveries_without_progress > len(state.failed) or now.attempt > 1 + len(state.failed):
            raise Violation("one recovery for one failure", f"{now.recoveries_without_progress} for {state.failed}")
        if now.k < before.k or now.shift_seq < before.shift_seq or now.look_seq < before.look_seq:
            raise Violation("numbers only rise", f"after {_told(name)}")
        if token is not None and live is not None and token != live.token and entry >= _entry(live):
            raise Violation("no dead token over a live one", f"{token} is registered, and {live.token} is waited for")

    def _in_charge(self, state: State) -> Look | None:
        k = self.run(state).k
        return next((m.look for m in state.machines if m.k == k), None)

    def at_rest(self, state: State) -> None:
        """Nothing moves any more until a timeout, or for ever."""
        (now, token, _), live = self._record(state), self._in_charge(state)
        if live is None and not state.hurt:
            raise Violation("somebody goes on with the run", f"no execution r{now.k} waits")
        if state.hurt:
            return
        assert live is not None
        if state.seen < now.signal_counter:
            raise Violation("each signal is seen", f"signal {now.signal_counter} met nobody; {state.seen} were seen")
        if token != live.token:
            raise Violation("the token that waits is registered", f"{live.token} waits, not {token}")
        if state.failed and now.signal_counter and (now.recoveries_without_progress, now.attempt) != (1, 2):
            raise Violation("one recovery for one failure", f"{now.recoveries_without_progress}, attempt {now.attempt}")


def _with(state: State, name: Name) -> State:
    return state._replace(actors=state.actors | {(name, ())})


def _renumbered(state: State, machine: Machine, shift: int) -> tuple[State, Machine]:
    new = machine._replace(shift=shift)
    return state._replace(machines=state.machines - {machine} | {new}), new


def _replaced(state: State, machine: Machine, entered: Look | None) -> State:
    return state._replace(machines=state.machines - {machine} | {machine._replace(look=entered)})


def _reads(call: Call, prefix: str) -> bool:
    method, request = call.what
    return method == "query" and prefix in _values(request["KeyConditionExpression"])


def _values(condition: Any) -> list[Any]:
    if not hasattr(condition, "get_expression"):
        return [condition]
    return [value for part in condition.get_expression()["values"] for value in _values(part)]


@cache
def _entry(name: Look) -> str:
    return name.request.entry


@cache
def _told(name: Name) -> str:
    match name:
        case Look():
            kind = "repeat" if name.again else "look"
            return f"{kind} {name.token} (r{name.k}, {name.awaiting})"
        case Sender():
            return f"signal {name.number}"
        case Parent():
            return f"parent r{name.k}"
        case Succession():
            return f"succession of r{name.k}"


def _short(call: Call) -> str:
    if call.kind != "table":
        return " ".join(map(str, call.what))
    request = call.what[1]
    return f"{call.what[0]} {request.get('UpdateExpression', '')}".strip()
