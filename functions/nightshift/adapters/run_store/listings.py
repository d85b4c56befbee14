"""Lists for people. Each call is one query of one page of an index; nothing is ever scanned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from boto3.dynamodb.conditions import ConditionBase, Key

from nightshift.adapters.run_store.base import PAUSES, TableBase
from nightshift.adapters.run_store.items import LEASE, LISTED_OPEN, LISTED_OVER, RUN, pool_pk, run_pk
from nightshift.adapters.run_store.leases import read_lease
from nightshift.adapters.run_store.reading import read, read_run, readable
from nightshift.adapters.run_store.trail import read_line
from nightshift.contract.api import AuditLine, RunLine
from nightshift.core.errors import TransientError
from nightshift.core.reconcile import Lease
from nightshift.core.run import Run
from nightshift.steps.ports import Page

AUDIT = "AUDIT#"
T = TypeVar("T")


class ListItems(TableBase):
    """Implements ``steps.ports.Listings``. A position is an index's sort key, which ends in the run's id."""

    def runs_of(self, owner: str, after: str | None, limit: int) -> Page[RunLine]:
        return self._runs("by_owner", "owner", f"OWNER#{owner}", after, limit)

    def runs_by_age(self, over: bool, after: str | None, limit: int) -> Page[RunLine]:
        return self._runs("by_created", "list", LISTED_OVER if over else LISTED_OPEN, after, limit)

    def _runs(self, index: str, name: str, partition: str, after: str | None, limit: int) -> Page[RunLine]:
        how = {"IndexName": index, "ScanIndexForward": False, **_after(after, name, partition)}
        return self._page(Key(f"{name}_pk").eq(partition), how, limit, f"{name}_sk", _run_line)

    def records(self, run_ids: Sequence[str]) -> Sequence[Run]:
        asked: dict[str, Any] = {self._table.name: {"Keys": [{"pk": run_pk(one), "sk": RUN} for one in run_ids]}}
        found: list[dict[str, Any]] = []
        for pause in (0.0, *PAUSES) if run_ids else ():
            time.sleep(pause)
            answer = self._table.meta.client.batch_get_item(RequestItems=asked)
            found += answer["Responses"].get(self._table.name, [])
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                break
        if asked and run_ids:
            raise TransientError(run_ids[0], "DynamoDB did not give its record and others of the same page")
        return readable(found, read_run)

    def line_of(self, pool: str, after: str | None, limit: int) -> Page[Run]:
        how = {"IndexName": "by_pool", **_after(after, "pool", pool_pk(pool))}
        return self._page(Key("pool_pk").eq(pool_pk(pool)), how, limit, "pool_sk", read_run)

    def lease_of(self, pool: str) -> Lease | None:
        item = self._table.get_item(Key={"pk": pool_pk(pool), "sk": LEASE}, ConsistentRead=True).get("Item")
        found = readable([item] if item is not None else [], read_lease)
        return found[0] if found else None

    def events(self, run_id: str, newest_first: bool, after: str | None, limit: int) -> Page[AuditLine]:
        key: dict[str, Any] = {"ScanIndexForward": not newest_first, "ConsistentRead": True}
        if after is not None:
            key["ExclusiveStartKey"] = {"pk": run_pk(run_id), "sk": f"{AUDIT}{after}"}
        found = self._page(Key("pk").eq(run_pk(run_id)) & Key("sk").begins_with(AUDIT), key, limit, "sk", read_line)
        return Page(found.items, found.after.removeprefix(AUDIT) if found.after is not None else None)

    def _page(
        self,
        condition: ConditionBase,
        how: dict[str, Any],
        limit: int,
        position: str,
        reader: Callable[[dict[str, Any]], T],
    ) -> Page[T]:
        answer = self._table.query(KeyConditionExpression=condition, Limit=limit, **how)
        last = answer.get("LastEvaluatedKey")
        return Page(tuple(readable(answer["Items"], reader)), str(last[position]) if last else None)


def _after(position: str | None, name: str, partition: str) -> dict[str, Any]:
    if position is None:
        return {}
    run_id = position.rsplit("#", 1)[-1]
    return {
        "ExclusiveStartKey": {"pk": run_pk(run_id), "sk": RUN, f"{name}_pk": partition, f"{name}_sk": position},
    }


def _run_line(item: dict[str, Any]) -> RunLine:
    return read(RunLine, {name: value for name, value in item.items() if name in RunLine.model_fields})
