"""Time: the one clock of the job, and how long each part took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


def process_age() -> float:
    """Seconds since this process was started: includes the interpreter's own start, which no timer in it can see."""
    try:
        started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return uptime - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.process_time()


class Stopwatch:
    """Sums of seconds by name, in the order of first use."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def lines(self) -> list[str]:
        return [f"  {name:<28}{seconds:8.2f} s" for name, seconds in self.seconds.items()]
