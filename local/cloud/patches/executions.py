"""Fault: an execution without a name gets the name ``None``, so the second one collides with the first.

Fault: any name is accepted; AWS allows 1 to 80 characters and refuses some of them with InvalidName.

Fault: StopExecution ignores ``error`` and ``cause``, and an ABORTED execution shows neither.

Fault: a second execution with the name of a RUNNING one and another input, or of a closed one, must be refused, and is;
but two starts at the same moment both succeed, for nothing guards the check.

Fault: the executions of a machine that is deleted go on unseen; AWS ends each at its next transition.

Fault: nothing sends "Step Functions Execution Status Change" events. Here a listener hears of every start and end.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.stepfunctions.exceptions import InvalidName
from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.asl.eval.program_state import ProgramStopped
from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication, Execution
from moto.stepfunctions.parser.backend.execution_worker import ExecutionWorker
from moto.stepfunctions.parser.models import StepFunctionsParserBackend
from moto.stepfunctions.responses import StepFunctionResponse

from local.cloud.patches.swap import swap

NAME = re.compile(r'^[^\s<>{}\[\]?*"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]{1,80}$')

StatusListener = Callable[[Any], None]


class Bell:
    """Rings at every change; who waits says how many rings it had heard before it looked, so none is missed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rings = 0

    @property
    def rings(self) -> int:
        return self._rings

    def ring(self) -> None:
        with self._changed:
            self._rings += 1
            self._changed.notify_all()

    def wait_past(self, heard: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._rings > heard, seconds)

    def wait_until(self, reached: Callable[[], bool], seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(reached, seconds)


BELL = Bell()
"""Rings whenever an execution has begun to run or has ended."""

BEGIN_SECONDS = 10.0
STOP_SECONDS = 5.0

_LISTENERS: list[StatusListener] = []
_STARTS = threading.RLock()


def on_status_change(listener: StatusListener) -> None:
    """Have ``listener`` called with the execution (moto's) at its start and at its end."""
    _LISTENERS.append(listener)


def _tell(execution: Any) -> None:
    for listener in _LISTENERS:
        listener(execution)


def install() -> None:
    _names_and_starts()
    _stops()
    _status_changes()


def _names_and_starts() -> None:
    original: Any = StepFunctionsParserBackend.start_execution

    def start(
        self: Any,
        state_machine_arn: str,
        name: str | None = None,
        execution_input: str | None = None,
        trace_header: str | None = None,
    ) -> Any:
        chosen = name if name is not None else str(uuid.uuid4())
        if not NAME.match(chosen):
            raise InvalidName(f"Invalid Name: '{chosen}'")
        with _STARTS:
            return original(self, state_machine_arn, chosen, execution_input, trace_header)

    swap(StepFunctionsParserBackend, "start_execution", start)


def _stops() -> None:
    def respond(self: Any) -> Any:
        arn = self._get_param("executionArn")
        execution = self.stepfunction_backend.describe_execution(arn)
        stop(execution, self._get_param("error"), self._get_param("cause"))
        return ActionResult({"stopDate": execution.stop_date or utcnow()})

    swap(StepFunctionResponse, "stop_execution", respond)

    original_delete = StepFunctionsParserBackend.delete_state_machine

    def delete(self: Any, arn: str) -> None:
        for execution in list(self._get_executions(ExecutionStatus.RUNNING)):
            if execution.state_machine_arn == arn:
                stop(execution, None, "its state machine was deleted")
        original_delete(self, arn)

    swap(StepFunctionsParserBackend, "delete_state_machine", delete)


def stop(execution: Any, error: str | None, cause: str | None) -> None:
    """End a running execution as ABORTED and wait until it has; a closed one stays as it is."""
    BELL.wait_until(lambda: execution.exec_worker is not None and execution.exec_worker.env is not None, BEGIN_SECONDS)
    if execution.status == "RUNNING":
        execution.stop(stop_date=utcnow(), error=error, cause=cause)
        BELL.wait_until(lambda: execution.status != "RUNNING", STOP_SECONDS)


def _status_changes() -> None:
    original_start = Execution.start

    def start(self: Any) -> None:
        self.exec_status = ExecutionStatus.RUNNING
        _tell(self)
        original_start(self)

    swap(Execution, "start", start)

    original_environment = ExecutionWorker._get_evaluation_environment

    def environment(self: Any) -> Any:
        self.env = original_environment(self)
        BELL.ring()
        return self.env

    swap(ExecutionWorker, "_get_evaluation_environment", environment)

    original_end = BaseExecutionWorkerCommunication.terminated

    def terminated(self: Any) -> None:
        original_end(self)
        state = self.execution.exec_worker.env.program_state()
        if isinstance(state, ProgramStopped):
            self.execution.error, self.execution.cause = state.error, state.cause
        BELL.ring()
        _tell(self.execution)

    swap(BaseExecutionWorkerCommunication, "terminated", terminated)
