"""Signals: counted on the run record, each kept as an item of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, must_be_readable, patiently
from nightshift.adapters.run_store.items import MAX_TRAIL, RUN, SOON, plain, run_pk
from nightshift.adapters.run_store.reading import UNREADABLE, key_of, moment, read, readable, reason
from nightshift.core.run import Signal
from nightshift.steps.ports import Nap

logger = logging.getLogger(__name__)


class SignalItems(TableBase):
    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        answer = self._count(run_id)
        counter = int(answer["signal_counter"])
        numbered = signal.model_copy(update={"counter": counter})
        self._table.put_item(
            Item={"pk": run_pk(run_id), "sk": f"SIGNAL#{counter:012d}", **plain(numbered.model_dump(mode="json"))}
        )
        return _nap(answer)

    def _count(self, run_id: str) -> dict[str, Any]:
        try:
            answer = patiently(
                self._table.update_item,
                Key={"pk": run_pk(run_id), "sk": RUN},
                UpdateExpression="ADD signal_counter :one",
                ConditionExpression="attribute_exists(pk)",
                ExpressionAttributeValues={":one": 1},
                ReturnValues="ALL_NEW",
            )
        except ClientError as error:
            must_be_readable(run_id, error)
            raise
        return dict(answer["Attributes"])

    def signals_since(self, run_id: str, counter: int) -> Sequence[Signal]:
        numbers = Key("sk").between(f"SIGNAL#{counter + 1:012d}", "SIGNAL#999999999999")
        found = self._query(Key("pk").eq(run_pk(run_id)) & numbers, MAX_TRAIL, ConsistentRead=True)
        return readable(found, partial(read, Signal))


def _nap(record: dict[str, Any]) -> Nap | None:
    """The signal is counted already: whatever cannot be read here must not make its sender count it again."""
    if not isinstance(record.get("token"), str):
        return None
    try:
        interval = max(1, int(record["interval"]))
        last = moment(record["last_look_at"]) if "last_look_at" in record else None
    except UNREADABLE as error:
        logger.error("item %s: the nap cannot be read whole: %s", key_of(record), reason(error))
        return Nap(record["token"], int(SOON.total_seconds()), None)
    return Nap(record["token"], interval, last)
