"""Run records: created once, then written under their k, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional
from nightshift.adapters.run_store.items import RUN, plain, pool_pk, read_run, run_pk, stamp
from nightshift.core.errors import StaleExecution
from nightshift.core.run import Run, RunState


class RunRecords(TableBase):
    def create(self, run: Run) -> tuple[Run, bool]:
        item = {"pk": run_pk(run.run_id), "sk": RUN, **plain(run.model_dump(mode="json"))}
        item |= {"cluster_pk": f"HYPERPOD#{run.hyperpod_cluster}", "cluster_sk": run.run_id}
        item |= {"owner_pk": f"OWNER#{run.owner}", "owner_sk": f"{stamp(run.created_at)}#{run.run_id}"}
        try:
            self._table.put_item(Item=item, ConditionExpression="attribute_not_exists(pk)")
        except ClientError as error:
            if not is_conditional(error):
                raise
            there = self.get(run.run_id)
            assert there is not None, "a run record is never deleted"
            return there, False
        return run, True

    def update(self, run: Run, look_seq: int | None = None, **changes: Any) -> Run:
        if look_seq is None:
            return self._write(run.run_id, run.k, changes)
        return self._write(run.run_id, run.k, changes, condition="look_seq = :look", values={":look": look_seq})

    def enqueue(self, run: Run, **changes: Any) -> Run:
        place = {"pool_pk": pool_pk(run.pool), "pool_sk": f"{stamp(run.created_at)}#{run.run_id}"}
        return self._write(run.run_id, run.k, {**changes, **place, "state": RunState.QUEUED})

    def begin_look(self, run_id: str, k: int, now: datetime) -> Run:
        return self._write(
            run_id, k, {"token": None, "last_look_at": now, "look_sk": None, "look_pk": None}, count="look_seq"
        )

    def nap(self, run: Run, token: str, interval: int, now: datetime, counter: int, look_seq: int) -> bool:
        changes = {
            "token": token,
            "interval": interval,
            "seen_counter": counter,
            "look_pk": f"STATE#{run.state}",
            "look_sk": f"{now.timestamp() + interval:.3f}",
        }
        try:
            self._write(
                run.run_id,
                run.k,
                changes,
                condition="signal_counter = :seen AND look_seq = :look",
                values={":seen": counter, ":look": look_seq},
            )
        except StaleExecution:
            self.load(run.run_id, run.k)
            return False
        return True

    def active_on(self, hyperpod_cluster: str) -> Sequence[Run]:
        condition = Key("cluster_pk").eq(f"HYPERPOD#{hyperpod_cluster}")
        found = self._table.query(IndexName="by_cluster", KeyConditionExpression=condition)
        runs = [read_run(i) for i in found["Items"]]
        return [r for r in runs if not r.state.is_final]
