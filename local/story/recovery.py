"""Measures a recovery from outside: from a node's SIGKILL to the next attempt's driver, and to its first new step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from local import proctree
from local.proctree import Process
from nightshift.contract import Progress


@dataclass
class Recovery:
    """All times are seconds since the epoch.

    ``running_at`` is the start of the attempt's driver process, as the kernel recorded it. Ray sets a job to RUNNING
    and then starts its driver, a few milliseconds later, so no interface has to be polled for it at a high rate.
    """

    attempt: int
    killed_at: float
    running_at: float | None = None
    first_step_at: float | None = None
    resumed_step: int | None = None

    def look(self, processes: Iterable[Process], progress: Progress | None) -> None:
        """Take in what is there now; ``progress`` is the attempt's own."""
        if self.running_at is None:
            started = [
                started_at(one) for one in processes if is_driver(proctree.command_line(one.pid, 600), self.attempt)
            ]
            self.running_at = min(started, default=None)
        if progress is None or progress.attempt != self.attempt:
            return
        if self.resumed_step is None:
            self.resumed_step = progress.resumed_step
        if self.first_step_at is None and self.resumed_step is not None and progress.step > self.resumed_step:
            self.first_step_at = progress.at.timestamp()

    @property
    def to_running(self) -> float | None:
        return None if self.running_at is None else self.running_at - self.killed_at

    @property
    def to_first_step(self) -> float | None:
        return None if self.first_step_at is None else self.first_step_at - self.killed_at


def is_driver(command: str, attempt: int) -> bool:
    """Whether a command line is the training job of this attempt."""
    words = command.split()
    return "training_job" in command and "run" in words and f"--attempt {attempt} " in f"{command} "


def started_at(process: Process) -> float:
    """When a process started, in seconds since the epoch, to a hundredth."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / proctree.TICKS_PER_SECOND
    return time.time() - age
