"""What an item looks like: keys, and values as DynamoDB takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pydantic_core import to_jsonable_python

RUN, LEASE, MAX_TRAIL = "RUN", "LEASE", 200

OPEN, UNTOLD, LEASES = "LOOK#OPEN", "LOOK#UNTOLD", "LEASES"
"""Partitions of sparse indexes: open runs by the time when something is due, ended ones that nobody was told about, leases."""

LISTED_OPEN, LISTED_OVER = "RUNS#OPEN", "RUNS#OVER"
"""Partitions of the index that lists runs for people: by the time when they were asked for."""

SOON = timedelta(seconds=60)
"""How soon something follows a run's start, a step, or the end of a wait."""


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


def listed(run_id: str, created_at: datetime, is_over: bool = False) -> dict[str, str]:
    """Index keys of a run in the list of all runs."""
    return {"list_pk": LISTED_OVER if is_over else LISTED_OPEN, "list_sk": f"{stamp(created_at)}#{run_id}"}


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
