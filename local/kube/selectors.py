"""Label and field selectors, as the list calls of the Kubernetes API take them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from local.kube.errors import BadRequest, Json

Test = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s!=]*)$")
_EXISTS = re.compile(r"^(?P<not>!?)\s*(?P<key>[\w./-]+)$")


def label_test(selector: str) -> Test:
    """Parse ``a=b,c!=d,e in (f,g),h,!i``. Raises :class:`BadRequest` for anything else."""
    tests = [_requirement(part.strip()) for part in _split(selector)]
    return lambda labels: all(test(labels) for test in tests)


def _split(selector: str) -> list[str]:
    """At commas outside of parentheses."""
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _requirement(text: str) -> Test:
    if found := _SET.match(text):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        wanted = found["word"] == "in"
        # As in Kubernetes, ``notin`` and ``!=`` also select objects that lack the label.
        return lambda labels: (labels[key] in values) is wanted if key in labels else not wanted
    if found := _EQUAL.match(text):
        key, value, wanted = found["key"], found["value"], found["sign"] != "!="
        return lambda labels: (labels.get(key) == value) is wanted
    if found := _EXISTS.match(text):
        key, present = found["key"], not found["not"]
        return lambda labels: (key in labels) is present
    raise BadRequest(f"unable to parse requirement: {text[:200]!r}")


def field_test(selector: str, allowed: frozenset[str]) -> Callable[[Json], bool]:
    """Parse ``metadata.name=x,status.phase!=y`` over dotted paths; only ``allowed`` paths are known."""
    pairs: list[tuple[str, str, bool]] = []
    for part in _split(selector):
        found = _EQUAL.match(part.strip())
        if not found or found["key"] not in allowed:
            raise BadRequest(f"field label not supported: {part.strip()[:200]}")
        pairs.append((found["key"], found["value"], found["sign"] != "!="))
    return lambda item: all((_at(item, path) == value) is wanted for path, value, wanted in pairs)


def _at(item: Json, path: str) -> str:
    value: object = item
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value)
