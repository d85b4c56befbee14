"""Fault: a Catch whose Next is its own state is taken for "no transition chosen", and falls through to the state's own
Next. AWS goes back to the state.

Fault: ``States.ALL`` also matches States.Runtime and States.DataLimitExceeded, which no AWS catcher sees.

Fault: ``States.TaskFailed`` does not match a task's failure that carries a States.* name; on AWS it matches every error
but States.Timeout (and what ``States.ALL`` does not match either).
"""

from __future__ import annotations

from typing import Any

from moto.stepfunctions.parser.asl.component.common.catch.catcher_decl import CatcherDecl
from moto.stepfunctions.parser.asl.component.common.catch.catcher_outcome import CatcherOutcomeCaught
from moto.stepfunctions.parser.asl.component.common.error_name.error_equals_decl import ErrorEqualsDecl
from moto.stepfunctions.parser.asl.component.state.state import CommonStateField

from local.cloud.patches.swap import swap

ALL = "States.ALL"
TASK_FAILED = "States.TaskFailed"
UNCATCHABLE = {"States.Runtime", "States.DataLimitExceeded"}
TIMEOUTS = {"States.Timeout", "States.HeartbeatTimeout"}


def matches(listed: set[str | None], error: str | None) -> bool:
    """Whether a Retry or Catch with these names answers this error."""
    if error in listed:
        return True
    if error in UNCATCHABLE:
        return False
    if error == "States.HeartbeatTimeout" and "States.Timeout" in listed:
        return True
    return ALL in listed or (TASK_FAILED in listed and error not in TIMEOUTS)


def install() -> None:
    def eval_equals(self: Any, env: Any) -> None:
        error = env.stack.pop().error_name
        env.stack.append(matches({name.error_name for name in self.error_names}, error))

    swap(ErrorEqualsDecl, "_eval_body", eval_equals)

    original_catch = CatcherDecl._eval_body

    def eval_catch(self: Any, env: Any) -> None:
        original_catch(self, env)
        if isinstance(env.stack[-1], CatcherOutcomeCaught):
            env.caught_next = self.next_decl.name

    swap(CatcherDecl, "_eval_body", eval_catch)

    original_set_next = CommonStateField._set_next

    def set_next(self: Any, env: Any) -> None:
        caught = getattr(env, "caught_next", None)
        env.caught_next = None
        if caught is None:
            original_set_next(self, env)
        else:
            env.next_state_name = caught

    swap(CommonStateField, "_set_next", set_next)
