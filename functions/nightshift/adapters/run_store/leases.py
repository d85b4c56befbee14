"""A pool's lease and its queue. A lease is taken and given back in one transaction with the run's record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional, must_be_refused
from nightshift.adapters.run_store.items import LEASE, LEASES, UNTOLD, due, listed, pool_pk, stamp, stored
from nightshift.adapters.run_store.reading import key_of, moment, readable
from nightshift.core.errors import StaleExecution, TransientError
from nightshift.core.reconcile import Lease
from nightshift.core.run import Run, RunState

logger = logging.getLogger(__name__)
MAX_POOLS = 1_000
UNKNOWN_HOLDER = "(unreadable)"
"""In place of a holder whose lease cannot be read: no run's id, so nobody takes the pool until a person has looked."""

TRIES = 3
FREE = "FREE"
"""Of an instance group that nobody needs."""


class LeaseItems(TableBase):
    def lease_holder(self, pool: str) -> str | None:
        item = self._table.get_item(Key={"pk": pool_pk(pool), "sk": LEASE}, ConsistentRead=True).get("Item")
        if item is None:
            return None
        if not isinstance(item.get("run_id"), str):
            logger.error("item %s names no run: repair it, or delete it if no run uses the pool", key_of(item))
            return UNKNOWN_HOLDER
        return str(item["run_id"])

    def next_in_line(self, pool: str) -> str | None:
        found = self._query(Key("pool_pk").eq(pool_pk(pool)), 1, IndexName="by_pool")
        return str(found[0]["pk"]).removeprefix("RUN#") if found else None

    def take_lease(self, run: Run, now: datetime) -> bool:
        held = {"run_id": run.run_id, "since": stamp(now), "pool_pk": LEASES, "pool_sk": run.pool}
        lease = {
            "TableName": self._table.name,
            "Item": {"pk": pool_pk(run.pool), "sk": LEASE, "version": 1, **held},
            "ConditionExpression": "attribute_not_exists(pk) OR run_id = :run",
            "ExpressionAttributeValues": {":run": run.run_id},
        }
        changes = {**stored({"state": RunState.PROVISIONING, "leased_at": now}), **due(now)}
        record = self._record(run, changes, "", {}, removed="pool_pk, pool_sk")
        try:
            self._transact([{"Put": lease}, {"Update": record}])
        except ClientError as error:
            must_be_refused(run.run_id, error)
            self.load(run.run_id, run.k)
            return False
        return True

    def leases(self) -> Sequence[Lease]:
        return readable(self._query(Key("pool_pk").eq(LEASES), MAX_POOLS, IndexName="by_pool"), read_lease)

    def free_since(self, group: str, now: datetime) -> datetime:
        item = {"pk": f"GROUP#{group}", "sk": FREE, "version": 1, "since": stamp(now)}
        try:
            self._table.put_item(Item=item, ConditionExpression="attribute_not_exists(pk)")
        except ClientError as error:
            if not is_conditional(error):
                raise
            key = {"pk": item["pk"], "sk": item["sk"]}
            there = self._table.get_item(Key=key, ConsistentRead=True).get("Item")
            return moment(there["since"]) if there is not None else now
        return now

    def needed_again(self, group: str) -> None:
        self._table.delete_item(Key={"pk": f"GROUP#{group}", "sk": FREE})

    def release_lease(self, lease: Lease) -> bool:
        """An end is never taken back, and a run takes its lease only in a write of its own open record: so what is read
        here still holds when the lease is deleted."""
        holder = self.get(lease.run_id)
        if holder is not None and not holder.state.is_final:
            return False
        try:
            self._table.delete_item(
                Key={"pk": pool_pk(lease.pool), "sk": LEASE},
                ConditionExpression="run_id = :run AND since = :since",
                ExpressionAttributeValues={":run": lease.run_id, ":since": stamp(lease.since)},
            )
        except ClientError as error:
            if is_conditional(error):
                return False
            raise
        return True

    # the end ----------------------------------------------------------------------------------------------------

    def finish(self, run: Run, state: RunState, **changes: Any) -> Run:
        """The run's last write: its final state, and the lease given back, in one transaction."""
        ended = {"look_pk": UNTOLD, "look_sk": stamp(changes.get("ended_at") or run.created_at)}
        ended |= listed(run.run_id, run.created_at, is_over=True)
        kept = {**stored(changes), **ended, "state": state.value}
        for _ in range(TRIES):
            try:
                self._transact(self._end(run, kept))
            except ClientError as error:
                must_be_refused(run.run_id, error)
                if self.load(run.run_id, run.k).state.is_final:
                    why = "it could not be ended: its record is final already"
                    raise StaleExecution(run.run_id, run.k, why) from error
            else:
                return self.load(run.run_id, run.k)
        raise TransientError(run.run_id, f"the lease of pool {run.pool} changed while the run was ended")

    def _end(self, run: Run, kept: dict[str, Any]) -> list[dict[str, Any]]:
        """The lease is looked up between two reads of ``leased_at``, the second of them the condition: a late look that
        takes the lease meanwhile would otherwise leave it behind for ever."""
        there, removed = self.load(run.run_id, run.k), "cluster_pk, cluster_sk, pool_pk, pool_sk, #token"
        if self.lease_holder(run.pool) != run.run_id:
            same = "attribute_not_exists(leased_at)" if there.leased_at is None else "leased_at = :before"
            before = {} if there.leased_at is None else {":before": stored({"leased_at": there.leased_at})["leased_at"]}
            return [{"Update": self._record(run, kept, same, before, removed)}]
        given_back = {
            "TableName": self._table.name,
            "Key": {"pk": pool_pk(run.pool), "sk": LEASE},
            "ConditionExpression": "run_id = :run",
            "ExpressionAttributeValues": {":run": run.run_id},
        }
        return [{"Update": self._record(run, kept, "", {}, removed)}, {"Delete": given_back}]


def read_lease(item: dict[str, Any]) -> Lease:
    """Raises one of ``UNREADABLE``."""
    if item.get("version", 1) != 1 or not isinstance(item.get("run_id"), str):
        raise ValueError("it is of another version, or names no run")
    return Lease(str(item["pool_sk"]), item["run_id"], moment(item["since"]))
