"""The table, the one guarded write of a run record, and DynamoDB's refusals."""

from __future__ import annotations

from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.items import RUN, read_run, run_pk, stored
from nightshift.core.errors import StaleExecution, TransientError
from nightshift.core.run import FINAL_STATES, Run

FINAL = {f":final{i}": state.value for i, state in enumerate(sorted(FINAL_STATES))}
WRITABLE = f"k = :k AND NOT #state IN ({', '.join(FINAL)})"
"""Condition of every write of a step; its names and values are ``#state``, ``:k`` and ``FINAL``."""


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
        count: str | None = None,
        condition: str | None = None,
        values: dict[str, Any] | None = None,
    ) -> Run:
        kept = stored(changes)
        removed = [name for name in changes if name not in kept]
        expression = "SET " + ", ".join(f"#{n} = :{n}" for n in kept) if kept else ""
        if count:
            expression += f" ADD #{count} :one"
        if removed:
            expression += " REMOVE " + ", ".join(f"#{n}" for n in removed)
        try:
            answer = self._table.update_item(
                Key={"pk": run_pk(run_id), "sk": RUN},
                UpdateExpression=expression.strip(),
                ConditionExpression=WRITABLE + (f" AND {condition}" if condition else ""),
                ExpressionAttributeNames={f"#{n}": n for n in {*kept, *removed, "state", *([count] if count else [])}},
                ExpressionAttributeValues={
                    ":k": k,
                    **FINAL,
                    **{f":{n}": v for n, v in kept.items()},
                    **({":one": 1} if count else {}),
                    **(values or {}),
                },
                ReturnValues="ALL_NEW",
            )
        except ClientError as error:
            if is_conditional(error):
                raise StaleExecution(
                    run_id, k, "its record was written by somebody else, or the run is over"
                ) from error
            raise
        return read_run(answer["Attributes"])

    def _transact(self, items: list[dict[str, Any]]) -> None:
        self._table.meta.client.transact_write_items(TransactItems=items)

    def _all(self, run_id: str, prefix: str) -> list[dict[str, Any]]:
        """Every item of a run whose sort key begins with ``prefix``."""
        condition = Key("pk").eq(run_pk(run_id)) & Key("sk").begins_with(prefix)
        items: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            found = self._table.query(KeyConditionExpression=condition, ConsistentRead=True, **page)
            items += found["Items"]
            if "LastEvaluatedKey" not in found:
                return items
            page = {"ExclusiveStartKey": found["LastEvaluatedKey"]}


def must_be_refused(run_id: str, error: ClientError) -> None:
    """Return where a transaction was refused by a condition. A conflict with another write of the same item, or
    throttling, cancels a transaction too, and only means that it has to be repeated."""
    if error.response["Error"]["Code"] != "TransactionCanceledException":
        raise error
    reasons: Any = error.response.get("CancellationReasons", [])
    codes = {str(r.get("Code", "None")) for r in reasons} - {"None"}
    if codes - {"ConditionalCheckFailed"}:
        raise TransientError(run_id, f"a write was cancelled by {', '.join(sorted(codes))}") from error


def is_conditional(error: ClientError) -> bool:
    return bool(error.response["Error"]["Code"] == "ConditionalCheckFailedException")
