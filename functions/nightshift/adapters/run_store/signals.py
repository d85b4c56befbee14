"""Signals: counted on the run record, each kept as an item of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from boto3.dynamodb.conditions import Key

from nightshift.adapters.run_store.base import TableBase
from nightshift.adapters.run_store.items import MAX_TRAIL, RUN, plain, run_pk
from nightshift.core.run import Signal
from nightshift.steps.ports import Nap


class SignalItems(TableBase):
    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        answer = self._table.update_item(
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
        if "token" not in answer:
            return None
        last = answer.get("last_look_at")
        return Nap(answer["token"], int(answer["interval"]), datetime.fromisoformat(last) if last else None)

    def signals_since(self, run_id: str, counter: int) -> Sequence[Signal]:
        found = self._table.query(
            KeyConditionExpression=Key("pk").eq(run_pk(run_id))
            & Key("sk").between(f"SIGNAL#{counter + 1:012d}", "SIGNAL#999999999999"),
            Limit=MAX_TRAIL,
            ConsistentRead=True,
        )
        return [Signal.model_validate(i) for i in found["Items"]]
