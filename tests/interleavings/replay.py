"""Actors that can be stopped before each call to the outside and copied: real code, run again from its beginning.

A step function is deterministic between two calls, so where it stands is told by the answers that it got so far. Such a log
is small and hashable; running the code on a log leads to its next call, and is remembered."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from nightshift.core.errors import NightshiftError
from tests.interleavings.table import refusal

Log = tuple[int, ...]
Ask = Callable[..., Any]
"""``ask(kind, *what)``: a call to the outside."""


@dataclass(frozen=True)
class Call:
    """What an actor does next."""

    kind: str
    what: tuple[Any, ...]


@dataclass(frozen=True)
class Done:
    """An actor's end: its answer, or the name of its error."""

    answer: Any = None
    error: str = ""


class _Pause(BaseException):
    """Past every handler of the code under test."""


class Contents:
    """Values by number: equal values have one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._values: list[Any] = []

    def number(self, value: Any) -> int:
        told = json.dumps(value, sort_keys=True, default=str)
        if told not in self._numbers:
            self._numbers[told] = len(self._values)
            self._values.append(value)
        return self._numbers[told]

    def __getitem__(self, number: int) -> Any:
        return self._values[number]


class Actors:
    """``program(name)`` is what the actor of that name does, given how it asks."""

    def __init__(self, program: Callable[[Hashable, Ask], Any]) -> None:
        self._program = program
        self._known: dict[tuple[Hashable, Log], Call | Done] = {}
        self.answers = Contents()

    def next(self, name: Hashable, log: Log) -> Call | Done:
        if (name, log) not in self._known:
            self._known[name, log] = self._run(name, log)
        return self._known[name, log]

    def answered(self, call: Callable[[], Any]) -> int:
        """The number of a call's answer, or of its refusal."""
        try:
            return self.answers.number({"answer": call()})
        except ClientError as error:
            reasons = [r.get("Code") for r in error.response.get("CancellationReasons", [])]  # type: ignore[attr-defined]
            told = {"refused": error.response["Error"]["Code"], "by": error.operation_name, "reasons": reasons}
            return self.answers.number(told)

    def _run(self, name: Hashable, log: Log) -> Call | Done:
        given, paused = iter(log), list[Call]()

        def ask(kind: str, *what: Any) -> Any:
            number = next(given, None)
            if number is None:
                paused.append(Call(kind, what))
                raise _Pause
            told = self.answers[number]
            if "refused" in told:
                raise refusal(told["refused"], told["by"], told["reasons"] or None)
            return told["answer"]

        try:
            return Done(self._program(name, ask))
        except _Pause:
            return paused[0]
        except NightshiftError as error:
            return Done(error=type(error).__name__)
