"""Real processes: started in groups of their own, known by pid, ended with everything below them.

Ray's workers and job drivers begin sessions of their own, so a process group is not enough: descendants are found
before a kill, and on Linux this process is the *subreaper* of all of them, so that nothing it started can slip away to
init when its own parent dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

KILL_SECONDS = 5.0
"""How long a SIGKILLed process may take to be gone before this is an error in the log."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux; elsewhere nothing happens)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def start(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
    """Start in a new session, output appended to ``log``; told to end if this process dies. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def tree(pids: Iterable[int]) -> list[psutil.Process]:
    """The living processes with these pids, and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(pid)
            for process in (top, *top.children(recursive=True)):
                if _lives(process):
                    found[process.pid] = process
    return list(found.values())


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def orphans(known: Iterable[int]) -> list[psutil.Process]:
    """Direct children of this process that it did not start: descendants whose parent has died."""
    started = set(known)
    return [p for p in psutil.Process().children() if p.pid not in started and _lives(p)]


def send(processes: Iterable[psutil.Process], signal_number: int) -> None:
    """To each that still lives; a recycled pid is never hit (psutil compares creation times)."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal_number)


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty where the process has just gone."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def command_line(process: psutil.Process) -> str:
    """At most 120 characters of it, folders left out."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in words(process))[:120].strip()


def reap(started: Mapping[int, subprocess.Popen[bytes]], adopted: Iterable[int] | None = None) -> None:
    """Collect the exit codes of dead children, started and adopted alike, so that no zombie stays.

    ``adopted``: only these, beside ``started``; else every child of this process.
    """
    for top in started.values():
        top.poll()
    for pid in adopted if adopted is not None else _zombies():
        if pid not in started:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _zombies() -> Iterator[int]:
    """Children whose exit code nobody has asked for, one after the other: the caller must ask for it.

    The kernel is asked, not /proc: this runs every second.
    """
    with contextlib.suppress(ChildProcessError):
        last = 0
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid == last:
                return  # not asked for: a started one, whose owner will
            last = found.si_pid
            yield last


def end_all_below() -> list[int]:
    """SIGKILL to every descendant of this process, until none is left. Returns the pids that survived."""
    deadline = time.monotonic() + KILL_SECONDS
    while left := tree(child.pid for child in psutil.Process().children()):
        if time.monotonic() >= deadline:
            return [process.pid for process in left]
        send(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.2)
        reap({})
    reap({})
    return []


async def end(tops: Sequence[subprocess.Popen[bytes]], grace: float) -> list[int]:
    """End process trees: SIGTERM to their tops, SIGKILL to what is left after ``grace`` seconds (0: at once).

    Idempotent. Returns the pids that survived ``KILL_SECONDS`` of SIGKILL: none, unless the kernel holds them.
    """
    pids = [top.pid for top in tops]
    known = {process.pid: process for process in tree(pids)}
    if grace > 0:
        send((known[pid] for pid in pids if pid in known), signal.SIGTERM)
        await _gone(tops, known, pids, time.monotonic() + grace)
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        # Again and again: a process may have forked between the listing and its death.
        known |= {process.pid: process for process in tree([*pids, *known])}
        left = [process for process in known.values() if _lives(process)]
        send(left, signal.SIGKILL)
        if await _gone(tops, known, pids, min(deadline, time.monotonic() + 0.5)) or time.monotonic() >= deadline:
            reap({top.pid: top for top in tops}, known)
            return [process.pid for process in known.values() if _lives(process)]


async def _gone(
    tops: Sequence[subprocess.Popen[bytes]], known: dict[int, psutil.Process], pids: list[int], until: float
) -> bool:
    while True:
        for top in tops:
            top.poll()
        known |= {process.pid: process for process in tree(pids)}
        if not any(_lives(process) for process in known.values()):
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(0.05)
