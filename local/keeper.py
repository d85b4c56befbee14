"""Runs one command and makes sure that nothing of it outlives whoever asked for it.

``python -S -m local.keeper PARENT_PID STOP_SECONDS COMMAND [ARGUMENT ...]``

The supervisor starts each child of the stack through a keeper. The kernel ends the keeper's peace when the supervisor
dies, however it dies (PR_SET_PDEATHSIG), and hands to the keeper every orphan of the command (PR_SET_CHILD_SUBREAPER).
So SIGTERM to the keeper, the supervisor's death and the command's own end all lead to the same last act: SIGTERM to
the command, ``STOP_SECONDS`` of patience, SIGKILL to its process group and to all that descend from it.

Exit code: the command's own, or 128 plus the number of the signal that ended it. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence

from local import proctree

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
_SWEEP_SECONDS = 3.0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed: the local stack needs Linux 3.4 or newer")


def _spawn(command: Sequence[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        sys.stderr.flush()
    os._exit(127)


def _reap(child: int) -> int | None:
    """Collect everything that has ended; the command's exit code once it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended


def _serve(child: int, stop_seconds: float) -> int:
    """Wait for the command's end; a signal makes it end."""
    deadline: float | None = None
    while True:
        patience = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        received = signal.sigtimedwait(_WATCHED, patience)
        code = _reap(child)
        if code is not None:
            return code
        if received is None and deadline is not None:
            os.killpg(child, signal.SIGKILL)
            deadline = time.monotonic() + 1.0
        elif received is not None and received.si_signo != signal.SIGCHLD and deadline is None:
            os.kill(child, signal.SIGTERM)
            deadline = time.monotonic() + stop_seconds


def _sweep() -> int:
    """Kill all that is left below this process; how many there were."""
    seen: set[tuple[int, int]] = set()
    end = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < end:
        left = proctree.descendants(os.getpid())
        if not left:
            break
        seen |= {process.identity for process in left}
        proctree.kill(left)
        _reap(-1)
        time.sleep(0.02)
    return len(seen)


def main(arguments: Sequence[str]) -> int:
    """See the module's text. Raises OSError where the kernel lacks the two prctl options."""
    parent, stop_seconds, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # the supervisor died before the kernel could be asked to tell
    child = _spawn(command)
    code = _serve(child, stop_seconds)
    swept = _sweep()
    if swept:
        sys.stderr.write(f"ended {swept} processes that {command[0]} had left behind\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
