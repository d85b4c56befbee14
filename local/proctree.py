"""The process table, read from /proc: who descends from whom, who is still the same process, how much memory it holds.

A pid alone names nothing for long: the kernel gives numbers out again. A process is therefore always a pid together
with its start time in clock ticks since boot (field 22 of /proc/<pid>/stat), which no two processes share.
Standard library only, so that the keeper can use it in an interpreter without site-packages.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True)
class Process:
    """One process as the table showed it. ``started`` is in ticks since boot; ``state`` is the letter of proc(5).

    ``ticks`` is the processor time that it has used, not that of its children.
    """

    pid: int
    started: int
    parent: int
    state: str
    name: str
    ticks: int = 0

    @property
    def is_zombie(self) -> bool:
        return self.state in ("Z", "X")

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started


def look_up(pid: int) -> Process | None:
    """The process with this pid now, or None."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except _GONE:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses: the last one closes it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    used = int(fields[11]) + int(fields[12])
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], head.partition("(")[2], used)


def all_processes() -> list[Process]:
    """Every process of the machine."""
    found = (look_up(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 - a hundred times a minute
    return [process for process in found if process is not None]


def descendants(root: int) -> list[Process]:
    """Children of ``root``, their children and so on, without ``root`` itself; zombies are left out."""
    children: dict[int, list[Process]] = defaultdict(list)
    for process in all_processes():
        children[process.parent].append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        below = children[queue.pop()]
        found += [process for process in below if not process.is_zombie]
        queue += [process.pid for process in below]
    return found


def still_running(processes: Iterable[Process]) -> list[Process]:
    """Those of ``processes`` that run to this moment: same pid and same start time."""
    now = ((process, look_up(process.pid)) for process in processes)
    return [was for was, is_ in now if is_ is not None and is_.identity == was.identity and not is_.is_zombie]


def kill(processes: Iterable[Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to each that is still the same process."""
    for process in still_running(processes):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue


def busy_seconds() -> float:
    """Processor time that the whole machine has spent on anything since its start, over all cores."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _first_line("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def _first_line(path: str) -> str:
    with Path(path).open() as file:
        return file.readline()


def command_line(pid: int, limit: int = 120) -> str:
    """The command of a process for a person to read, cut to ``limit`` characters; empty where it is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except _GONE:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:limit]


def proportional_memory(pid: int) -> int:
    """Bytes of memory that this process accounts for (PSS: shared pages divided by their users); 0 where it is gone."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except (*_GONE, PermissionError):
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
