"""What one release says of itself, and how it reads what another has written: standard input and output are JSON.

Runs under the code of either release, with nothing of the tests beside it: what it imports of ``nightshift`` must be there in
both. Documents are made from their models alone, so a field or a word that comes later is tried without anybody's doing.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nightshift.adapters.run_store.reading import read_attempt, read_run
from nightshift.contract.base import Document
from nightshift.contract.reading import read_document
from nightshift.contract.spec import RunSpec, spec_digest
from nightshift.contract.upgrades import LATER, spec_file
from nightshift.core import errors
from nightshift.core.decision import Verb
from nightshift.core.run import Attempt, Run, RunState
from nightshift.steps import look, requests

MOMENT, DAY, DIGEST = "2026-11-30T03:00:00Z", "2026-11-30", "0" * 64
NAMED: Mapping[str, Any] = {
    "image": f"registry/skyrl@sha256:{DIGEST}",
    "sha256": DIGEST,
    "commit": "0" * 40,
    "submission_id": "a1-a1",
    "model_package": f"arn:aws:sagemaker:us-east-1:123456789012:model-package/{DIGEST}",
}
"""Values of fields that take no other text; by the field's name."""


def main(asked: Mapping[str, Any]) -> dict[str, Any]:
    """``documents`` and ``specs`` are of the other release, to be read; without documents its own are written."""
    written = asked.get("documents", {}).items()
    return {
        "told": told(),
        "written": {} if written else {name: list(versions(kind)) for name, kind in documents().items()},
        "read": {name: [read(name, one) for one in many] for name, many in written if name in documents()},
        "specs": [_spec(one) for one in asked.get("specs", [])],
    }


def told() -> dict[str, Any]:
    """What the state machines meet."""
    names = [one.__name__ for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    answers = {one.value for one in [*Verb, *RunState]} | {look.AGAIN, look.SUCCESSOR, "look", "stale"}
    return {
        "errors": names,
        "decisions": sorted(answers),
        "reply": sorted(requests.Reply.model_fields),
        "parents_version": {look.SUCCESSOR: look.KNOWS_SUCCESSORS},
        "later": list(LATER),
    }


def documents() -> dict[str, type[Document]]:
    """Everything that is stored or sent, by its name; but what the template itself has a schedule hand over."""
    package = importlib.import_module("nightshift.contract")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"nightshift.contract.{module.name}")
    found = {kind.__name__: kind for kind in _below(Document) if kind.__module__.startswith("nightshift.")}
    return {name: kind for name, kind in found.items() if name != "ScheduledStart"}


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def versions(kind: type[Document]) -> Iterator[dict[str, Any]]:
    """The document with nothing but what it must have, with everything, and with each word that one of its fields takes."""
    yield _dumped(kind, {name: _value(name, f.annotation) for name, f in kind.model_fields.items() if f.is_required()})
    whole = {name: _value(name, field.annotation) for name, field in kind.model_fields.items()}
    yield _dumped(kind, whole)
    for name, field in kind.model_fields.items():
        for word in _words(field.annotation):
            yield _dumped(kind, whole | {name: word})


def _dumped(kind: type[Document], raw: dict[str, Any]) -> dict[str, Any]:
    named = {kind.model_fields[name].alias or name: value for name, value in raw.items()}
    dumped: dict[str, Any] = kind.model_validate(named).model_dump(mode="json", by_alias=True)
    return dumped


def _words(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [one.value for one in kind]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [
        word for part in get_args(kind) if get_origin(kind) in (Union, UnionType, Annotated) for word in _words(part)
    ]


def _value(name: str, kind: Any) -> Any:
    """Any value that a field takes; never None, never empty."""
    if name in NAMED and kind is not Any:
        return NAMED[name]
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    words = _words(kind)
    if words:
        return words[0]
    if origin in (Union, UnionType, Annotated):
        return _value(name, parts[0])
    if origin in (list, tuple):
        return [_value(name, parts[0])]
    if origin in (dict, Mapping):
        return {"a": _value(name, parts[1])}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {f.alias or n: _value(n, f.annotation) for n, f in kind.model_fields.items()}
    simple = {bool: True, int: 1, float: 0.5, str: "a1", datetime: MOMENT, date: DAY, Any: "a1", object: "a1"}
    if "sha256" in name:
        return DIGEST
    return simple.get(kind, MOMENT)


READERS: Mapping[str, Callable[[dict[str, Any]], BaseModel]] = {
    "Run": lambda raw: read_run({**raw, "pk": f"RUN#{raw['run_id']}"}),
    "Attempt": lambda raw: _attempt(raw),
    "StageEvent": lambda raw: documents()["StageEvent"].from_json(json.dumps(raw)),
}
"""How the parts of the house read what they find; everything else is an object in the bucket, an event or a payload."""


def _attempt(raw: dict[str, Any]) -> Attempt:
    attempt = read_attempt({**raw, "pk": "RUN#a1", "sk": f"ATTEMPT#{raw['n']:05d}"})
    if "could not be read" in attempt.message:
        raise ValueError(attempt.message)
    return attempt


def read(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    kind = documents()[name]
    try:
        if name in READERS:
            found = READERS[name](raw)
        elif kind.__module__ == requests.__name__:
            found = kind.model_validate(raw)
        else:
            found = read_document(kind, json.dumps(raw)).document
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        return {"refused": f"{type(error).__name__}: {error}"[:600]}
    return {"read": found.model_dump(mode="json", by_alias=True)}


def _spec(raw: Any) -> dict[str, Any]:
    try:
        spec = RunSpec.model_validate(raw)
    except ValidationError as error:
        return {"refused": [".".join(map(str, one["loc"])) for one in error.errors()]}
    return {"digest": spec_digest(spec), "file": from_json(spec_file(spec))}


assert Run and Attempt, "both are documents, and are listed once they are imported"

if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)
