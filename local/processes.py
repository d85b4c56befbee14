"""Starts the processes of the local stack, and ends every one of them.

Each child runs below a keeper (``local.keeper``) in a session of its own, so that a Ctrl-C of the terminal reaches the
parent alone, which then ends the children in good order. Nothing is ever looked for by name: what is ended was
started here, or descends from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from local import proctree
from local.config import REPOSITORY
from local.proctree import Process

READY_LINE = "READY"
_POLL_SECONDS = 0.05
_TAIL_LINES = 30
_KEEPER_GRACE = 5.0
"""Seconds for a keeper's sweep, beyond the patience that it has with its command."""


class StackError(Exception):
    """The local stack cannot do what was asked; the text is one sentence for a person."""


class ChildFailed(StackError):
    """A child did not come up, or went away."""


@dataclass(frozen=True)
class Child:
    """One started process: ``out`` takes its stdout, ``log`` its stderr."""

    name: str
    keeper: subprocess.Popen[bytes]
    out: Path
    log: Path

    @property
    def is_ready(self) -> bool:
        return any(line.strip() == READY_LINE for line in self.out.read_text(errors="replace").splitlines())

    def tail(self) -> str:
        """The last lines that it wrote to stderr."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(line[:400] for line in lines)


class Supervisor:
    """Owner of child processes; use as a context manager. ``stop`` may be called often, and from ``finally``."""

    def __init__(self, log_dir: Path, stop_seconds: float = 8.0) -> None:
        self._log_dir = log_dir
        self._stop_seconds = stop_seconds
        self._children: list[Child] = []
        self._tasks: set[Child] = set()
        self._seen: dict[tuple[int, int], Process] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Start a command and return at once.

        Call from the main thread: the kernel takes the end of the *thread* that started a child for its parent's end.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        out, log = self._log_dir / f"{name}.out", self._log_dir / f"{name}.log"
        keeper_argv = [sys.executable, "-S", "-m", "local.keeper", str(os.getpid()), str(self._stop_seconds), *argv]
        with out.open("wb") as stdout, log.open("wb") as stderr:
            keeper = subprocess.Popen(
                keeper_argv,
                cwd=REPOSITORY,
                env=child_environment(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        child = Child(name, keeper, out, log)
        self._children.append(child)
        self.note()
        return child

    def wait_ready(self, child: Child, seconds: float) -> None:
        """Wait for its READY line. Raises ChildFailed when it dies first or takes longer."""
        deadline = time.monotonic() + seconds
        while not child.is_ready:
            self.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"{child.name} was not ready after {seconds:g} s. {_where(child)}")
            time.sleep(_POLL_SECONDS)

    def start_task(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        """Like ``start``, for a command that comes to its own end: ``check`` does not mind it."""
        child = self.start(name, argv, env)
        self._tasks.add(child)
        return child

    def finish(self, task: Child, seconds: float) -> tuple[int, str]:
        """Wait for a task's end; (exit code, stdout). Raises ChildFailed when it takes longer."""
        try:
            code = task.keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{task.name} did not end within {seconds:g} s. {_where(task)}") from None
        return code, task.out.read_text(errors="replace")

    def check(self) -> None:
        """Raises ChildFailed if any child has ended that was to serve until its stop."""
        for child in self._children:
            code = child.keeper.poll()
            if code is not None and child not in self._tasks:
                raise ChildFailed(f"{child.name} ended with exit code {code} without being asked to. {_where(child)}")

    def note(self) -> list[Process]:
        """Remember every process that runs below the children now, and return them: what must be gone in the end."""
        found: list[Process] = []
        for child in self._children:
            keeper = proctree.look_up(child.keeper.pid)
            if keeper is not None and child.keeper.returncode is None:
                found += [keeper, *proctree.descendants(keeper.pid)]
        with self._lock:
            self._seen.update({process.identity: process for process in found})
        return found

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all that was ever noted, as of each one's last note: a little less than the truth."""
        with self._lock:
            return sum(process.ticks for process in self._seen.values()) / proctree.TICKS_PER_SECOND

    @property
    def seen_count(self) -> int:
        """How many processes were ever noted."""
        return len(self._seen)

    def stop(self) -> None:
        """End all children: SIGTERM to all at once, patience, then SIGKILL to what was noted below them."""
        with undisturbed():
            self.note()
            running = [child for child in self._children if child.keeper.poll() is None]
            for child in running:
                child.keeper.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + self._stop_seconds + _KEEPER_GRACE
            for child in running:
                try:
                    child.keeper.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    proctree.kill(self.note())
                    child.keeper.wait()

    def leftovers(self) -> list[str]:
        """After ``stop``: processes that were started and still run, as ``pid command``; they are killed now."""
        with self._lock:
            left = proctree.still_running(self._seen.values())
        named = [f"{process.pid} {proctree.command_line(process.pid) or process.name}" for process in left]
        proctree.kill(left)
        return named


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: this one's, the project on PYTHONPATH, nothing buffered, and ``extra`` on top."""
    own = {"PYTHONPATH": f"{REPOSITORY / 'functions'}{os.pathsep}{REPOSITORY}", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **own, **extra}


def _where(child: Child) -> str:
    tail = child.tail()
    return f"Its log, {child.log.name}, ends with:\n{tail}" if tail else f"Its log, {child.log.name}, is empty."


class Interrupted(BaseException):
    """SIGTERM or SIGHUP was received. Like KeyboardInterrupt no Exception: boto3 would take one for a failed call and
    try again."""


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Interrupted in the main thread, as Ctrl-C raises KeyboardInterrupt: finally runs.

    SIGINT is set too: a shell starts what it runs in the background with SIGINT ignored, and Python then leaves it so."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(f"ended by {signal.Signals(number).name}")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not cut the ending short; it is bounded anyway."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
