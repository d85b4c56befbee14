"""How much memory the whole stack holds, sampled while it runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from local import proctree
from local.proctree import Process

_SHARE_OF_TIME = 0.05
"""Reading smaps_rollup walks page tables; no more than this share of one core may go into it."""
_SHORTEST_PAUSE = 1.0
_LONGEST_PAUSE = 5.0


class MemorySampler:
    """Sums the proportional set size (PSS) of this process and of all that ``processes`` names, every one to five seconds.

    PSS counts a page that n processes share as 1/n for each, so the sum counts it once. A sample that took long makes
    the next pause longer: two cores are shared with the training itself.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]]) -> None:
        self._processes = processes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self.samples = 0
        self.peak_bytes = 0
        self.peak_processes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    @property
    def peak_mib(self) -> int:
        return round(self.peak_bytes / 2**20)

    def sample(self) -> int:
        """Take one sample now; bytes."""
        processes = self._processes()
        total = proctree.proportional_memory(os.getpid())
        total += sum(proctree.proportional_memory(process.pid) for process in processes)
        self.samples += 1
        if total > self.peak_bytes:
            self.peak_bytes, self.peak_processes = total, len(processes) + 1
        return total

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE
        while not self._stop.wait(pause):
            before = time.thread_time()
            self.sample()
            spent = time.thread_time() - before
            pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, spent / _SHARE_OF_TIME))
