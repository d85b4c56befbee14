"""DynamoDB's condition and update expressions, as far as the run store uses them; ``test_table.py`` holds them to moto.

Gaps: no paths into documents, no arithmetic in SET, no sets, no functions but ``attribute_exists`` and
``attribute_not_exists``. Anything else is an error here."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

Item = dict[str, Any]
Test = Callable[[Item, dict[str, str], dict[str, Any]], bool]
Operand = Callable[[Item, dict[str, str], dict[str, Any]], Any]

TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),]|[#:]?\w+)")
COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MISSING = object()


class UnknownExpression(ValueError):
    """The store uses more of DynamoDB's expressions than this knows."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens, at = list[str](), 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            if match is None:
                raise UnknownExpression(text)
            self.tokens.append(match[1])
            at = match.end()
        self.text, self.at = text, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token.upper() != wanted):
            raise UnknownExpression(f"{self.text}: {token!r} in place of {wanted!r}")
        self.at += 1
        return token

    def took(self, wanted: str) -> bool:
        found = self.peek().upper() == wanted
        self.at += found
        return found

    def listed(self, one: Callable[[], Any]) -> list[Any]:
        found = [one()]
        while self.took(","):
            found.append(one())
        return found

    def operand(self) -> Operand:
        token = self.take()
        if token.startswith(":"):
            return lambda item, names, values: values[token]
        return lambda item, names, values: item.get(_name(token, names), MISSING)


def _name(token: str, names: dict[str, str]) -> str:
    return names[token] if token.startswith("#") else token


@cache
def condition(text: str) -> Test:
    """Whether an item (empty where there is none) meets a ConditionExpression."""
    reader = _Reader(text)
    test = _any(reader)
    if reader.peek():
        raise UnknownExpression(text)
    return test


def _any(reader: _Reader) -> Test:
    tests = [_all(reader)]
    while reader.took("OR"):
        tests.append(_all(reader))
    return tests[0] if len(tests) == 1 else lambda *given: any(t(*given) for t in tests)


def _all(reader: _Reader) -> Test:
    tests = [_one(reader)]
    while reader.took("AND"):
        tests.append(_one(reader))
    return tests[0] if len(tests) == 1 else lambda *given: all(t(*given) for t in tests)


def _one(reader: _Reader) -> Test:
    if reader.took("NOT"):
        inner = _one(reader)
        return lambda *given: not inner(*given)
    if reader.took("("):
        inner = _any(reader)
        reader.take(")")
        return inner
    if reader.peek().lower() in ("attribute_exists", "attribute_not_exists"):
        wanted = reader.take().lower() == "attribute_exists"
        reader.take("(")
        there = reader.operand()
        reader.take(")")
        return lambda *given: (there(*given) is not MISSING) is wanted
    return _comparison(reader)


def _comparison(reader: _Reader) -> Test:
    left, how = reader.operand(), reader.take().upper()
    if how == "IN":
        reader.take("(")
        options = reader.listed(reader.operand)
        reader.take(")")
        return lambda *given: left(*given) in [option(*given) for option in options]
    if how not in COMPARE:
        raise UnknownExpression(reader.text)
    right, compare = reader.operand(), COMPARE[how]

    def test(*given: Any) -> bool:
        a, b = left(*given), right(*given)
        if a is MISSING or b is MISSING:
            return how == "<>"
        if how not in ("=", "<>") and _kind(a) != _kind(b):
            return False
        return bool(compare(a, b))

    return test


def _kind(value: Any) -> type:
    return Decimal if isinstance(value, (int, Decimal)) and not isinstance(value, bool) else type(value)


class WrongType(ValueError):
    """DynamoDB refuses the whole write."""


@cache
def update(text: str) -> Callable[[Item, dict[str, str], dict[str, Any]], Item]:
    """The item that an UpdateExpression makes of another, which stays as it is."""
    reader = _Reader(text)
    changes: list[Callable[[Item, Item, dict[str, str], dict[str, Any]], None]] = []
    while reader.peek():
        section = reader.take().upper()
        one = {"SET": _set, "ADD": _add, "REMOVE": _remove}.get(section)
        if one is None:
            raise UnknownExpression(text)
        changes += reader.listed(lambda one=one: one(reader))  # type: ignore[misc]

    def apply(item: Item, names: dict[str, str], values: dict[str, Any]) -> Item:
        made = dict(item)
        for change in changes:
            change(made, item, names, values)
        return made

    return apply


def _set(reader: _Reader) -> Any:
    name = reader.take()
    reader.take("=")
    value = reader.operand()

    def change(made: Item, item: Item, names: dict[str, str], values: dict[str, Any]) -> None:
        found = value(item, names, values)
        if found is MISSING:
            raise UnknownExpression(f"{reader.text}: a value is missing")
        made[_name(name, names)] = found

    return change


def _add(reader: _Reader) -> Any:
    name, value = reader.take(), reader.operand()

    def change(made: Item, item: Item, names: dict[str, str], values: dict[str, Any]) -> None:
        before = item.get(_name(name, names), 0)
        if _kind(before) is not Decimal:
            raise WrongType(f"{reader.text}: {name} is no number")
        made[_name(name, names)] = before + value(item, names, values)

    return change


def _remove(reader: _Reader) -> Any:
    name = reader.take()
    return lambda made, item, names, values: made.pop(_name(name, names), None)
