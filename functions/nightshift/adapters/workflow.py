"""Step Functions executions and EventBridge stage events."""

from __future__ import annotations

import json
import logging
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nightshift.contract.events import EVENT_SOURCE, STAGE_DETAIL_TYPE, StageEvent
from nightshift.core.errors import TransientError, bounded
from nightshift.core.reconcile import ExecutionState, ExecutionStatus

logger = logging.getLogger(__name__)

NO_REPEAT_HELPS = frozenset({"AccessDenied", "AccessDeniedException", "InvalidArn", "ValidationException"})
NOT_WAITED_FOR = frozenset({"TaskTimedOut", "TaskDoesNotExist", "InvalidToken"})


class StepFunctions:
    """Implements ``steps.ports.Executions``. ``client`` is a boto3 Step Functions client."""

    def __init__(self, client: Any, training_run_arn: str | None = None) -> None:
        self._client, self._arn = client, training_run_arn

    def start(self, name: str, payload: dict[str, Any]) -> None:
        try:
            self._client.start_execution(
                stateMachineArn=self._arn, name=name, input=json.dumps(payload, sort_keys=True)
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ExecutionAlreadyExists":
                raise

    def status(self, name: str) -> ExecutionStatus | None:
        """An unknown status counts as running: only an end that Step Functions tells of is one."""
        assert self._arn is not None, "this function is not wired to the state machine of a run"
        try:
            found = self._client.describe_execution(
                executionArn=f"{self._arn.replace(':stateMachine:', ':execution:')}:{name}"
            )
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ExecutionDoesNotExist":
                return None
            if code in NO_REPEAT_HELPS:
                raise
            raise TransientError(name, f"execution {name} could not be described: {error}") from error
        except BotoCoreError as error:
            raise TransientError(name, f"execution {name} could not be described: {error}") from error
        over = found["status"] in set(ExecutionState) - {ExecutionState.RUNNING}
        error_and_cause = f"{found.get('error') or ''} {found.get('cause') or ''}".strip()
        return ExecutionStatus(
            state=ExecutionState(found["status"]) if over else ExecutionState.RUNNING,
            stopped_at=found.get("stopDate") if over else None,
            error=bounded(error_and_cause or "no cause given", 500),
        )

    def answer(self, token: str, payload: dict[str, Any]) -> bool:
        try:
            self._client.send_task_success(taskToken=token, output=json.dumps(payload))
        except ClientError as error:
            if error.response["Error"]["Code"] in NOT_WAITED_FOR:
                return False
            raise
        return True


class EventBridgeStages:
    """Implements ``steps.ports.Stages``."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def emit(self, event: StageEvent) -> bool:
        entry = {"Source": EVENT_SOURCE, "DetailType": STAGE_DETAIL_TYPE, "Detail": event.to_json()}
        try:
            answer = self._client.put_events(Entries=[entry])
        except (BotoCoreError, ClientError) as error:
            logger.error("stage %s of run %s was not sent: %s", event.key, event.run_id, error)
            return False
        if answer.get("FailedEntryCount"):
            logger.error("stage %s of run %s was refused: %s", event.key, event.run_id, answer["Entries"])
            return False
        return True
