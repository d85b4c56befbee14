"""Fault: SendTaskFailure drops ``cause``.

Fault: the token of an execution that has ended is InvalidToken; AWS says TaskTimedOut for every token whose task no
longer waits (timed out, answered, or its execution closed), and InvalidToken only for what never was a token.

Fault: an output that is not JSON, or is over 256 KiB, is taken and breaks the execution later; AWS refuses it at once.
"""

from __future__ import annotations

import json
from typing import Any

from moto.core.responses import EmptyResult
from moto.stepfunctions.parser.api import InvalidOutput, InvalidToken, TaskTimedOut
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    CallbackNotifyConsumerError,
    CallbackOutcomeFailure,
    CallbackOutcomeSuccess,
)
from moto.stepfunctions.parser.models import StepFunctionsParserBackend, stepfunctions_parser_backends
from moto.stepfunctions.responses import StepFunctionResponse

from local.cloud.patches.swap import swap

MAX_OUTPUT_BYTES = 262_144
GONE = "Task Timed Out: 'Provided task does not exist anymore'"


def install() -> None:
    swap(StepFunctionsParserBackend, "send_task_success", _success)
    swap(StepFunctionsParserBackend, "send_task_failure", _failure)
    swap(StepFunctionsParserBackend, "send_task_heartbeat", _heartbeat)

    def respond_failure(self: Any) -> Any:
        self.stepfunction_backend.send_task_failure(
            self._get_param("taskToken"), error=self._get_param("error"), cause=self._get_param("cause")
        )
        return EmptyResult()

    swap(StepFunctionResponse, "send_task_failure", respond_failure)


def _pool(backend: Any, token: str) -> Any:
    """The pool of tokens that holds this one. Raises InvalidToken or TaskTimedOut as AWS does."""
    for execution in backend._get_executions():
        env = execution.exec_worker.env if execution.exec_worker else None
        if env is not None and env.callback_pool_manager.get(token) is not None:
            if execution.status != "RUNNING":
                raise TaskTimedOut(GONE)
            return env.callback_pool_manager
    raise InvalidToken()  # type: ignore[no-untyped-call]


def machine_of_token(token: str) -> str | None:
    """ARN of the machine whose execution, open or closed, gave out a token; None for what never was one."""
    for regions in list(stepfunctions_parser_backends.values()):
        for backend in list(regions.values()):
            for execution in backend._get_executions():
                env = execution.exec_worker.env if execution.exec_worker else None
                if env is not None and env.callback_pool_manager.get(token) is not None:
                    return str(execution.state_machine_arn)
    return None


def _success(self: Any, task_token: str, outcome: str) -> None:
    if len(outcome.encode()) > MAX_OUTPUT_BYTES:
        raise InvalidOutput(f"Invalid Output: over {MAX_OUTPUT_BYTES} bytes")
    try:
        json.loads(outcome)
    except ValueError:
        raise InvalidOutput("Invalid Output: 'The output is not valid JSON'") from None
    _notify(self, task_token, CallbackOutcomeSuccess(callback_id=task_token, output=outcome))


def _failure(self: Any, task_token: str, error: str | None = None, cause: str | None = None) -> None:
    _notify(self, task_token, CallbackOutcomeFailure(callback_id=task_token, error=error, cause=cause))


def _notify(backend: Any, token: str, outcome: Any) -> None:
    try:
        _pool(backend, token).notify(callback_id=token, outcome=outcome)
    except CallbackNotifyConsumerError:
        raise TaskTimedOut(GONE) from None


def _heartbeat(self: Any, task_token: str) -> None:
    try:
        _pool(self, task_token).heartbeat(callback_id=task_token)
    except CallbackNotifyConsumerError:
        raise TaskTimedOut(GONE) from None
