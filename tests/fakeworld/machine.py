"""The shipped state machines over virtual time: the few constructs that they use, read from their own files.

Gaps: no history limit, no payload limit, no map or parallel state; an expression is field access, a literal, one comparison
or a concatenation, and anything else is an error here. A stopped parent stops its child, or leaves it as an orphan, as
the caller says. An execution's name is never free again.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

MACHINES = Path(__file__).resolve().parents[2] / "statemachine"
EXPRESSION = re.compile(r"^\{%(.*)%\}$", re.DOTALL)
TERM = re.compile(r"\s*(?:'(?P<text>[^']*)'|(?P<number>\d+)|\$(?P<path>[\w.]+)|(?P<mark>[&=]))\s*")
Reader = Callable[[dict[str, Any]], Any]


class UnknownExpression(ValueError):
    """The machine uses more of JSONata than this world knows."""


@cache
def compiled(text: str) -> Reader:
    """A reader over ``{"states": ..., variable: ...}``."""
    parts: list[Any] = []
    marks: list[str] = []
    at = 0
    while at < len(text):
        match = TERM.match(text, at)
        if match is None or match.end() == at:
            raise UnknownExpression(text)
        at = match.end()
        if match["mark"]:
            marks.append(match["mark"])
        elif match["path"]:
            parts.append(tuple(match["path"].split(".")))
        else:
            parts.append(int(match["number"]) if match["number"] else match["text"])
    if len(parts) != len(marks) + 1 or len(set(marks)) > 1 or marks.count("=") > 1:
        raise UnknownExpression(text)

    def value(part: Any, scope: dict[str, Any]) -> Any:
        if not isinstance(part, tuple):
            return part
        found: Any = scope
        for name in part:
            found = found[name]  # an undefined field is an error in Step Functions too
        return found

    if not marks:
        return lambda scope: value(parts[0], scope)
    if marks[0] == "=":
        return lambda scope: bool(value(parts[0], scope) == value(parts[1], scope))
    return lambda scope: "".join([str(value(part, scope)) for part in parts])


def _prepared(template: Any) -> Reader:
    if isinstance(template, dict):
        readers = {name: _prepared(value) for name, value in template.items()}
        return lambda scope: {name: read(scope) for name, read in readers.items()}
    if isinstance(template, str) and (match := EXPRESSION.match(template)):
        return compiled(match[1])
    return lambda _: template


_READERS: dict[int, tuple[Any, Reader]] = {}


def evaluated(template: Any, scope: dict[str, Any]) -> Any:
    """Templates are parts of the loaded machines: each is prepared once, and kept so that its id stays its own."""
    kept = _READERS.get(id(template))
    if kept is None or kept[0] is not template:
        kept = _READERS[id(template)] = template, _prepared(template)
    return kept[1](scope)


class Platform(Protocol):
    """What executions need of the world around them."""

    rng: random.Random
    time: float

    def at(self, delay: float, call: Callable[[], None], background: bool = False) -> None: ...

    def stamp(self) -> str: ...

    def invoke(self, payload: dict[str, Any], done: Callable[[Any, tuple[str, str] | None], None]) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def note(self, what: str) -> None: ...


@cache
def machine(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MACHINES / f"{name}.asl.json").read_text())
    return loaded


@dataclass
class Execution:
    """One execution. ``status`` is RUNNING, SUCCEEDED, FAILED, TIMED_OUT or ABORTED."""

    service: StepFunctions
    kind: str
    name: str
    input: dict[str, Any]
    parent: Callable[[Execution], None] | None = None
    status: str = "RUNNING"
    state: str = ""
    output: Any = None
    error: tuple[str, str] = ("", "")
    variables: dict[str, Any] = field(default_factory=dict)
    visit: int = 0
    retries: dict[int, int] = field(default_factory=dict)
    child: Execution | None = None
    token: str | None = None
    started: str = ""
    stopped: str | None = None
    entered: str = ""

    def start(self) -> None:
        self.started = self.service.platform.stamp()
        definition = machine(self.kind)
        self.service.platform.at(definition["TimeoutSeconds"], self._overdue, background=True)
        self._enter(definition["StartAt"], self.input)

    def stop(self, orphan: bool) -> None:
        """StopExecution: nothing of this execution runs any more."""
        child = self.child
        self._close("ABORTED", error=("", "stopped"))
        if child is not None and not orphan:
            child.stop(orphan=False)

    def _overdue(self) -> None:
        if self.status == "RUNNING":
            self._close("TIMED_OUT", error=("States.Timeout", "the execution is overdue"))

    def _close(self, status: str, output: Any = None, error: tuple[str, str] = ("", "")) -> None:
        if self.status != "RUNNING":
            return
        self.status, self.output, self.error = status, output, error
        self.stopped = self.service.platform.stamp()
        self._move()
        self.service.platform.note(f"{self.name} {status} {error[0]}".rstrip())
        self.service.platform.ended(self)
        if self.parent is not None:
            self.parent(self)

    # states -----------------------------------------------------------------------------------------------------

    def _enter(self, name: str, given: Any) -> None:
        while self.status == "RUNNING":
            state = machine(self.kind)["States"][name]
            self.state, self.retries, self.entered = name, {}, self.service.platform.stamp()
            scope = self._scope(input=given)
            match state["Type"]:
                case "Pass":
                    name, given = state["Next"], self._leave(state, scope, given)
                case "Choice":
                    name, given = self._chosen(state, scope, given)
                case "Succeed":
                    return self._close("SUCCEEDED", output=evaluated(state.get("Output", given), scope))
                case "Fail":
                    return self._close("FAILED", error=(evaluated(state["Error"], scope), state["Cause"]))
                case "Task":
                    return self._try(state, given)
                case other:
                    raise UnknownExpression(f"state type {other}")
        return None

    def _scope(self, **states: Any) -> dict[str, Any]:
        context = {
            "Execution": {"Name": self.name, "StartTime": self.started, "Id": f"arn:{self.name}"},
            "State": {"Name": self.state, "EnteredTime": self.entered, "RetryCount": sum(self.retries.values())},
        }
        return {**self.variables, "states": {"context": context, **states}}

    def _leave(self, rule: dict[str, Any], scope: dict[str, Any], default: Any) -> Any:
        output = evaluated(rule["Output"], scope) if "Output" in rule else default
        if "Assign" in rule:
            self.variables |= evaluated(rule["Assign"], scope)
        return output

    def _chosen(self, state: dict[str, Any], scope: dict[str, Any], given: Any) -> tuple[str, Any]:
        for rule in state["Choices"]:
            if evaluated(rule["Condition"], scope) is True:
                return rule["Next"], self._leave(rule, scope, given)
        return state["Default"], given

    def _move(self) -> None:
        """Whatever this execution waited for is not waited for any more."""
        self.visit += 1
        if self.token is not None:
            self.service.left[self.token] = self.service.platform.time
            self.token = None

    def _try(self, state: dict[str, Any], given: Any) -> None:
        self._move()
        visit, platform = self.visit, self.service.platform

        def done(result: Any, failure: tuple[str, str] | None) -> None:
            if self.visit != visit or self.status != "RUNNING":
                return  # answered, timed out or stopped before
            self._move()
            if failure is not None:
                self._failed(state, given, failure)
                return
            scope = self._scope(input=given, result=result)
            self._enter(state["Next"], self._leave(state, scope, result))

        scope, resource = self._scope(input=given), state["Resource"]
        limit = evaluated(state["TimeoutSeconds"], scope)
        platform.at(limit, lambda: done(None, ("States.Timeout", "")), background=limit > 3_600)
        if resource.endswith("lambda:invoke.waitForTaskToken"):
            token = self.token = self.service.token(done)
            scope["states"]["context"]["Task"] = {"Token": token}
            payload = evaluated(state["Arguments"]["Payload"], scope)
            platform.invoke(payload, lambda _, failure: done(None, failure) if failure else None)
        elif resource.endswith("lambda:invoke"):
            payload = evaluated(state["Arguments"]["Payload"], scope)
            platform.invoke(payload, lambda result, failure: done({"Payload": result}, failure))
        elif resource.endswith("startExecution.sync:2"):
            self._shift(evaluated(state["Arguments"], scope), done)
        else:
            raise UnknownExpression(resource)

    def _shift(self, arguments: dict[str, Any], done: Callable[[Any, tuple[str, str] | None], None]) -> None:
        def ended(child: Execution) -> None:
            if child.status == "SUCCEEDED":
                done({"Output": child.output}, None)
            else:
                cause = json.dumps({"Status": child.status, "Error": child.error[0], "Cause": child.error[1]})
                done(None, ("States.TaskFailed", cause))

        child = self.service.start("shift", arguments["Name"], arguments["Input"], ended)
        if child is None:
            done(None, ("StepFunctions.ExecutionAlreadyExistsException", arguments["Name"]))
        elif child.status == "RUNNING":
            self.child = child

    def _failed(self, state: dict[str, Any], given: Any, failure: tuple[str, str]) -> None:
        for number, rule in enumerate(state.get("Retry", [])):
            if matches(rule["ErrorEquals"], failure[0]):
                used = self.retries.get(number, 0)
                if used >= rule["MaxAttempts"]:
                    break
                self.retries[number] = used + 1
                most = min(rule["MaxDelaySeconds"], rule["IntervalSeconds"] * rule["BackoffRate"] ** used)
                return self._try_later(state, given, self.service.platform.rng.uniform(0, most))
        for rule in state.get("Catch", []):
            if matches(rule["ErrorEquals"], failure[0]):
                error = {"Error": failure[0], "Cause": failure[1]}
                scope = self._scope(input=given, errorOutput=error)
                return self._enter(rule["Next"], self._leave(rule, scope, error))
        self._close("FAILED", error=failure)
        return None

    def _try_later(self, state: dict[str, Any], given: Any, delay: float) -> None:
        visit = self.visit

        def again() -> None:
            if self.visit == visit and self.status == "RUNNING":
                self._try(state, given)

        self.service.platform.at(delay, again)


def matches(names: list[str], error: str) -> bool:
    """States.ALL is everything but what no catcher sees; States.TaskFailed everything but a timeout."""
    if error in ("States.Runtime", "States.DataLimitExceeded"):
        return error in names
    return error in names or "States.ALL" in names or ("States.TaskFailed" in names and error != "States.Timeout")


class StepFunctions:
    """Executions by name, and tokens."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.executions: dict[str, Execution] = {}
        self.left: dict[str, float] = {}
        """Token -> when its task was left: an answer after that is refused."""
        self._waiting: dict[str, Callable[[Any, tuple[str, str] | None], None]] = {}

    def start(
        self, kind: str, name: str, given: dict[str, Any], parent: Callable[[Execution], None] | None = None
    ) -> Execution | None:
        if name in self.executions:
            return None
        execution = self.executions[name] = Execution(self, kind, name, given, parent)
        self.platform.at(0.02, execution.start)
        return execution

    def token(self, done: Callable[[Any, tuple[str, str] | None], None]) -> str:
        token = f"token-{len(self._waiting)}"
        self._waiting[token] = done
        return token

    def answer(self, token: str, result: dict[str, Any]) -> bool:
        if token in self.left:
            return False
        self._waiting[token](result, None)
        return True
