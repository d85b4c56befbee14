"""The "Step Functions Execution Status Change" event of an execution, as AWS documents it."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

SOURCE = "aws.states"
DETAIL_TYPE = "Step Functions Execution Status Change"


def status_event(execution: Any, account: str, region: str) -> dict[str, Any]:
    """``execution`` is moto's; times in milliseconds since the epoch, input and output as JSON text."""
    status = str(execution.status)
    output = json.dumps(execution.output) if status == "SUCCEEDED" else None
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": DETAIL_TYPE,
        "source": SOURCE,
        "account": account,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": region,
        "resources": [execution.execution_arn],
        "detail": {
            "executionArn": execution.execution_arn,
            "stateMachineArn": execution.state_machine_arn,
            "name": execution.name,
            "status": status,
            "startDate": _millis(execution.start_date),
            "stopDate": _millis(execution.stop_date),
            "input": execution.execution_input,
            "output": output,
            "inputDetails": {"included": True},
            "outputDetails": None if output is None else {"included": True},
            "error": execution.error,
            "cause": execution.cause,
        },
    }


def _millis(at: datetime | None) -> int | None:
    return None if at is None else int(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1000)
