"""Who drives which run, seen in the process table: the only witness that no part of the product can influence."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from local import proctree
from local.chaos.sabotage import argument
from local.proctree import Process
from local.story.recovery import started_at

SAMPLE_SECONDS = 0.25
NOTE_EVERY = 8
_COMMAND_LIMIT, _YOUNG_SECONDS = 2_000, 2.0


@dataclass(frozen=True)
class Driver:
    """One driver process. Times are seconds since the epoch: when the kernel started it, and when it last lived."""

    run_id: str
    attempt: int
    pid: int
    started: float
    seen: float


@dataclass(frozen=True)
class Overlap:
    """Two attempts of one run had living drivers at the same moment, for at least ``seconds``."""

    run_id: str
    older: int
    newer: int
    seconds: float


def driver_of(command: str) -> tuple[str, int] | None:
    """(run, attempt) of a command line that is a training job's own Python process; a shell around it is none."""
    words = command.split()
    if len(words) < 4 or "python" not in Path(words[0]).name or words[1:4] != ["-m", "training_job", "run"]:
        return None
    run_id, attempt = argument(words, "--run-id"), argument(words, "--attempt")
    return None if run_id is None or attempt is None or not attempt.isdigit() else (run_id, int(attempt))


def overlaps(drivers: Iterable[Driver]) -> list[Overlap]:
    """Where a driver was started while one of another attempt of its run still lived."""
    ordered = sorted(drivers, key=lambda one: one.started)
    return [
        Overlap(old.run_id, old.attempt, new.attempt, min(old.seen, new.seen) - new.started)
        for index, old in enumerate(ordered)
        for new in ordered[index + 1 :]
        if new.run_id == old.run_id and new.attempt != old.attempt and new.started < old.seen
    ]


class DriverWatch:
    """Samples the process table four times a second; use as a context manager.

    ``processes`` names the stack's own: it is asked only when something that looks like a driver appears, and every two
    seconds, so that what lives shortly is known at the end too. Two cores are shared with what is being measured.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]]) -> None:
        self._processes = processes
        self._others: set[int] = set()
        self._drivers: dict[tuple[int, int], Driver] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="drivers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(10)

    def of(self, run_id: str) -> list[Driver]:
        """Every driver of the run that was ever seen, oldest first."""
        with self._lock:
            found = [one for one in self._drivers.values() if one.run_id == run_id]
        return sorted(found, key=lambda one: one.started)

    def living(self, run_id: str) -> list[Driver]:
        """Those that live now."""
        self.sample()
        with self._lock:
            mine = [(identity, one) for identity, one in self._drivers.items() if one.run_id == run_id]
        return [one for identity, one in mine if _lives(identity)]

    def sample(self) -> None:
        """Look once: at known drivers, and at processes that were not there before."""
        now, there = time.time(), {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - often
        with self._lock:
            for identity, one in list(self._drivers.items()):
                if _lives(identity):
                    self._drivers[identity] = replace(one, seen=now)
            self._others &= there
            for pid in there - self._others - {one.pid for one in self._drivers.values() if one.seen == now}:
                self._see(pid, now)

    def _see(self, pid: int, now: float) -> None:
        """A process's command may change once, by exec, soon after its start."""
        process = proctree.look_up(pid)
        if process is None or process.identity in self._drivers:
            return
        found = driver_of(proctree.command_line(pid, _COMMAND_LIMIT))
        if found is not None and process.identity in {one.identity for one in self._processes()}:
            self._drivers[process.identity] = Driver(*found, pid, started_at(process), now)
        elif found is not None or now - started_at(process) > _YOUNG_SECONDS:
            self._others.add(pid)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(SAMPLE_SECONDS):
            self.sample()
            number += 1
            if number % NOTE_EVERY == 0:
                self._processes()


def _lives(identity: tuple[int, int]) -> bool:
    now = proctree.look_up(identity[0])
    return now is not None and now.identity == identity and not now.is_zombie
