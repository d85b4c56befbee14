"""What happened, for people: audit lines and refused requests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional
from nightshift.adapters.run_store.items import MAX_TRAIL, plain, run_pk, stamp
from nightshift.adapters.run_store.reading import moment, read, readable
from nightshift.contract.api import AuditLine
from nightshift.contract.events import FieldError
from nightshift.core.run import RunState
from nightshift.steps.ports import Rejection


class TrailItems(TableBase):
    def audit(self, run_id: str, line: AuditLine) -> None:
        sk = f"AUDIT#{stamp(line.at)}#{uuid.uuid4().hex[:8]}"
        self._table.put_item(Item={"pk": run_pk(run_id), "sk": sk, "version": 1, **plain(line.model_dump(mode="json"))})

    def audit_trail(self, run_id: str, limit: int = MAX_TRAIL) -> Sequence[AuditLine]:
        found = self._query(
            Key("pk").eq(run_pk(run_id)) & Key("sk").begins_with("AUDIT#"),
            min(limit, MAX_TRAIL),
            ScanIndexForward=False,
            ConsistentRead=True,
        )
        return readable(reversed(found), read_line)

    def reject(self, rejection: Rejection) -> bool:
        try:
            self._table.put_item(
                Item={
                    "pk": run_pk(rejection.run_id),
                    "sk": f"REJECTED#{rejection.digest}",
                    "version": 1,
                    "owner": rejection.owner,
                    "state": RunState.REJECTED.value,
                    "at": stamp(rejection.at),
                    "errors": [e.model_dump(mode="json") for e in rejection.errors],
                },
                ConditionExpression="attribute_not_exists(pk)",
            )
        except ClientError as error:
            if is_conditional(error):
                return False
            raise
        return True

    def rejections(self, run_id: str) -> Sequence[Rejection]:
        return readable(self._of_run(run_id, "REJECTED#"), _rejection)


def read_line(item: dict[str, Any]) -> AuditLine:
    """Raises one of ``UNREADABLE``."""
    if item.get("version", 1) != 1:
        raise ValueError(f"version {item['version']} is not known")
    return read(AuditLine, {n: v for n, v in item.items() if n in AuditLine.model_fields})


def _rejection(item: dict[str, Any]) -> Rejection:
    return Rejection(
        digest=str(item["sk"]).removeprefix("REJECTED#"),
        run_id=str(item["pk"]).removeprefix("RUN#"),
        owner=str(item["owner"]),
        errors=[FieldError.model_validate(e, extra="ignore") for e in item["errors"]],
        at=moment(item["at"]),
    )
