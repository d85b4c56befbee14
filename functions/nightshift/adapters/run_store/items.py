"""What an item looks like: keys, values as DynamoDB takes them, and reading them back."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from nightshift.core.run import Run

RUN, LEASE, MAX_TRAIL = "RUN", "LEASE", 200


def run_pk(run_id: str) -> str:
    return f"RUN#{run_id}"


def pool_pk(pool: str) -> str:
    return f"POOL#{pool}"


def stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


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
    known = plain(Run.model_construct(**changes).model_dump(mode="json", include=set(changes), warnings=False))
    known |= {name: _scalar(value) for name, value in changes.items() if name not in Run.model_fields}
    return {name: value for name, value in known.items() if value is not None}


def _scalar(value: Any) -> Any:
    return stamp(value) if isinstance(value, datetime) else value


def read_run(item: dict[str, Any]) -> Run:
    return Run.model_validate(item)
