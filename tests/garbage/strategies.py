"""Bytes that are no document, and documents that are not what they seem: what a reader may find where it reads."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**60), 10**60),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "2026-11-30T03:00:00",
            "2026-11-30T03:00:00Z",
            "9999-12-31T23:59:59Z",
            "0001-01-01T00:00:00+14:00",
            "\x00",
            "../x",
        ]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(p for name, one in inner for p in _paths(one, (*before, name)))] if before or inner else [before]


def _changed(value: Any, path: tuple[Any, ...], new: Any, how: str) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and how == "gone":
        del copy[path[0]]
    elif len(path) == 1 and how == "added" and isinstance(copy, dict):
        copy["a_newer_field"] = new
    else:
        copy[path[0]] = _changed(copy[path[0]], path[1:], new, how)
    return copy


@st.composite
def mutated(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """A valid JSON document with one to three of its values changed, gone, or joined by an unknown one."""
    found: Any = valid
    for _ in range(draw(st.integers(1, 3))):
        paths = [p for p in _paths(found) if p]
        if not paths:
            break
        how = draw(st.sampled_from(["changed", "changed", "gone", "added"]))
        found = _changed(found, draw(st.sampled_from(paths)), draw(VALUES), how)
    return dict(found)


@st.composite
def stored(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """What may lie at a key: any bytes, any JSON, the document cut off, or a mutated one."""
    kind = draw(st.sampled_from(["bytes", "json", "cut", "flipped", "mutated", "mutated", "mutated"]))
    whole = json.dumps(valid).encode()
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "json":
        return json.dumps(draw(VALUES)).encode()
    if kind == "cut":
        return whole[: draw(st.integers(0, len(whole) - 1))]
    if kind == "flipped":
        at = draw(st.integers(0, len(whole) - 1))
        return whole[:at] + bytes([draw(st.integers(0, 255))]) + whole[at + 1 :]
    return json.dumps(draw(mutated(valid))).encode()
