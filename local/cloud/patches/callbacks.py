"""Fault: when a program ends, a task that waits for its token keeps its thread until the task's own timeout.

Fault: a retry of such a task keeps the token of the attempt before, whose answer (or interruption) then counts as its
own. AWS gives each attempt a token of its own.

Fault: a token that was answered, or whose task timed out, is accepted again as long as the execution runs.
"""

from __future__ import annotations

from typing import Any

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.resource import ResourceCondition
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service import StateTaskService
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_callback import (
    StateTaskServiceCallback,
)
from moto.stepfunctions.parser.asl.eval.callback.callback import CallbackConsumerLeft, CallbackEndpoint

from local.cloud.patches.interrupts import forget, when_ended
from local.cloud.patches.swap import swap


def install() -> None:
    _one_token_per_attempt()
    _one_answer_per_token()


def _one_token_per_attempt() -> None:
    original = StateTaskService._eval_execution

    def eval_execution(self: Any, env: Any) -> None:
        context = env.states.context_object
        retries = context.context_object_data["State"]["RetryCount"]
        if retries and self.resource.condition == ResourceCondition.WaitForTaskToken:
            env.callback_pool_manager.add(context.update_task_token())
        original(self, env)

    swap(StateTaskService, "_eval_execution", eval_execution)


def _one_answer_per_token() -> None:
    original_wait = StateTaskServiceCallback._eval_wait_for_task_token

    def wait(self: Any, env: Any, timeout_seconds: int, callback_endpoint: Any, heartbeat_endpoint: Any) -> Any:
        def leave() -> None:
            callback_endpoint.report(CallbackConsumerLeft())
            callback_endpoint.interrupt_all()

        when_ended(env, leave)
        try:
            return original_wait(self, env, timeout_seconds, callback_endpoint, heartbeat_endpoint)
        finally:
            forget(env, leave)
            callback_endpoint.report(CallbackConsumerLeft())

    swap(StateTaskServiceCallback, "_eval_wait_for_task_token", wait)

    original_notify = CallbackEndpoint.notify

    def notify(self: Any, outcome: Any) -> None:
        original_notify(self, outcome)
        self.report(CallbackConsumerLeft())

    swap(CallbackEndpoint, "notify", notify)
