"""``python -m local.kube STACK_JSON``: the guard of the server, and the last to leave.

The server can be killed, and Ray's processes do not all follow their parent. So the guard, which does nothing that
could fail, starts the server, passes signals on, and ends whatever is left below it. It adopts every orphan (Linux).
The server in turn ends everything if the guard is killed, and the guard if its own parent is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from local.kube import processes, sessions

LOOK_SECONDS = 0.25
END_SECONDS = 4.0
"""How long the server may take to end everything by itself."""


def main() -> int:
    parent = os.getppid()
    if len(sys.argv) != 2:
        print("usage: python -m local.kube STACK_JSON", file=sys.stderr)
        return 64
    processes.adopt_orphans()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: asked.append(received))
    server = subprocess.Popen([sys.executable, "-m", "local.kube.server", sys.argv[1], str(os.getpid())])
    try:
        code = _attend(server, parent, asked)
    finally:
        processes.end_all_below()
        sessions.remove_of_the_dead()
    return code


def _attend(server: subprocess.Popen[bytes], parent: int, asked: list[int]) -> int:
    """Until the server has ended; its exit code, 1 where it was killed."""
    deadline = None
    while True:
        try:
            code = server.wait(LOOK_SECONDS)
            return code if code >= 0 else 1
        except subprocess.TimeoutExpired:
            pass  # time to look
        if deadline is None and (asked or os.getppid() != parent):
            server.terminate()
            deadline = time.monotonic() + END_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            server.kill()


if __name__ == "__main__":
    sys.exit(main())
