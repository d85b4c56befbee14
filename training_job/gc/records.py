"""What is known of runs: their records in the table, which alone say whether one is over, and their specs in the bucket."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from nightshift.contract import RunKeys
from nightshift.contract.reading import MAX_DOCUMENT
from nightshift.contract.retention import Retention
from training_job.errors import StorageUnreachable
from training_job.gc.rule import RunFacts
from training_job.gc.survey import is_run_id
from training_job.store import ObjectStore

READ: Final = ("pk", "sk", "state", "ended_at", "verified_step")
"""Attributes of a run's record that are asked for: the role may read no others."""

_BATCH: Final = 100
_PAUSES: Final = (0.0, 0.1, 0.3, 1.0, 3.0)
_WHEN: Final = TypeAdapter(datetime)
_OBJECT: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any])
UNREADABLE: Final = "not readable"
"""In place of the state of a record that cannot be read: it is a run, and nobody knows that it is over."""


@dataclass(frozen=True)
class Records:
    """The table, by a boto3 DynamoDB client."""

    client: Any
    table: str

    def facts(self, run_ids: Iterable[str]) -> dict[str, RunFacts]:
        """Of each run, as its record is now; one without a record has no state. Raises StorageUnreachable."""
        wanted = sorted(set(run_ids))
        found = {run_id: RunFacts(run_id) for run_id in wanted}
        for begin in range(0, len(wanted), _BATCH):
            for item in self._read(wanted[begin : begin + _BATCH]):
                facts = _facts(item)
                found[facts.run_id] = facts
        return found

    def _read(self, run_ids: Sequence[str]) -> list[Mapping[str, Any]]:
        keys = [{"pk": {"S": f"RUN#{one}"}, "sk": {"S": "RUN"}} for one in run_ids]
        names = {f"#{one}": one for one in READ}
        how = {"ConsistentRead": True, "ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
        asked: dict[str, Any] = {self.table: {"Keys": keys, **how}}
        items: list[Mapping[str, Any]] = []
        for pause in _PAUSES:
            time.sleep(pause)
            answer = self.client.batch_get_item(RequestItems=asked)
            items += answer["Responses"].get(self.table, [])
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                return items
        raise StorageUnreachable(f"the table {self.table} does not give all records: ask again later")


def _facts(item: Mapping[str, Any]) -> RunFacts:
    """Whatever of a record cannot be read is not known, and a run of which that is so is kept."""
    run_id = str(item["pk"]["S"]).removeprefix("RUN#")
    try:
        ended = _WHEN.validate_python(item["ended_at"]["S"]) if "ended_at" in item else None
        if ended is not None and ended.tzinfo is None:
            raise ValueError("no time zone")
        return RunFacts(run_id, str(item["state"]["S"]), ended, int(item.get("verified_step", {"N": "0"})["N"]))
    except (KeyError, TypeError, ValueError):
        return RunFacts(run_id, UNREADABLE)


def run_ids_of(client: Any, bucket: str) -> set[str]:
    """Every run of which something is in the bucket, by a boto3 S3 client."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="runs/", Delimiter="/")
    found = {one["Prefix"].split("/")[1] for page in pages for one in page.get("CommonPrefixes", [])}
    return {name for name in found if is_run_id(name)}


def with_spec(facts: RunFacts, store: ObjectStore) -> RunFacts:
    """With what its spec says of its parent and its base model, and of one that is over how long its things stay. Read field by
    field, and not as a RunSpec: a newer one has to be understood too. Raises what S3 answers, but for what is missing."""
    try:
        body = store.get_small(RunKeys(facts.run_id).spec, MAX_DOCUMENT)
        if body is None:
            return replace(facts, unread="there is none in the bucket")
        raw: dict[str, Any] = _OBJECT.validate_json(body)
        retention = Retention.model_validate(raw.get("retention") or {}) if facts.over else Retention()
        return replace(facts, parent=_parent(raw), model=str(raw["model"]["source"]), retention=retention)
    except ValidationError as error:
        return replace(facts, unread=f"it cannot be read ({str(error.errors()[0]['msg'])[:200]})")
    except (ValueError, KeyError, TypeError) as error:
        return replace(facts, unread=f"{type(error).__name__}: {str(error)[:200]}")


def _parent(raw: Mapping[str, Any]) -> str | None:
    parent = raw.get("parent")
    if parent is None:
        return None
    name = str(parent).partition("@")[0]
    if not isinstance(parent, str) or not is_run_id(name):
        raise ValueError("its parent is no run's name")
    return name
