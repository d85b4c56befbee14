"""Attempts: claimed once, in one transaction with the run's number of them; an end is never rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import FINAL, WRITABLE, TableBase, is_conditional, must_be_refused
from nightshift.adapters.run_store.items import RUN, plain, read_attempt, run_pk
from nightshift.core.causes import EndCause
from nightshift.core.errors import StaleExecution
from nightshift.core.run import Attempt, Run


class AttemptItems(TableBase):
    def claim_attempt(self, run: Run, attempt: Attempt) -> Run | None:
        counted = {
            "TableName": self._table.name,
            "Key": {"pk": run_pk(run.run_id), "sk": RUN},
            "UpdateExpression": "SET attempt = :n",
            "ConditionExpression": f"{WRITABLE} AND attempt = :before",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":k": run.k, ":n": attempt.n, ":before": attempt.n - 1, **FINAL},
        }
        put = {
            "TableName": self._table.name,
            "Item": _item(run, attempt),
            "ConditionExpression": "attribute_not_exists(pk)",
        }
        try:
            self._transact([{"Update": counted}, {"Put": put}])
        except ClientError as error:
            must_be_refused(run.run_id, error)
            if self.load(run.run_id, run.k).attempt >= attempt.n:
                return None
            raise StaleExecution(run.run_id, run.k, "an attempt could not be claimed: the run is over") from error
        return self.load(run.run_id, run.k)

    def save_attempt(self, run: Run, attempt: Attempt) -> bool:
        try:
            self._table.put_item(Item=_item(run, attempt), ConditionExpression="attribute_not_exists(ended_at)")
        except ClientError as error:
            if is_conditional(error):
                return False
            raise
        return True

    def correct_cause(self, run: Run, attempt: int, wrong: EndCause, right: EndCause) -> None:
        try:
            self._table.update_item(
                Key={"pk": run_pk(run.run_id), "sk": f"ATTEMPT#{attempt:05d}"},
                UpdateExpression="SET end_cause = :right",
                ConditionExpression="end_cause = :wrong",
                ExpressionAttributeValues={":wrong": wrong.value, ":right": right.value},
            )
        except ClientError as error:
            if not is_conditional(error):
                raise

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        return [read_attempt(item) for item in self._of_run(run_id, "ATTEMPT#")]


def _item(run: Run, attempt: Attempt) -> dict[str, Any]:
    return {"pk": run_pk(run.run_id), "sk": f"ATTEMPT#{attempt.n:05d}", **plain(attempt.model_dump(mode="json"))}
