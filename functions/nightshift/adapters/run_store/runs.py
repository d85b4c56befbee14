"""Run records: created once, then written under their k, look by look.

Every write keeps an open run in the index by the time when something is due, so it is found there whatever died."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional, must_be_refused
from nightshift.adapters.run_store.items import (
    OPEN,
    RUN,
    UNTOLD,
    attempt_key,
    due,
    listed,
    plain,
    pool_pk,
    run_pk,
    stamp,
    stored,
)
from nightshift.adapters.run_store.reading import moment, read_run, readable
from nightshift.contract.spec import Priority
from nightshift.core.errors import StaleExecution, TransientError
from nightshift.core.reconcile import OpenRun
from nightshift.core.reopen import REOPENABLE
from nightshift.core.run import Run, RunState

MAX_LISTED, TRIES = 1_000, 3


class RunRecords(TableBase):
    def create(self, run: Run) -> tuple[Run, bool]:
        item = {"pk": run_pk(run.run_id), "sk": RUN, **plain(run.model_dump(mode="json")), **due(run.created_at)}
        item |= listed(run.run_id, run.created_at)
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
        if changes.get("waiting_since") is not None:  # a step is done, or a wait begins
            changes |= due(changes["waiting_since"])
        if changes.get("state", RunState.QUEUED) is not RunState.QUEUED:  # it does not wait in line any more
            changes |= {"pool_pk": None, "pool_sk": None}
        if look_seq is None:
            return self._write(run.run_id, run.k, changes)
        return self._write(run.run_id, run.k, changes, condition="look_seq = :look", values={":look": look_seq})

    def enqueue(self, run: Run, **changes: Any) -> Run:
        rank = 0 if run.priority is Priority.URGENT else 1
        place = {
            "pool_pk": pool_pk(run.pool),
            "pool_sk": f"{rank}#{stamp(run.reopened_at or run.created_at)}#{run.run_id}",
        }
        return self.update(run, **{**changes, **place, "state": RunState.QUEUED})

    def succeed(self, run: Run) -> Run:
        """The current attempt changes hands with the run: an orphan of k would write it otherwise."""
        for _ in range(TRIES):
            there = self.load(run.run_id, run.k)
            try:
                self._transact(self._succession(there))
            except ClientError as error:
                must_be_refused(run.run_id, error)
                if self.load(run.run_id, run.k).state.is_final:
                    raise StaleExecution(run.run_id, run.k, "the run is over and has no successor") from error
            else:
                return self.load(run.run_id, run.k + 1)
        raise TransientError(run.run_id, "its shifts and attempts went on while its successor was made")

    def _succession(self, there: Run) -> list[dict[str, Any]]:
        changes = {"k": there.k + 1, "history_base": there.shift_seq}
        same, values = (
            "shift_seq = :shift AND attempt = :attempt",
            {":shift": there.shift_seq, ":attempt": there.attempt},
        )
        record = self._record(there, changes, same, values, removed="#token")
        if there.attempt == 0:
            return [{"Update": record}]
        return [{"Update": record}, self._handed_on(there)]

    def _handed_on(self, run: Run) -> dict[str, Any]:
        """The current attempt's item names the next k."""
        handed_on = {
            "TableName": self._table.name,
            "Key": attempt_key(run.run_id, run.attempt),
            "UpdateExpression": "SET k = :next",
            "ConditionExpression": "attribute_exists(pk)",
            "ExpressionAttributeValues": {":next": run.k + 1},
        }
        return {"Update": handed_on}

    def reopen(self, run: Run, **changes: Any) -> Run | None:
        """Everything that ``finish`` took away is there again, in one transaction with the next k."""
        opened = {**due(changes["reopened_at"]), **listed(run.run_id, run.created_at), "k": run.k + 1}
        opened |= {"cluster_pk": f"HYPERPOD#{run.hyperpod_cluster}", "cluster_sk": run.run_id}
        kept = {**stored(changes), **opened}
        removed = [name for name in changes if name not in kept]
        states = {f":state{n}": state.value for n, state in enumerate(sorted(REOPENABLE))}
        record = {
            "TableName": self._table.name,
            "Key": {"pk": run_pk(run.run_id), "sk": RUN},
            "UpdateExpression": f"SET {', '.join(f'#{n} = :{n}' for n in kept)} "
            f"REMOVE {', '.join(f'#{n}' for n in removed)}",
            # Listed nowhere: its last message was sent, so the execution before has nothing left to do.
            "ConditionExpression": f"#k = :before AND #state IN ({', '.join(states)}) AND attribute_not_exists(look_pk)",
            "ExpressionAttributeNames": {f"#{n}": n for n in {*kept, *removed}},
            "ExpressionAttributeValues": {":before": run.k, **states, **{f":{n}": v for n, v in kept.items()}},
        }
        try:
            self._transact([{"Update": record}, *([self._handed_on(run)] if run.attempt else [])])
        except ClientError as error:
            must_be_refused(run.run_id, error)
            there = self.load(run.run_id, run.k)
            if there.state not in REOPENABLE:
                raise StaleExecution(run.run_id, run.k, f"the run is {there.state}") from error
            return None
        return self.load(run.run_id, run.k + 1)

    # looks ------------------------------------------------------------------------------------------------------

    def begin_look(self, run_id: str, k: int, now: datetime, interval: int = 60, entry: str = "") -> Run:
        changes: dict[str, Any] = {"token": None, "last_look_at": now, "look_seq": 1}
        changes |= due(now, timedelta(seconds=interval))
        if not entry:
            return self._write(run_id, k, changes)
        condition = "attribute_not_exists(look_entry) OR look_entry <= :entry"
        return self._write(run_id, k, {**changes, "look_entry": entry}, condition, {":entry": entry})

    def nap(self, run: Run, token: str, interval: int, now: datetime, counter: int, look_seq: int) -> bool:
        changes = {"token": token, "interval": interval, "seen_counter": counter}
        try:
            self._write(
                run.run_id,
                run.k,
                changes | due(now, timedelta(seconds=interval)),
                condition="signal_counter = :seen AND look_seq = :look",
                values={":seen": counter, ":look": look_seq},
            )
        except StaleExecution:
            self.load(run.run_id, run.k)
            return False
        return True

    # listings ---------------------------------------------------------------------------------------------------

    def active_on(self, hyperpod_cluster: str) -> Sequence[Run]:
        found = self._query(Key("cluster_pk").eq(f"HYPERPOD#{hyperpod_cluster}"), MAX_LISTED, IndexName="by_cluster")
        return [run for run in readable(found, read_run) if not run.state.is_final]

    def open_runs(self, limit: int) -> Sequence[OpenRun]:
        found = self._query(Key("look_pk").eq(OPEN), min(limit, MAX_LISTED), IndexName="by_next_look")
        return [listed for listed in readable(found, _open_run) if not listed.run.state.is_final]

    def untold(self, limit: int) -> Sequence[str]:
        found = self._query(Key("look_pk").eq(UNTOLD), min(limit, MAX_LISTED), IndexName="by_next_look")
        return [str(item["pk"]).removeprefix("RUN#") for item in found]

    def told(self, run_id: str) -> None:
        try:
            self._table.update_item(
                Key={"pk": run_pk(run_id), "sk": RUN},
                UpdateExpression="REMOVE look_pk, look_sk",
                ConditionExpression="look_pk = :untold",
                ExpressionAttributeValues={":untold": UNTOLD},
            )
        except ClientError as error:
            if not is_conditional(error):
                raise


def _open_run(item: dict[str, Any]) -> OpenRun:
    return OpenRun(read_run(item), moment(item["look_sk"]))
