"""Fault: when a program ends, a task that waits for its token keeps its thread until the task's own timeout.

Fault: a retry of such a task keeps the token of the attempt before, whose answer (or interruption) then counts as its
own. AWS gives each attempt a token of its own.

Fault: a token that was answered, or whose attempt has ended, is taken again as long as the execution runs.
"""

from __future__ import annotations

from typing import Any

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.resource import ResourceCondition
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service import StateTaskService
from moto.stepfunctions.parser.asl.eval.callback.callback import CallbackConsumerLeft, CallbackEndpoint

from local.cloud.patches.interrupts import when_ended
from local.cloud.patches.swap import swap


def install() -> None:
    _one_token_per_attempt()
    _one_answer_per_token()


def _one_token_per_attempt() -> None:
    original = StateTaskService._eval_execution

    def eval_execution(self: Any, env: Any) -> None:
        if self.resource.condition == ResourceCondition.WaitForTaskToken:
            endpoint = _endpoint(env)

            def leave() -> None:
                endpoint.report(CallbackConsumerLeft())
                endpoint.interrupt_all()

            when_ended(env, leave)
        original(self, env)

    swap(StateTaskService, "_eval_execution", eval_execution)


def _endpoint(env: Any) -> Any:
    """Where this attempt waits: that of the token which the state got, or of a new token for a retry."""
    context = env.states.context_object
    if context.context_object_data["State"]["RetryCount"]:
        return env.callback_pool_manager.add(context.update_task_token())
    return env.callback_pool_manager.get(context.context_object_data["Task"]["Token"])


def _one_answer_per_token() -> None:
    original = CallbackEndpoint.notify

    def notify(self: Any, outcome: Any) -> None:
        original(self, outcome)
        self.report(CallbackConsumerLeft())

    swap(CallbackEndpoint, "notify", notify)
