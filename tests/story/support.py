"""What the tests of the story share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boto3.dynamodb.types import TypeDeserializer

from local.stack import Stack
from local.story.demo import Told
from local.story.request import Request


@dataclass(frozen=True)
class Played:
    """The story, told to its end on a stack that still runs."""

    stack: Stack
    request: Request
    told: Told
    out: Path
    terminal: str

    @property
    def prefix(self) -> str:
        return f"runs/{self.request.run_id}/"


def items(stack: Stack, run_id: str, prefix: str) -> list[dict[str, Any]]:
    """Items of a run in the table whose sort key begins with ``prefix``, as plain Python."""
    plain = TypeDeserializer().deserialize
    table = stack.account.items(stack.outputs["TableName"])
    found = [{name: plain(value) for name, value in item.items()} for item in table]
    return [one for one in found if one["pk"] == f"RUN#{run_id}" and str(one["sk"]).startswith(prefix)]


def executions(stack: Stack) -> set[str]:
    """Names of all training_run executions there ever were."""
    return {one["name"] for one in stack.account.executions(stack.outputs["TrainingRunArn"])}


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return condition()
