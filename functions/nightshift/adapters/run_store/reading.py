"""Reading items back. None is trusted to be readable: somebody may have edited it, or another version of this code written
it. What cannot be read is named by its key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nightshift.adapters.run_store.items import RUN, run_pk
from nightshift.contract.layout import submission_id
from nightshift.core.errors import PermanentError, bounded
from nightshift.core.run import Attempt, Run

logger = logging.getLogger(__name__)
T = TypeVar("T")
D = TypeVar("D", bound=BaseModel)

UNREADABLE = (ValidationError, ValueError, TypeError, KeyError, ArithmeticError)


def key_of(item: dict[str, Any]) -> str:
    return f"{item.get('pk')} / {item.get('sk')}"


def reason(error: Exception) -> str:
    """Fields and what is wrong with them, without their values."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
    return bounded(f"{type(error).__name__}: {error}", 200)


def moment(text: object) -> datetime:
    """A stored moment. Raises ValueError for what is none, or names no zone."""
    return _placed(datetime.fromisoformat(str(text)))


def _placed(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("it names no time zone")
    value.astimezone(UTC)  # overflows at the ends of the calendar
    return value


def _misplaced(document: BaseModel) -> list[str]:
    """Fields that hold a moment with which nobody can count."""
    bad: list[str] = []
    for name, value in document:
        try:
            if isinstance(value, datetime):
                _placed(value)
            elif isinstance(value, BaseModel) and _misplaced(value):
                bad.append(name)
        except UNREADABLE:
            bad.append(name)
    return bad


def read(kind: type[D], item: dict[str, Any]) -> D:
    """Raises one of ``UNREADABLE``."""
    document = kind.model_validate(item, extra="ignore")
    bad = _misplaced(document)
    if bad:
        raise ValueError(f"{', '.join(bad)}: not a moment with a time zone")
    return document


def unreadable_record(run_id: str, error: Exception) -> PermanentError:
    """Nothing may be decided about a run whose record cannot be read."""
    problem = f"its record {run_pk(run_id)} / {RUN} cannot be read: {reason(error)}"
    return PermanentError(
        run_id,
        problem,
        "Repair the item by hand (point-in-time recovery has it as it was). Until then nothing of this run is written, and "
        "what it holds (RayCluster, lease of its pool) stays.",
    )


def read_run(item: dict[str, Any]) -> Run:
    """Raises PermanentError."""
    run_id = str(item.get("pk", "?")).removeprefix("RUN#")
    try:
        run = read(Run, item)
        if run.run_id != run_id:
            raise ValueError("run_id: not the one of its key")
    except UNREADABLE as error:
        raise unreadable_record(run_id, error) from error
    return run


def readable(items: Iterable[dict[str, Any]], reader: Callable[[dict[str, Any]], T]) -> list[T]:
    """What can be read; the rest is logged with its key and left out."""
    found: list[T] = []
    for item in items:
        try:
            found.append(reader(item))
        except PermanentError as error:
            logger.error("item %s is left out: %s", key_of(item), error)
        except UNREADABLE as error:
            logger.error("item %s cannot be read and is left out: %s", key_of(item), reason(error))
    return found


def read_attempt(item: dict[str, Any]) -> Attempt:
    """What of it can be read. An attempt cannot be left out: the one before it would then be taken for the current one.
    Its number and its job's name are in its key; without a start it counts as overdue, and is fenced."""
    number = int(str(item["sk"]).removeprefix("ATTEMPT#"))
    key = {"n": number, "submission_id": submission_id(str(item["pk"]).removeprefix("RUN#"), number)}
    bad: set[str] = set()
    try:
        attempt = Attempt.model_validate({**item, **key}, extra="ignore")
        bad = set(_misplaced(attempt))
    except ValidationError as error:
        bad = {str(e["loc"][0]) for e in error.errors()}
        attempt = _without(item | key, bad)
    misplaced = set(_misplaced(attempt))
    if not bad | misplaced:
        return attempt
    logger.error("item %s: these cannot be read: %s", key_of(item), ", ".join(sorted(bad | misplaced)))
    return _without(item | key, bad | misplaced)


def _without(item: dict[str, Any], bad: set[str]) -> Attempt:
    kept = {name: value for name, value in item.items() if name not in bad}
    kept |= {"message": f"parts of this attempt's record could not be read: {', '.join(sorted(bad))}"}
    if "started_at" not in kept:
        kept |= {"started_at": datetime.fromtimestamp(0, UTC), "gpus": 0}
    if "ended_at" in bad and "ended_at" in item:  # it is over, whenever that was
        kept |= {"ended_at": kept["started_at"]}
    return Attempt.model_validate(kept, extra="ignore")
