"""Fault: ``states:startExecution.sync`` and ``.sync:2`` fail, because parameters and results are not turned between the
PascalCase of the language and the camelCase of the API, and times are left as objects.

Fault: a nested execution is polled every half second. Here the end of any execution wakes those who wait for one.

Fault: when the parent is stopped, its nested execution runs on; AWS stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_sfn import (
    StateTaskServiceSfn,
)
from moto.stepfunctions.parser.asl.eval.program_state import ProgramStopped
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from local.cloud.patches.executions import BELL, stop
from local.cloud.patches.interrupts import forget, when_ended
from local.cloud.patches.permissions import Permit
from local.cloud.patches.swap import swap

RECHECK_SECONDS = 30.0
"""The longest wait between two looks at a nested execution, should a wake-up be lost."""


def _value(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value


def _pascal(document: dict[str, Any]) -> dict[str, Any]:
    return {key[0].upper() + key[1:]: _value(value) for key, value in document.items()}


def _camel(document: dict[str, Any]) -> dict[str, Any]:
    return {key[0].lower() + key[1:]: value for key, value in document.items()}


def install() -> None:
    original_task = StateTaskServiceSfn._eval_service_task

    def eval_task(
        self: Any, env: Any, resource_runtime_part: Any, normalised_parameters: dict[str, Any], state_credentials: Any
    ) -> None:
        original_task(self, env, resource_runtime_part, _camel(normalised_parameters), state_credentials)
        env.stack.append(_pascal(env.stack.pop()))

    swap(StateTaskServiceSfn, "_eval_service_task", eval_task)

    def normalise(self: Any, response: Any, *_: Any, **__: Any) -> None:
        renamed = _pascal(response)
        response.clear()
        response.update(renamed)

    swap(StateTaskServiceSfn, "_normalise_response", normalise)
    swap(StateTaskServiceSfn, "_eval_sync", _eval_sync)
    _remember_child("_build_sync_resolver")
    _remember_child("_build_sync2_resolver")


def _remember_child(name: str) -> None:
    original = getattr(StateTaskServiceSfn, name)

    def build(self: Any, env: Any, *args: Any, **kwargs: Any) -> Any:
        env.nested_arn = env.stack[-1]["ExecutionArn"]
        return original(self, env, *args, **kwargs)

    setattr(StateTaskServiceSfn, name, build)


def _eval_sync(self: Any, env: Any, sync_resolver: Callable[[], Any], **_: Any) -> Any:
    """Look at the nested execution whenever an execution ends, until it has ended or the parent has."""
    when_ended(env, BELL.ring)
    try:
        while env.is_running():
            heard = BELL.rings
            result = sync_resolver()
            if result:
                return result
            BELL.wait_past(heard, RECHECK_SECONDS)
    finally:
        forget(env, BELL.ring)
    if isinstance(env.program_state(), ProgramStopped):
        _stop_child(env)
    return None


_PERMITS: list[Permit] = []


def on_service_call(permit: Permit) -> None:
    """Have ``permit`` asked before Step Functions does by itself what it needs the machine's role for."""
    _PERMITS.append(permit)


def _stop_child(env: Any) -> None:
    details = env.aws_execution_details
    for permit in _PERMITS:
        permit(details.role_arn, "states:StopExecution", env.nested_arn)
    backend = stepfunctions_parser_backends[details.account][details.region]
    stop(backend.describe_execution(env.nested_arn), None, "the execution that started this one was stopped")
