"""Signals: counted on the run record, each kept as an item of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from boto3.dynamodb.conditions import Key

from nightshift.adapters.run_store.base import TableBase, patiently
from nightshift.adapters.run_store.items import (
    MAX_TRAIL,
    RUN,
    SOON,
    UNREADABLE,
    key_of,
    plain,
    readable,
    reason,
    run_pk,
)
from nightshift.core.run import Signal
from nightshift.steps.ports import Nap

logger = logging.getLogger(__name__)


class SignalItems(TableBase):
    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        answer = patiently(
            self._table.update_item,
            Key={"pk": run_pk(run_id), "sk": RUN},
            UpdateExpression="ADD signal_counter :one",
            ConditionExpression="attribute_exists(pk)",
            ExpressionAttributeValues={":one": 1},
            ReturnValues="ALL_NEW",
        )["Attributes"]
        counter = int(answer["signal_counter"])
        numbered = signal.model_copy(update={"counter": counter})
        self._table.put_item(
            Item={"pk": run_pk(run_id), "sk": f"SIGNAL#{counter:012d}", **plain(numbered.model_dump(mode="json"))}
        )
        return _nap(answer)

    def signals_since(self, run_id: str, counter: int) -> Sequence[Signal]:
        numbers = Key("sk").between(f"SIGNAL#{counter + 1:012d}", "SIGNAL#999999999999")
        found = self._query(Key("pk").eq(run_pk(run_id)) & numbers, MAX_TRAIL, ConsistentRead=True)
        return readable(found, Signal.model_validate)


def _nap(record: dict[str, Any]) -> Nap | None:
    """The signal is counted already: whatever cannot be read here must not make its sender count it again."""
    if not isinstance(record.get("token"), str):
        return None
    try:
        interval = max(1, int(record["interval"]))
        last = datetime.fromisoformat(record["last_look_at"]).astimezone(UTC) if "last_look_at" in record else None
    except UNREADABLE as error:
        logger.error("item %s: the nap cannot be read whole: %s", key_of(record), reason(error))
        return Nap(record["token"], int(SOON.total_seconds()), None)
    return Nap(record["token"], interval, last)
