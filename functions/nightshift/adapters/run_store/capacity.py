"""What instances HyperPod had: an item a change, under ``CAPACITY#<HyperPod cluster>`` and its moment."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional
from nightshift.adapters.run_store.items import stamp
from nightshift.adapters.run_store.reading import moment, readable
from nightshift.core.costs import CapacityChange
from nightshift.steps.ports import Page


class CapacityItems(TableBase):
    """Implements ``steps.ports.CapacityLog``."""

    def capacity_at(self, hyperpod_cluster: str, at: datetime) -> CapacityChange | None:
        until = Key("pk").eq(_pk(hyperpod_cluster)) & Key("sk").lte(stamp(at))
        found = readable(self._query(until, 1, ScanIndexForward=False, ConsistentRead=True), _change)
        return found[0] if found else None

    def capacity_changed(self, hyperpod_cluster: str, change: CapacityChange) -> None:
        item = {"pk": _pk(hyperpod_cluster), "sk": stamp(change.at), "version": 1, "instances": dict(change.instances)}
        try:
            self._table.put_item(Item=item, ConditionExpression="attribute_not_exists(pk)")
        except ClientError as error:
            if not is_conditional(error):
                raise

    def capacity_changes(
        self, hyperpod_cluster: str, after: datetime, before: datetime, limit: int
    ) -> Page[CapacityChange]:
        between = Key("pk").eq(_pk(hyperpod_cluster)) & Key("sk").between(f"{stamp(after)}~", stamp(before))
        answer = self._table.query(KeyConditionExpression=between, Limit=limit, ConsistentRead=True)
        last = answer.get("LastEvaluatedKey")
        return Page(tuple(readable(answer["Items"], _change)), str(last["sk"]) if last else None)


def _pk(hyperpod_cluster: str) -> str:
    return f"CAPACITY#{hyperpod_cluster}"


def _change(item: dict[str, Any]) -> CapacityChange:
    """Raises one of ``UNREADABLE``."""
    if item.get("version", 1) != 1:
        raise ValueError(f"version {item['version']} is not known")
    instances = {str(name): int(count) for name, count in dict(item["instances"]).items()}
    if min(instances.values(), default=0) < 0:
        raise ValueError("a count is below zero")
    return CapacityChange(moment(item["sk"]), instances)
