"""Keeps the environments of all deployed functions: reuse, growth up to a limit, replacement, asynchronous retries."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from local.cloud.functions.environment import Environment
from local.cloud.functions.spec import FunctionNotFoundError, FunctionSpec, Result, ThrottledError

LOG = logging.getLogger(__name__)

MAX_ENVIRONMENTS = 10
"""Of one function at once; one more call is throttled, as reserved concurrency does."""

ASYNC_WORKERS = 8
ASYNC_RETRY_SECONDS = (1.0, 2.0)
"""Pauses before the retries of an asynchronous invocation; AWS waits one and two minutes."""

THROTTLE_RETRY_SECONDS = 0.5
THROTTLE_TRIES = 120

Variables = Callable[[FunctionSpec], Mapping[str, str]]
Enqueue = Callable[[FunctionSpec, str, str], None]
"""Takes the function that failed, a queue's ARN and a message body; raises where the function's role may not."""


@dataclass
class _Function:
    spec: FunctionSpec
    idle: list[Environment] = field(default_factory=list)
    all: set[Environment] = field(default_factory=set)


class FunctionHost:
    """``variables`` gives the base environment (addresses, credentials of the function's role) of a new process."""

    def __init__(self, python: Path, log_dir: Path, variables: Variables, enqueue: Enqueue) -> None:
        self._python, self._log_dir = python, log_dir
        self._variables, self._enqueue = variables, enqueue
        self._functions: dict[str, _Function] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._workers = ThreadPoolExecutor(ASYNC_WORKERS, thread_name_prefix="lambda-async")

    def register(self, spec: FunctionSpec) -> None:
        """Deploy a function, or a new version of it: idle environments of the old one end, busy ones end when done."""
        with self._lock:
            old = self._functions.get(spec.name)
            self._functions[spec.name] = _Function(spec)
        for environment in old.idle if old else []:
            environment.end()

    def remove_all(self) -> int:
        """Delete every function: idle environments end now, busy ones when done. Returns how many functions there were."""
        with self._lock:
            removed, self._functions = self._functions, {}
        for function in removed.values():
            for environment in function.idle:
                environment.end()
        return len(removed)

    def warm(self, name: str) -> Future[None]:
        """Start one environment in the background, for the first invocation to find."""
        return self._workers.submit(self._warm, name)

    def _warm(self, name: str) -> None:
        function = self._function(name)
        with self._lock:
            if function.all or self._closed:
                return
        environment = self._start(function)
        with self._lock:
            function.idle.append(environment)

    def spec(self, name: str) -> FunctionSpec:
        """Raises FunctionNotFoundError."""
        return self._function(name).spec

    def invoke(self, name: str, payload: bytes) -> Result:
        """Synchronous invocation. Raises FunctionNotFoundError and ThrottledError."""
        function = self._function(name)
        environment = self._acquire(function)
        try:
            return environment.invoke(payload or b"{}")
        finally:
            self._release(function, environment)

    def invoke_async(self, name: str, payload: bytes) -> None:
        """Queue an Event invocation: up to two retries, then the failure queues. Raises FunctionNotFoundError."""
        self._function(name)
        self._workers.submit(self._run_async, name, payload)

    def processes(self) -> list[tuple[int, str]]:
        with self._lock:
            return [
                (environment.pid, f"lambda {name}")
                for name, function in self._functions.items()
                for environment in function.all
                if not environment.dead
            ]

    def close(self) -> None:
        """End every process."""
        with self._lock:
            self._closed = True
            environments = [one for function in self._functions.values() for one in function.all]
        for environment in environments:
            environment.kill()
        for environment in environments:
            environment.end()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _function(self, name: str) -> _Function:
        with self._lock:
            if name not in self._functions:
                raise FunctionNotFoundError(name)
            return self._functions[name]

    def _acquire(self, function: _Function) -> Environment:
        with self._lock:
            while function.idle:
                environment = function.idle.pop()
                if not environment.dead:
                    return environment
                function.all.discard(environment)
        return self._start(function)

    def _start(self, function: _Function) -> Environment:
        variables = self._variables(function.spec)
        with self._lock:
            if self._closed:
                raise ThrottledError("the local cloud is shutting down")
            if len(function.all) >= MAX_ENVIRONMENTS:
                raise ThrottledError(function.spec.name)
            log = self._log_dir / f"lambda-{function.spec.name}.log"
            environment = Environment(function.spec, function.spec.python or self._python, variables, log)
            function.all.add(environment)
            return environment

    def _release(self, function: _Function, environment: Environment) -> None:
        with self._lock:
            current = self._functions.get(function.spec.name) is function
            if environment.dead or not current or self._closed:
                function.all.discard(environment)
                outdated = not environment.dead
            else:
                function.idle.append(environment)
                outdated = False
        if outdated:
            environment.end()

    def _run_async(self, name: str, payload: bytes) -> None:
        spec, result = self.spec(name), Result(b"{}", "Unhandled")
        for attempt in range(spec.retries + 1):
            if attempt:
                time.sleep(ASYNC_RETRY_SECONDS[min(attempt, len(ASYNC_RETRY_SECONDS)) - 1])
            result = self._invoke_when_free(name, payload)
            if result.error is None:
                return
            LOG.warning("asynchronous invocation of %s failed, try %d: %s", name, attempt + 1, result.body[:500])
        if spec.on_failure_arn:
            self._enqueue(spec, spec.on_failure_arn, _failure_record(spec, payload, result))
        if spec.dead_letter_arn:
            self._enqueue(spec, spec.dead_letter_arn, payload.decode())

    def _invoke_when_free(self, name: str, payload: bytes) -> Result:
        for _ in range(THROTTLE_TRIES):
            try:
                return self.invoke(name, payload)
            except ThrottledError:
                if self._closed:
                    break
                time.sleep(THROTTLE_RETRY_SECONDS)
        return Result(b'{"errorType":"TooManyRequestsException"}', "Unhandled")


def _failure_record(spec: FunctionSpec, payload: bytes, result: Result) -> str:
    """The document that AWS sends to an OnFailure destination."""
    return json.dumps(
        {
            "version": "1.0",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "requestContext": {
                "functionArn": f"{spec.arn}:$LATEST",
                "condition": "RetriesExhausted",
                "approximateInvokeCount": spec.retries + 1,
            },
            "requestPayload": json.loads(payload or b"{}"),
            "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": result.error},
            "responsePayload": json.loads(result.body),
        }
    )
