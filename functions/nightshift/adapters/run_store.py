"""DynamoDB: one table, one item a fact.

========================  ==========================  ====================================================
pk                        sk                          item
========================  ==========================  ====================================================
``RUN#<run_id>``          ``RUN``                     the run record, with token and index keys beside it
``RUN#<run_id>``          ``ATTEMPT#<0000n>``         one attempt
``RUN#<run_id>``          ``SIGNAL#<counter>``        one signal
``RUN#<run_id>``          ``AUDIT#<time>#<random>``   one line of the audit trail
``RUN#<run_id>``          ``REJECTED#<digest>``       a refused request that named this run
``POOL#<pool>``           ``LEASE``                   who holds the pool
========================  ==========================  ====================================================
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.contract.api import AuditLine
from nightshift.contract.events import FieldError
from nightshift.core.causes import EndCause
from nightshift.core.errors import StaleExecution, TransientError
from nightshift.core.run import FINAL_STATES, Attempt, Run, RunState, Signal
from nightshift.steps.ports import Nap, Rejection

RUN, MAX_TRAIL = "RUN", 200
_PLACEHOLDER = {f":final{i}": state.value for i, state in enumerate(sorted(FINAL_STATES))}
_WRITABLE = f"k = :k AND NOT #state IN ({', '.join(_PLACEHOLDER)})"


def _pk(run_id: str) -> str:
    return f"RUN#{run_id}"


def _plain(value: Any) -> Any:
    """A JSON value as DynamoDB takes it: floats as decimals, Nones left out."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _stored(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes of a run record as attributes; a None, which removes its attribute, is left out."""
    plain = _plain(Run.model_construct(**changes).model_dump(mode="json", include=set(changes), warnings=False))
    plain |= {name: _scalar(value) for name, value in changes.items() if name not in Run.model_fields}
    return {name: value for name, value in plain.items() if value is not None}


def _run(item: dict[str, Any]) -> Run:
    return Run.model_validate(item)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


class DynamoRunStore:
    """``table`` is a boto3 DynamoDB Table; its client is used for transactions."""

    def __init__(self, table: Any) -> None:
        self._table = table

    # runs -------------------------------------------------------------------------------------------------------

    def create(self, run: Run) -> tuple[Run, bool]:
        item = {"pk": _pk(run.run_id), "sk": RUN, **_plain(run.model_dump(mode="json"))}
        item |= {"cluster_pk": f"HYPERPOD#{run.hyperpod_cluster}", "cluster_sk": run.run_id}
        item |= {"owner_pk": f"OWNER#{run.owner}", "owner_sk": f"{_stamp(run.created_at)}#{run.run_id}"}
        try:
            self._table.put_item(Item=item, ConditionExpression="attribute_not_exists(pk)")
        except ClientError as error:
            if not _is_conditional(error):
                raise
            there = self.get(run.run_id)
            assert there is not None, "a run record is never deleted"
            return there, False
        return run, True

    def get(self, run_id: str) -> Run | None:
        item = self._table.get_item(Key={"pk": _pk(run_id), "sk": RUN}, ConsistentRead=True).get("Item")
        return None if item is None else _run(item)

    def load(self, run_id: str, k: int) -> Run:
        run = self.get(run_id)
        if run is None:
            raise StaleExecution(run_id, k, "the run has no record")
        if run.k != k:
            raise StaleExecution(run_id, k, f"the record holds r{run.k}")
        return run

    def update(self, run: Run, look_seq: int | None = None, **changes: Any) -> Run:
        if look_seq is None:
            return self._write(run.run_id, run.k, changes)
        return self._write(run.run_id, run.k, changes, condition="look_seq = :look", values={":look": look_seq})

    def enqueue(self, run: Run, **changes: Any) -> Run:
        place = {"pool_pk": f"POOL#{run.pool}", "pool_sk": f"{_stamp(run.created_at)}#{run.run_id}"}
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

    def _write(
        self,
        run_id: str,
        k: int,
        changes: dict[str, Any],
        count: str | None = None,
        condition: str | None = None,
        values: dict[str, Any] | None = None,
    ) -> Run:
        kept = _stored(changes)
        removed = [name for name in changes if name not in kept]
        expression = "SET " + ", ".join(f"#{n} = :{n}" for n in kept) if kept else ""
        if count:
            expression += f" ADD #{count} :one"
        if removed:
            expression += " REMOVE " + ", ".join(f"#{n}" for n in removed)
        try:
            answer = self._table.update_item(
                Key={"pk": _pk(run_id), "sk": RUN},
                UpdateExpression=expression.strip(),
                ConditionExpression=_WRITABLE + (f" AND {condition}" if condition else ""),
                ExpressionAttributeNames={f"#{n}": n for n in {*kept, *removed, "state", *([count] if count else [])}},
                ExpressionAttributeValues={
                    ":k": k,
                    **_PLACEHOLDER,
                    **{f":{n}": v for n, v in kept.items()},
                    **({":one": 1} if count else {}),
                    **(values or {}),
                },
                ReturnValues="ALL_NEW",
            )
        except ClientError as error:
            if _is_conditional(error):
                raise StaleExecution(
                    run_id, k, "its record was written by somebody else, or the run is over"
                ) from error
            raise
        return _run(answer["Attributes"])

    # signals ----------------------------------------------------------------------------------------------------

    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        answer = self._table.update_item(
            Key={"pk": _pk(run_id), "sk": RUN},
            UpdateExpression="ADD signal_counter :one",
            ConditionExpression="attribute_exists(pk)",
            ExpressionAttributeValues={":one": 1},
            ReturnValues="ALL_NEW",
        )["Attributes"]
        counter = int(answer["signal_counter"])
        numbered = signal.model_copy(update={"counter": counter})
        self._table.put_item(
            Item={"pk": _pk(run_id), "sk": f"SIGNAL#{counter:012d}", **_plain(numbered.model_dump(mode="json"))}
        )
        if "token" not in answer:
            return None
        last = answer.get("last_look_at")
        return Nap(answer["token"], int(answer["interval"]), datetime.fromisoformat(last) if last else None)

    def signals_since(self, run_id: str, counter: int) -> Sequence[Signal]:
        found = self._table.query(
            KeyConditionExpression=Key("pk").eq(_pk(run_id))
            & Key("sk").between(f"SIGNAL#{counter + 1:012d}", "SIGNAL#999999999999"),
            Limit=MAX_TRAIL,
            ConsistentRead=True,
        )
        return [Signal.model_validate(i) for i in found["Items"]]

    # attempts ---------------------------------------------------------------------------------------------------

    def claim_attempt(self, run: Run, attempt: Attempt) -> Run | None:
        client = self._table.meta.client
        try:
            client.transact_write_items(
                TransactItems=[
                    {
                        "Update": {
                            "TableName": self._table.name,
                            "Key": {"pk": _pk(run.run_id), "sk": RUN},
                            "UpdateExpression": "SET attempt = :n",
                            "ConditionExpression": f"{_WRITABLE} AND attempt = :before",
                            "ExpressionAttributeNames": {"#state": "state"},
                            "ExpressionAttributeValues": {
                                ":k": run.k,
                                ":n": attempt.n,
                                ":before": attempt.n - 1,
                                **_PLACEHOLDER,
                            },
                        }
                    },
                    {
                        "Put": {
                            "TableName": self._table.name,
                            "Item": self._attempt_item(run, attempt),
                            "ConditionExpression": "attribute_not_exists(pk)",
                        }
                    },
                ]
            )
        except ClientError as error:
            _must_be_refused(run.run_id, error)
            if self.load(run.run_id, run.k).attempt >= attempt.n:
                return None
            raise StaleExecution(run.run_id, run.k, "an attempt could not be claimed: the run is over") from error
        return self.load(run.run_id, run.k)

    def save_attempt(self, run: Run, attempt: Attempt) -> bool:
        try:
            self._table.put_item(
                Item=self._attempt_item(run, attempt), ConditionExpression="attribute_not_exists(ended_at)"
            )
        except ClientError as error:
            if _is_conditional(error):
                return False
            raise
        return True

    def correct_cause(self, run: Run, attempt: int, wrong: EndCause, right: EndCause) -> None:
        try:
            self._table.update_item(
                Key={"pk": _pk(run.run_id), "sk": f"ATTEMPT#{attempt:05d}"},
                UpdateExpression="SET end_cause = :right",
                ConditionExpression="end_cause = :wrong",
                ExpressionAttributeValues={":wrong": wrong.value, ":right": right.value},
            )
        except ClientError as error:
            if not _is_conditional(error):
                raise

    @staticmethod
    def _attempt_item(run: Run, attempt: Attempt) -> dict[str, Any]:
        return {
            "pk": _pk(run.run_id),
            "sk": f"ATTEMPT#{attempt.n:05d}",
            **_plain(attempt.model_dump(mode="json")),
        }

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        return [Attempt.model_validate(i) for i in self._all(run_id, "ATTEMPT#")]

    # audit and refusals -----------------------------------------------------------------------------------------

    def audit(self, run_id: str, line: AuditLine) -> None:
        sk = f"AUDIT#{_stamp(line.at)}#{uuid.uuid4().hex[:8]}"
        self._table.put_item(Item={"pk": _pk(run_id), "sk": sk, "version": 1, **_plain(line.model_dump(mode="json"))})

    def audit_trail(self, run_id: str, limit: int = MAX_TRAIL) -> Sequence[AuditLine]:
        found = self._table.query(
            KeyConditionExpression=Key("pk").eq(_pk(run_id)) & Key("sk").begins_with("AUDIT#"),
            Limit=min(limit, MAX_TRAIL),
            ScanIndexForward=False,
            ConsistentRead=True,
        )
        return [
            AuditLine.model_validate({n: v for n, v in i.items() if n in AuditLine.model_fields})
            for i in reversed(found["Items"])
        ]

    def reject(self, rejection: Rejection) -> bool:
        try:
            self._table.put_item(
                Item={
                    "pk": _pk(rejection.run_id),
                    "sk": f"REJECTED#{rejection.digest}",
                    "version": 1,
                    "owner": rejection.owner,
                    "state": RunState.REJECTED.value,
                    "at": _stamp(rejection.at),
                    "errors": [e.model_dump(mode="json") for e in rejection.errors],
                },
                ConditionExpression="attribute_not_exists(pk)",
            )
        except ClientError as error:
            if _is_conditional(error):
                return False
            raise
        return True

    def rejections(self, run_id: str) -> Sequence[Rejection]:
        return [
            Rejection(
                digest=str(i["sk"]).removeprefix("REJECTED#"),
                run_id=run_id,
                owner=i["owner"],
                errors=[FieldError.model_validate(e) for e in i["errors"]],
                at=datetime.fromisoformat(i["at"]),
            )
            for i in self._all(run_id, "REJECTED#")
        ]

    def _all(self, run_id: str, prefix: str) -> list[dict[str, Any]]:
        condition = Key("pk").eq(_pk(run_id)) & Key("sk").begins_with(prefix)
        items: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            found = self._table.query(KeyConditionExpression=condition, ConsistentRead=True, **page)
            items += found["Items"]
            if "LastEvaluatedKey" not in found:
                return items
            page = {"ExclusiveStartKey": found["LastEvaluatedKey"]}

    # leases -----------------------------------------------------------------------------------------------------

    def lease_holder(self, pool: str) -> str | None:
        item = self._table.get_item(Key={"pk": f"POOL#{pool}", "sk": "LEASE"}, ConsistentRead=True).get("Item")
        return None if item is None else str(item["run_id"])

    def next_in_line(self, pool: str) -> str | None:
        found = self._table.query(
            IndexName="by_pool", KeyConditionExpression=Key("pool_pk").eq(f"POOL#{pool}"), Limit=1
        )
        return str(found["Items"][0]["run_id"]) if found["Items"] else None

    def take_lease(self, run: Run, now: datetime) -> bool:
        lease = {"pk": f"POOL#{run.pool}", "sk": "LEASE", "version": 1, "run_id": run.run_id, "since": _stamp(now)}
        try:
            self._table.meta.client.transact_write_items(
                TransactItems=[
                    {
                        "Put": {
                            "TableName": self._table.name,
                            "Item": lease,
                            "ConditionExpression": "attribute_not_exists(pk) OR run_id = :run",
                            "ExpressionAttributeValues": {":run": run.run_id},
                        }
                    },
                    {
                        "Update": {
                            "TableName": self._table.name,
                            "Key": {"pk": _pk(run.run_id), "sk": RUN},
                            "UpdateExpression": "SET #state = :next, leased_at = :now REMOVE pool_pk, pool_sk",
                            "ConditionExpression": _WRITABLE,
                            "ExpressionAttributeNames": {"#state": "state"},
                            "ExpressionAttributeValues": {
                                ":k": run.k,
                                ":next": RunState.PROVISIONING.value,
                                ":now": _stamp(now),
                                **_PLACEHOLDER,
                            },
                        }
                    },
                ]
            )
        except ClientError as error:
            _must_be_refused(run.run_id, error)
            self.load(run.run_id, run.k)
            return False
        return True

    def finish(self, run: Run, state: RunState, **changes: Any) -> Run:
        """The run's last write: its final state, and the lease given back, in one transaction."""
        kept = _stored(changes)
        items: list[dict[str, Any]] = [
            {
                "Update": {
                    "TableName": self._table.name,
                    "Key": {"pk": _pk(run.run_id), "sk": RUN},
                    "UpdateExpression": ", ".join(["SET #state = :next", *(f"#{n} = :{n}" for n in kept)])
                    + " REMOVE cluster_pk, cluster_sk, pool_pk, pool_sk, look_pk, look_sk, #token",
                    "ConditionExpression": _WRITABLE,
                    "ExpressionAttributeNames": {"#state": "state", "#token": "token", **{f"#{n}": n for n in kept}},
                    "ExpressionAttributeValues": {
                        ":k": run.k,
                        ":next": state.value,
                        **_PLACEHOLDER,
                        **{f":{n}": v for n, v in kept.items()},
                    },
                }
            }
        ]
        if self.lease_holder(run.pool) == run.run_id:
            items.append(
                {
                    "Delete": {
                        "TableName": self._table.name,
                        "Key": {"pk": f"POOL#{run.pool}", "sk": "LEASE"},
                        "ConditionExpression": "run_id = :run",
                        "ExpressionAttributeValues": {":run": run.run_id},
                    }
                }
            )
        try:
            self._table.meta.client.transact_write_items(TransactItems=items)
        except ClientError as error:
            _must_be_refused(run.run_id, error)
            raise StaleExecution(run.run_id, run.k, "it could not be ended: its record is final already") from error
        return self.load(run.run_id, run.k)

    def active_on(self, hyperpod_cluster: str) -> Sequence[Run]:
        condition = Key("cluster_pk").eq(f"HYPERPOD#{hyperpod_cluster}")
        found = self._table.query(IndexName="by_cluster", KeyConditionExpression=condition)
        runs = [_run(i) for i in found["Items"]]
        return [r for r in runs if not r.state.is_final]


def _scalar(value: Any) -> Any:
    return _stamp(value) if isinstance(value, datetime) else value


def _must_be_refused(run_id: str, error: ClientError) -> None:
    """Return where a transaction was refused by a condition. A conflict with another write of the same item, or
    throttling, cancels a transaction too, and only means that it has to be repeated."""
    if error.response["Error"]["Code"] != "TransactionCanceledException":
        raise error
    reasons: Any = error.response.get("CancellationReasons", [])
    codes = {str(r.get("Code", "None")) for r in reasons} - {"None"}
    if codes - {"ConditionalCheckFailed"}:
        raise TransientError(run_id, f"a write was cancelled by {', '.join(sorted(codes))}") from error


def _is_conditional(error: ClientError) -> bool:
    return bool(error.response["Error"]["Code"] == "ConditionalCheckFailedException")
