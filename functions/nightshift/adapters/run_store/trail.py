"""What happened, for people: audit lines and refused requests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from nightshift.adapters.run_store.base import TableBase, is_conditional
from nightshift.adapters.run_store.items import MAX_TRAIL, plain, run_pk, stamp
from nightshift.contract.api import AuditLine
from nightshift.contract.events import FieldError
from nightshift.core.run import RunState
from nightshift.steps.ports import Rejection


class TrailItems(TableBase):
    def audit(self, run_id: str, line: AuditLine) -> None:
        sk = f"AUDIT#{stamp(line.at)}#{uuid.uuid4().hex[:8]}"
        self._table.put_item(Item={"pk": run_pk(run_id), "sk": sk, "version": 1, **plain(line.model_dump(mode="json"))})

    def audit_trail(self, run_id: str, limit: int = MAX_TRAIL) -> Sequence[AuditLine]:
        found = self._table.query(
            KeyConditionExpression=Key("pk").eq(run_pk(run_id)) & Key("sk").begins_with("AUDIT#"),
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
