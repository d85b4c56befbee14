"""What is known about one deployed function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class FunctionSpec:
    """``timeout`` in seconds, ``memory`` in MiB (told to the function, not enforced)."""

    name: str
    arn: str
    role_arn: str
    code: Path
    handler: str
    timeout: float
    memory: int
    runtime: str
    variables: Mapping[str, str] = field(default_factory=dict)
    on_failure_arn: str | None = None
    """Queue for a record of an asynchronous invocation that failed for good."""
    dead_letter_arn: str | None = None
    """Queue for the payload of such an invocation."""
    python: Path | None = None
    """Runs it in place of the host's."""
    retries: int = 2
    """Of an asynchronous invocation after the first try."""


@dataclass(frozen=True)
class Result:
    """Of one invocation. ``error`` is None or ``Unhandled``; ``body`` is the answer or the error document."""

    body: bytes
    error: str | None = None
    log_tail: bytes = b""


class FunctionNotFoundError(LookupError):
    """No function of that name is deployed."""


class ThrottledError(RuntimeError):
    """Every environment that the function may have is busy."""
