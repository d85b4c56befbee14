"""Fault: the errors of the interpreter (TaskTimedOut, InvalidToken, InvalidDefinition, ...) are answered without a code,
so no client can tell them apart.

Fault: DescribeExecution gives an output that is a string without its quotes, which is no JSON, and gives no stopDate for
TIMED_OUT.
"""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import AWSError
from moto.core.responses import ActionResult
from moto.stepfunctions.parser import api
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.responses import StepFunctionResponse

from local.cloud.patches.swap import swap


def install() -> None:
    for error in vars(api).values():
        if isinstance(error, type) and issubclass(error, AWSError) and "code" in vars(error):
            swap(error, "TYPE", vars(error)["code"])
            swap(error, "STATUS", vars(error)["status_code"])
    swap(StepFunctionResponse, "describe_execution", _describe)


def _describe(self: Any) -> Any:
    arn = self._get_param("executionArn")
    execution = self.stepfunction_backend.describe_execution(arn)
    answer = {
        "executionArn": arn,
        "stateMachineArn": execution.state_machine_arn,
        "name": execution.name,
        "status": execution.status,
        "startDate": execution.start_date,
        "stopDate": execution.stop_date,
        "input": execution.execution_input,
        "inputDetails": {"included": True},
        "error": execution.error,
        "cause": execution.cause,
    }
    if execution.status == "SUCCEEDED":
        answer |= {"output": to_json_str(execution.output), "outputDetails": {"included": True}}
    return ActionResult({name: value for name, value in answer.items() if value is not None})
