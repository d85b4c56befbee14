"""The table, the one guarded write of a run record, and DynamoDB's refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from boto3.dynamodb.conditions import ConditionBase, Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.items import RUN, run_pk, stored
from nightshift.adapters.run_store.reading import read_run, unreadable_record
from nightshift.core.errors import StaleExecution, TransientError
from nightshift.core.run import FINAL_STATES, Run

FINAL = {f":final{i}": state.value for i, state in enumerate(sorted(FINAL_STATES))}
WRITABLE = f"k = :k AND NOT #state IN ({', '.join(FINAL)})"
"""Condition of every write of a step; its names and values are ``#state``, ``:k`` and ``FINAL``."""

COUNTED = frozenset({"look_seq", "shift_seq"})
"""Counted up by the table, whatever number a change names: a late repeat never sets them back, or uses one again."""


PAUSES = (0.02, 0.05, 0.1, 0.2)
"""Seconds between tries of a write that met a transaction on its item: one takes some milliseconds."""

T = TypeVar("T")


class TableBase:
    """Holds the table; each kind of item has a class of its own over it."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def get(self, run_id: str) -> Run | None:
        item = self._table.get_item(Key={"pk": run_pk(run_id), "sk": RUN}, ConsistentRead=True).get("Item")
        return None if item is None else read_run(item)

    def load(self, run_id: str, k: int) -> Run:
        run = self.get(run_id)
        if run is None:
            raise StaleExecution(run_id, k, "the run has no record")
        if run.k != k:
            raise StaleExecution(run_id, k, f"the record holds r{run.k}")
        return run

    def _write(
        self,
        run_id: str,
        k: int,
        changes: dict[str, Any],
        condition: str | None = None,
        values: dict[str, Any] | None = None,
    ) -> Run:
        counted = sorted(COUNTED & set(changes))
        kept = {name: value for name, value in stored(changes).items() if name not in COUNTED}
        removed = [name for name in changes if name not in kept and name not in COUNTED]
        parts = {
            "SET": ", ".join(f"#{n} = :{n}" for n in kept),
            "ADD": ", ".join(f"#{n} :one" for n in counted),
            "REMOVE": ", ".join(f"#{n}" for n in removed),
        }
        return self._guarded(
            run_id,
            k,
            expression=" ".join(f"{verb} {what}" for verb, what in parts.items() if what),
            condition=condition,
            names={*kept, *removed, *counted},
            values={**{f":{n}": v for n, v in kept.items()}, **({":one": 1} if counted else {}), **(values or {})},
        )

    def _guarded(
        self, run_id: str, k: int, expression: str, condition: str | None, names: set[str], values: dict[str, Any]
    ) -> Run:
        """Update a run record that is of this k and not over. Raises StaleExecution."""
        try:
            answer = patiently(
                self._table.update_item,
                Key={"pk": run_pk(run_id), "sk": RUN},
                UpdateExpression=expression,
                ConditionExpression=WRITABLE + (f" AND ({condition})" if condition else ""),
                ExpressionAttributeNames={f"#{n}": n for n in {*names, "state"}},
                ExpressionAttributeValues={":k": k, **FINAL, **values},
                ReturnValues="ALL_NEW",
            )
        except ClientError as error:
            if is_conditional(error):
                raise StaleExecution(
                    run_id, k, "its record was written by somebody else, or the run is over"
                ) from error
            must_be_readable(run_id, error)
            raise
        return read_run(answer["Attributes"])

    def _transact(self, items: list[dict[str, Any]]) -> None:
        patiently(self._table.meta.client.transact_write_items, TransactItems=items)

    def _record(
        self, run: Run, kept: dict[str, Any], condition: str, values: dict[str, Any], removed: str = ""
    ) -> dict[str, Any]:
        """An update of a run's record as part of a transaction: it is of this k, not over, and meets ``condition``."""
        names = {f"#{n}": n for n in {*kept, "state", *(["token"] if "#token" in removed else [])}}
        removes = f" REMOVE {removed}" if removed else ""
        return {
            "TableName": self._table.name,
            "Key": {"pk": run_pk(run.run_id), "sk": RUN},
            "UpdateExpression": "SET " + ", ".join(f"#{n} = :new_{n}" for n in kept) + removes,
            "ConditionExpression": f"{WRITABLE} AND {condition}" if condition else WRITABLE,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {":k": run.k, **FINAL, **{f":new_{n}": v for n, v in kept.items()}, **values},
        }

    def _query(self, condition: ConditionBase, limit: int | None = None, **how: Any) -> list[dict[str, Any]]:
        """Items that match, page by page; at most ``limit``."""
        return list(islice(self._pages(condition, how if limit is None else {**how, "Limit": limit}), limit))

    def _pages(self, condition: ConditionBase, how: dict[str, Any]) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {}
        while True:
            found = self._table.query(KeyConditionExpression=condition, **how, **page)
            yield from found["Items"]
            if "LastEvaluatedKey" not in found:
                return
            page = {"ExclusiveStartKey": found["LastEvaluatedKey"]}

    def _of_run(self, run_id: str, prefix: str) -> list[dict[str, Any]]:
        """Every item of a run whose sort key begins with ``prefix``."""
        return self._query(Key("pk").eq(run_pk(run_id)) & Key("sk").begins_with(prefix), ConsistentRead=True)


def patiently(call: Callable[..., T], **request: Any) -> T:
    """Repeat a write that met another transaction on its item: nothing was written. A signal above all must not fail by
    it, since its sender would only try again minutes later."""
    for pause in PAUSES:
        try:
            return call(**request)
        except ClientError as error:
            if not _is_conflict(error):
                raise
            time.sleep(pause)
    return call(**request)


def _is_conflict(error: ClientError) -> bool:
    if error.response["Error"]["Code"] == "TransactionCanceledException":
        return _reasons(error) == {"TransactionConflict"}
    return bool(error.response["Error"]["Code"] == "TransactionConflictException")


def _reasons(error: ClientError) -> set[str]:
    reasons: Any = error.response.get("CancellationReasons", [])
    return {str(r.get("Code", "None")) for r in reasons} - {"None"}


def must_be_refused(run_id: str, error: ClientError) -> None:
    """Return where a transaction was refused by a condition. A conflict with another write of the same item, or
    throttling, cancels a transaction too, and only means that it has to be repeated."""
    if error.response["Error"]["Code"] != "TransactionCanceledException":
        raise error
    others = _reasons(error) - {"ConditionalCheckFailed"}
    if others:
        raise TransientError(run_id, f"a write was cancelled by {', '.join(sorted(others))}") from error


def must_be_readable(run_id: str, error: ClientError) -> None:
    """DynamoDB cannot count up what is no number."""
    if error.response["Error"]["Code"] == "ValidationException":
        raise unreadable_record(run_id, error) from error


def is_conditional(error: ClientError) -> bool:
    return bool(error.response["Error"]["Code"] == "ConditionalCheckFailedException")
