"""Fault: an execution that is stopped, or that reaches its machine's TimeoutSeconds, goes on waiting inside its current
task (for up to the task's own timeout), then runs that task's Retry and Catch and ends as FAILED with States.Runtime.
AWS ends it at once, as ABORTED or TIMED_OUT, and runs nothing more.

Fault: a task that timed out still writes its TaskSucceeded or TaskFailed into the history when its call returns.

Here every end of a program wakes whatever waits for it: tasks run on a thread of their own that the program leaves
behind when it ends, a retry's pause and a nested execution's wait are interruptible, and an ended program handles no
error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from moto.stepfunctions.parser.asl.component.common.retry import retrier_decl
from moto.stepfunctions.parser.asl.component.program.program import Program
from moto.stepfunctions.parser.asl.component.state.exec.execute_state import ExecutionState
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service import StateTaskService
from moto.stepfunctions.parser.asl.component.state.state import CommonStateField
from moto.stepfunctions.parser.asl.eval.environment import Environment
from moto.stepfunctions.parser.asl.eval.event.event_manager import EventManager

from local.cloud.patches.swap import swap

WRITE_LAST_EVENT_SECONDS = 5.0
"""How long an ended program may take to write its last history event before the execution is reported as ended."""


def when_ended(env: Any, wake: Callable[[], None]) -> None:
    """Call ``wake`` once when this environment (a program or a frame of it) stops running; at once if it has."""
    with env._state_mutex:
        env.__dict__.setdefault("wakes", []).append(wake)
        running = env.is_running()
    if not running:
        wake()


def forget(env: Any, wake: Callable[[], None]) -> None:
    with env._state_mutex:
        wakes = env.__dict__.get("wakes", [])
        if wake in wakes:
            wakes.remove(wake)


def _fire(env: Any) -> None:
    with env._state_mutex:
        wakes = env.__dict__.pop("wakes", [])
    for wake in wakes:
        wake()


def pause(env: Any, seconds: float) -> None:
    """Wait that long, or until the program ends."""
    ended = threading.Event()
    when_ended(env, ended.set)
    ended.wait(seconds)
    forget(env, ended.set)


def install() -> None:
    for name in ("set_ended", "set_error", "set_timed_out", "set_stop"):
        _wake_after(name)
    _interruptible_tasks()
    _nothing_handled_after_the_end()
    _interruptible_retries()
    _no_late_history()
    swap(Program, "eval", _eval_program)


def _wake_after(name: str) -> None:
    original = getattr(Environment, name)

    def ending(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _fire(self)

    setattr(Environment, name, ending)


def _interruptible_tasks() -> None:
    original = StateTaskService._eval_execution

    def eval_execution(self: Any, env: Any) -> None:
        finished = threading.Event()
        problems: list[Exception] = []

        def work() -> None:
            try:
                original(self, env)
            except Exception as problem:  # noqa: BLE001 - it is raised again on the state's own thread
                problems.append(problem)
            finished.set()

        worker = threading.Thread(target=work, daemon=True, name="states-task")
        worker.start()
        when_ended(env, finished.set)
        finished.wait()
        forget(env, finished.set)
        if not env.is_running():
            env.event_history_context.abandoned = True
        elif problems:
            raise problems[0]

    swap(StateTaskService, "_eval_execution", eval_execution)


def _nothing_handled_after_the_end() -> None:
    original = ExecutionState._evaluate_with_timeout

    def evaluate(self: Any, env: Any) -> None:
        try:
            original(self, env)
        except Exception:
            if env.is_running():
                raise

    swap(ExecutionState, "_evaluate_with_timeout", evaluate)

    original_input = CommonStateField._eval_body

    def eval_body(self: Any, env: Any) -> None:
        try:
            original_input(self, env)
        except Exception:
            if env.is_running():
                raise

    swap(CommonStateField, "_eval_body", eval_body)


def _interruptible_retries() -> None:
    current = threading.local()
    original = retrier_decl.RetrierDecl._eval_body

    class Clock:
        @staticmethod
        def sleep(seconds: float) -> None:
            pause(current.env, seconds)

    def eval_body(self: Any, env: Any) -> None:
        current.env = env
        try:
            original(self, env)
        finally:
            del current.env

    swap(retrier_decl, "time", Clock)
    swap(retrier_decl.RetrierDecl, "_eval_body", eval_body)


def _no_late_history() -> None:
    original = EventManager.add_event

    def add_event(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(context, "abandoned", False):
            return None
        return original(self, context, *args, **kwargs)

    swap(EventManager, "add_event", add_event)


def _eval_program(self: Any, env: Any) -> None:
    """Run the program on a thread of its own, for at most the machine's TimeoutSeconds; return when it has ended and
    its last history event is written."""
    limit = self.timeout_seconds.timeout_seconds if self.timeout_seconds else None
    env.next_state_name = self.start_at.start_at_name
    worker = threading.Thread(target=super(Program, self).eval, args=(env,), daemon=True, name="states-program")
    worker.start()
    worker.join(timeout=limit)
    if worker.is_alive():
        env.set_timed_out()
        worker.join(timeout=WRITE_LAST_EVENT_SECONDS)
