"""Read a document that somebody else wrote. Whatever the bytes are, the answer is the document or ``Unreadable``.

A reader believes nothing that it cannot use: a number that no table takes, a moment without a time zone or a document of a
newer contract would otherwise break the reader much later, and again at each repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nightshift.contract.base import CONTRACT_VERSION, Document, Model

MAX_DOCUMENT: Final = 1_000_000
"""Bytes of the largest document that is read at all. The largest honest one, an outcome with hundreds of evals, has a
tenth of that."""

MAX_NUMBER: Final = 1e15
"""A document's numbers are steps, seconds, shares and counts: what is beyond this is none of them, and may not even fit
into the table."""

YEARS: Final = range(2000, 2200)
_SHOWN = 3
_UNKNOWN = frozenset({"enum", "literal_error", "extra_forbidden"})
M = TypeVar("M", bound=Model)


class Unreadable(ValueError):
    """``newer``: it was written by a newer version of the contract, as far as one can see. The text is bounded and ends up in
    logs and messages after the object's name."""

    def __init__(self, problem: str, newer: bool = False) -> None:
        super().__init__(problem)
        self.newer = newer


@dataclass(frozen=True)
class Reading(Generic[M]):
    """``unknown`` are fields that this version of the contract does not have: a newer writer's, and ignored."""

    document: M
    unknown: tuple[str, ...] = ()


def read_document(kind: type[M], body: bytes | str) -> Reading[M]:
    """Raises Unreadable."""
    try:
        raw = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Unreadable(f"it is no JSON ({str(error)[:100]})") from None
    if not isinstance(raw, dict):
        raise Unreadable(f"it is a JSON {type(raw).__name__}, where a {kind.__name__} is an object")
    version = raw.get("version", CONTRACT_VERSION)
    if isinstance(version, int) and version > CONTRACT_VERSION:
        raise Unreadable(
            f"it is a {kind.__name__} of version {str(version)[:20]} of the contract, and version {CONTRACT_VERSION} is the "
            "newest that is known here: what wrote it is newer than what reads it",
            newer=True,
        )
    try:
        document = kind.model_validate(raw, extra="ignore" if issubclass(kind, Document) else None)
    except ValidationError as error:
        raise _refused(kind, error) from None
    if issubclass(kind, Document):
        for problem in _unusable(document):
            raise Unreadable(f"it is no {kind.__name__}: {problem}")
    unknown = tuple(sorted(str(name)[:40] for name in raw.keys() - _names(kind)))
    return Reading(document, unknown[:10])


def _names(kind: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


def _refused(kind: type[BaseModel], error: ValidationError) -> Unreadable:
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    told = "; ".join(f"{'.'.join(str(p)[:40] for p in e['loc'][:6])}: {e['msg'][:200]}" for e in errors[:_SHOWN])
    more = f", and {len(errors) - _SHOWN} errors more" if len(errors) > _SHOWN else ""
    newer = all(e["type"] in _UNKNOWN for e in errors)
    hint = " (unknown here: what wrote it may be newer than what reads it)" if newer else ""
    return Unreadable(f"it is no {kind.__name__}: {told}{more}{hint}"[:900], newer)


def _unusable(value: Any, path: str = "") -> Iterator[str]:
    """What the types allow and no reader can use."""
    match value:
        case BaseModel():
            for name in type(value).model_fields:
                yield from _unusable(getattr(value, name), f"{path}.{name}" if path else name)
        case dict():
            for name, one in value.items():
                yield from _unusable(one, f"{path}.{str(name)[:40]}")
        case list() | tuple():
            for one in value:
                yield from _unusable(one, path)
        case datetime():
            if value.tzinfo is None:
                yield f"{path} has no time zone"
            elif value.year not in YEARS:
                yield f"{path} is in the year {value.year}"
        case int() | float():
            if not -MAX_NUMBER < value < MAX_NUMBER:  # also false for what is no number
                yield f"{path} is {str(value)[:40]}, which is no number of this world"
