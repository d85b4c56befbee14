"""Attempts: claimed once, in one transaction with the run's number of them; an end is never rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional, must_be_refused, patiently
from nightshift.adapters.run_store.items import attempt_key, plain
from nightshift.adapters.run_store.reading import read_attempt, readable
from nightshift.core.causes import EndCause
from nightshift.core.errors import StaleExecution
from nightshift.core.run import Attempt, Run

OF_THIS_K = "(attribute_not_exists(k) OR k <= :k)"
"""An attempt's item names the k of its last writer, and of the successor from the moment when there is one."""


class AttemptItems(TableBase):
    def claim_attempt(self, run: Run, attempt: Attempt) -> Run | None:
        counted = self._record(run, {"attempt": attempt.n}, "attempt = :before", {":before": attempt.n - 1})
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

    def save_attempt(self, run: Run, attempt: Attempt, look_seq: int | None = None) -> bool:
        put = {
            "Item": _item(run, attempt),
            "ConditionExpression": f"attribute_not_exists(ended_at) AND {OF_THIS_K}",
            "ExpressionAttributeValues": {":k": run.k},
        }
        try:
            if look_seq is None:
                patiently(self._table.put_item, **put)
            else:
                in_charge = self._record(run, {"attempt": attempt.n}, "look_seq = :look", {":look": look_seq})
                self._transact([{"Update": in_charge}, {"Put": {"TableName": self._table.name, **put}}])
        except ClientError as error:
            if is_conditional(error):
                return False
            must_be_refused(run.run_id, error)
            there = self.load(run.run_id, run.k)
            if there.state.is_final or there.look_seq != look_seq:
                raise StaleExecution(run.run_id, run.k, "a later look began, or the run is over") from error
            return False
        return True

    def correct_cause(self, run: Run, attempt: int, wrong: EndCause, right: EndCause) -> None:
        try:
            self._table.update_item(
                Key=attempt_key(run.run_id, attempt),
                UpdateExpression="SET end_cause = :right",
                ConditionExpression=f"end_cause = :wrong AND {OF_THIS_K}",
                ExpressionAttributeValues={":wrong": wrong.value, ":right": right.value, ":k": run.k},
            )
        except ClientError as error:
            if not is_conditional(error):
                raise

    def attempts(self, run_id: str) -> Sequence[Attempt]:
        return readable(self._of_run(run_id, "ATTEMPT#"), read_attempt)


def _item(run: Run, attempt: Attempt) -> dict[str, Any]:
    return {**attempt_key(run.run_id, attempt.n), "k": run.k, **plain(attempt.model_dump(mode="json"))}
