"""One execution environment: a process of AWS's own runtime client that runs one invocation at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from local.cloud.functions.runtime_api import Invocation, RuntimeApi
from local.cloud.functions.spec import FunctionSpec, Result

INIT_SECONDS = 60.0
"""AWS gives 10 s before it starts the init again; a small machine that starts many processes needs more."""

MAX_ANSWER_BYTES = 6 * 1024 * 1024
TAIL_BYTES = 4_096
TAIL_LINES = 400


class Environment:
    """Started at once; ``invoke`` waits for its init. After an error that ends it, ``dead`` is true."""

    def __init__(self, spec: FunctionSpec, python: Path, variables: Mapping[str, str], log: Path) -> None:
        self.spec = spec
        self._api = RuntimeApi()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._log = log.open("ab", buffering=0)
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [str(python), "-m", "awslambdaric", spec.handler],
            cwd=spec.code,
            env={**variables, **spec.variables, **_lambda_variables(spec, self._api.address)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._pump, daemon=True, name=f"log-{spec.name}").start()
        self._first = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def invoke(self, payload: bytes) -> Result:
        """Run one invocation. After a timeout, an exit or a failed init the process is ended."""
        request_id = str(uuid.uuid4())
        if not self._api.wait_ready(INIT_SECONDS):
            return self._broken(request_id, f"Init timed out after {INIT_SECONDS:.0f} s")
        failed_init = self._api.failed_init
        if failed_init is not None:
            return self._finish(Result(failed_init, "Unhandled"), ends=True)
        self._note_start(request_id)
        begun = time.time()
        self._api.offer(
            Invocation(
                request_id=request_id,
                payload=payload,
                arn=self.spec.arn,
                deadline=int((begun + self.spec.timeout) * 1000),
                trace_id=f"Root=1-{int(begun):08x}-{uuid.uuid4().hex[:24]};Parent={uuid.uuid4().hex[:16]};Sampled=0",
            )
        )
        answer = self._api.wait_answer(self.spec.timeout)
        self._note_end(request_id, time.time() - begun)
        if answer is None:
            return self._broken(request_id, f"Task timed out after {self.spec.timeout:.2f} seconds")
        error, body = answer
        if error is None and len(body) > MAX_ANSWER_BYTES:
            return self._finish(Result(_too_large(len(body)), "Unhandled"))
        return self._finish(Result(body, error))

    def end(self) -> None:
        """Kill the process and what it started, and free its port and log."""
        self.kill()
        self._process.wait(5)
        self._api.close()

    def kill(self) -> None:
        """Send the signal, and do not wait for the end."""
        if not self.dead:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself a moment ago
                os.killpg(self._process.pid, signal.SIGKILL)

    def _broken(self, request_id: str, timeout_text: str) -> Result:
        """The process has ended or hangs: which one decides the error."""
        try:
            status = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            body = _error("Sandbox.Timedout", f"RequestId: {request_id} Error: {timeout_text}")
            return self._finish(Result(body, "Unhandled"), ends=True)
        how = f"signal: {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        body = _error("Runtime.ExitError", f"RequestId: {request_id} Error: Runtime exited with error: {how}")
        return self._finish(Result(body, "Unhandled"), ends=True)

    def _finish(self, result: Result, ends: bool = False) -> Result:
        if ends:
            self.end()
        return Result(result.body, result.error, b"".join(list(self._tail)[-60:])[-TAIL_BYTES:])

    def _pump(self) -> None:
        stdout: IO[bytes] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._write(line)
        self._process.wait()
        self._api.process_ended()
        stdout.close()
        self._log.close()

    def _write(self, line: bytes) -> None:
        self._tail.append(line)
        with contextlib.suppress(ValueError):  # the process has ended, and its log was closed a moment ago
            self._log.write(line)

    def _note_start(self, request_id: str) -> None:
        self._write(f"START RequestId: {request_id} Version: $LATEST\n".encode())

    def _note_end(self, request_id: str, seconds: float) -> None:
        init = ""
        if self._first and self._api.ready_at is not None:
            init = f"\tInit Duration: {(self._api.ready_at - self._started) * 1000:.2f} ms"
        self._first = False
        report = f"REPORT RequestId: {request_id}\tDuration: {seconds * 1000:.2f} ms{init}\n"
        self._write(f"END RequestId: {request_id}\n{report}".encode())


def _lambda_variables(spec: FunctionSpec, api_address: str) -> dict[str, str]:
    """What AWS sets and a function cannot override."""
    return {
        "AWS_LAMBDA_RUNTIME_API": api_address,
        "_HANDLER": spec.handler,
        "LAMBDA_TASK_ROOT": str(spec.code),
        "LAMBDA_RUNTIME_DIR": str(spec.code),
        "PYTHONPATH": str(spec.code),
        "AWS_LAMBDA_FUNCTION_NAME": spec.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(spec.memory),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{spec.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": f"local/[$LATEST]{uuid.uuid4().hex}",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{spec.runtime}",
        "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
        "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000",
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
    }


def _error(kind: str, message: str) -> bytes:
    return json.dumps({"errorType": kind, "errorMessage": message}).encode()


def _too_large(size: int) -> bytes:
    message = f"Response payload size ({size} bytes) exceeded maximum allowed payload size ({MAX_ANSWER_BYTES} bytes)."
    return _error("Function.ResponseSizeTooLarge", message)
