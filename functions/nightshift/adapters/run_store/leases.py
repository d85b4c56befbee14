"""A pool's lease and its queue. A lease is taken and given back in one transaction with the run's record."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import FINAL, WRITABLE, TableBase, must_be_refused
from nightshift.adapters.run_store.items import LEASE, RUN, pool_pk, run_pk, stamp, stored
from nightshift.core.errors import StaleExecution
from nightshift.core.run import Run, RunState


class LeaseItems(TableBase):
    def lease_holder(self, pool: str) -> str | None:
        item = self._table.get_item(Key={"pk": pool_pk(pool), "sk": LEASE}, ConsistentRead=True).get("Item")
        return None if item is None else str(item["run_id"])

    def next_in_line(self, pool: str) -> str | None:
        found = self._table.query(IndexName="by_pool", KeyConditionExpression=Key("pool_pk").eq(pool_pk(pool)), Limit=1)
        return str(found["Items"][0]["run_id"]) if found["Items"] else None

    def take_lease(self, run: Run, now: datetime) -> bool:
        lease = {
            "TableName": self._table.name,
            "Item": {"pk": pool_pk(run.pool), "sk": LEASE, "version": 1, "run_id": run.run_id, "since": stamp(now)},
            "ConditionExpression": "attribute_not_exists(pk) OR run_id = :run",
            "ExpressionAttributeValues": {":run": run.run_id},
        }
        record = {
            "TableName": self._table.name,
            "Key": {"pk": run_pk(run.run_id), "sk": RUN},
            "UpdateExpression": "SET #state = :next, leased_at = :now REMOVE pool_pk, pool_sk",
            "ConditionExpression": WRITABLE,
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {
                ":k": run.k,
                ":next": RunState.PROVISIONING.value,
                ":now": stamp(now),
                **FINAL,
            },
        }
        try:
            self._transact([{"Put": lease}, {"Update": record}])
        except ClientError as error:
            must_be_refused(run.run_id, error)
            self.load(run.run_id, run.k)
            return False
        return True

    def finish(self, run: Run, state: RunState, **changes: Any) -> Run:
        """The run's last write: its final state, and the lease given back, in one transaction."""
        items = [{"Update": self._last_write(run, state, stored(changes))}]
        if self.lease_holder(run.pool) == run.run_id:
            given_back = {
                "TableName": self._table.name,
                "Key": {"pk": pool_pk(run.pool), "sk": LEASE},
                "ConditionExpression": "run_id = :run",
                "ExpressionAttributeValues": {":run": run.run_id},
            }
            items.append({"Delete": given_back})
        try:
            self._transact(items)
        except ClientError as error:
            must_be_refused(run.run_id, error)
            raise StaleExecution(run.run_id, run.k, "it could not be ended: its record is final already") from error
        return self.load(run.run_id, run.k)

    def _last_write(self, run: Run, state: RunState, kept: dict[str, Any]) -> dict[str, Any]:
        return {
            "TableName": self._table.name,
            "Key": {"pk": run_pk(run.run_id), "sk": RUN},
            "UpdateExpression": ", ".join(["SET #state = :next", *(f"#{n} = :{n}" for n in kept)])
            + " REMOVE cluster_pk, cluster_sk, pool_pk, pool_sk, look_pk, look_sk, #token",
            "ConditionExpression": WRITABLE,
            "ExpressionAttributeNames": {"#state": "state", "#token": "token", **{f"#{n}": n for n in kept}},
            "ExpressionAttributeValues": {
                ":k": run.k,
                ":next": state.value,
                **FINAL,
                **{f":{n}": v for n, v in kept.items()},
            },
        }
