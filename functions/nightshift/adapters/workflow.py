"""Step Functions executions and EventBridge stage events."""

from __future__ import annotations

import json
import logging
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nightshift.contract.events import EVENT_SOURCE, STAGE_DETAIL_TYPE, StageEvent

logger = logging.getLogger(__name__)

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
