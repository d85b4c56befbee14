"""What an item looks like: keys, values as DynamoDB takes them, and reading them back.

Nothing in the table is trusted to be readable: somebody may have edited it, or another version of this code written it. What
cannot be read is named by its key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from nightshift.contract.layout import submission_id
from nightshift.core.errors import PermanentError, bounded
from nightshift.core.run import Attempt, Run

logger = logging.getLogger(__name__)
T = TypeVar("T")

RUN, LEASE, MAX_TRAIL = "RUN", "LEASE", 200

OPEN, UNTOLD, LEASES = "LOOK#OPEN", "LOOK#UNTOLD", "LEASES"
"""Partitions of sparse indexes: open runs by the time when something is due, ended ones that nobody was told about, leases."""

SOON = timedelta(seconds=60)
"""How soon something follows a run's start, a step, or the end of a wait."""

UNREADABLE = (ValidationError, ValueError, TypeError, KeyError, ArithmeticError)


def run_pk(run_id: str) -> str:
    return f"RUN#{run_id}"


def pool_pk(pool: str) -> str:
    return f"POOL#{pool}"


def attempt_key(run_id: str, n: int) -> dict[str, str]:
    return {"pk": run_pk(run_id), "sk": f"ATTEMPT#{n:05d}"}


def stamp(moment: datetime) -> str:
    """Sorts as text as moments do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def due(moment: datetime, wait: timedelta = SOON) -> dict[str, str]:
    """Index keys of an open run: something must be written again by then."""
    return {"look_pk": OPEN, "look_sk": stamp(moment + wait)}


def plain(value: Any) -> Any:
    """A JSON value as DynamoDB takes it: floats as decimals, Nones left out."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def stored(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of a run record as attributes; a None, which removes its attribute, is left out."""
    known: dict[str, Any] = plain(to_jsonable_python(changes, inf_nan_mode="null"))
    return known


# reading ------------------------------------------------------------------------------------------------------------


def key_of(item: dict[str, Any]) -> str:
    return f"{item.get('pk')} / {item.get('sk')}"


def reason(error: Exception) -> str:
    """Fields and what is wrong with them, without their values."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
    return bounded(f"{type(error).__name__}: {error}", 200)


def read_run(item: dict[str, Any]) -> Run:
    """Raises PermanentError: nothing may be decided about a run whose record cannot be read."""
    try:
        return Run.model_validate(item)
    except UNREADABLE as error:
        remedy = (
            "Repair the item by hand (point-in-time recovery has it as it was). Until then nothing of this run is "
            "written; what it holds (RayCluster, lease of its pool) stays."
        )
        run_id = str(item.get("pk", "?")).removeprefix("RUN#")
        raise PermanentError(run_id, f"its record {key_of(item)} cannot be read: {reason(error)}", remedy) from error


def readable(items: Iterable[dict[str, Any]], read: Callable[[dict[str, Any]], T]) -> list[T]:
    """What can be read; the rest is logged with its key and left out."""
    found: list[T] = []
    for item in items:
        try:
            found.append(read(item))
        except PermanentError as error:
            logger.error("item %s is left out: %s", key_of(item), error)
        except UNREADABLE as error:
            logger.error("item %s cannot be read and is left out: %s", key_of(item), reason(error))
    return found


def read_attempt(item: dict[str, Any]) -> Attempt:
    """What of it can be read. An attempt cannot be left out: the one before it would then be taken for the current one.
    Its number and its job's name are in its key; without a start it counts as overdue, and is fenced."""
    known = dict(item)
    number = int(str(item["sk"]).removeprefix("ATTEMPT#"))
    known |= {"n": number, "submission_id": submission_id(str(item["pk"]).removeprefix("RUN#"), number)}
    try:
        return Attempt.model_validate(item)
    except UNREADABLE as error:
        logger.error("item %s cannot be read whole: %s", key_of(item), reason(error))
        if not isinstance(error, ValidationError):
            return _without(known, set(known))
        return _without(known, {str(e["loc"][0]) for e in error.errors() if e["loc"]})


def _without(item: dict[str, Any], bad: set[str]) -> Attempt:
    kept = {name: value for name, value in item.items() if name not in bad - {"n", "submission_id"}}
    kept |= {"message": "parts of this attempt's record could not be read: " + ", ".join(sorted(bad))}
    if "started_at" not in kept:
        kept |= {"started_at": datetime.fromtimestamp(0, UTC), "gpus": 0}
    return Attempt.model_validate(kept)
