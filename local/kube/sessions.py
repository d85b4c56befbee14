"""Folders of Ray sessions: one for each local.kube, with the pid of its owner, so that none stays behind.

Ray puts unix sockets below them, whose paths may have 107 characters: they lie in /tmp, not in the state folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

import psutil  # type: ignore[import-untyped]

ROOT = Path("/tmp")
OWNER = "owner"


def folder(state_dir: Path) -> Path:
    """The same for the same state folder."""
    return ROOT / f"ns-{hashlib.sha256(str(state_dir).encode()).hexdigest()[:8]}"


def make(state_dir: Path) -> Path:
    """An empty folder that this process owns. Folders of owners that are dead are removed."""
    remove_of_the_dead()
    made = folder(state_dir)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    (made / OWNER).write_text(str(os.getpid()))
    return made


def remove_of_the_dead() -> None:
    """Session folders whose owner was killed before it could remove them."""
    for owner in ROOT.glob(f"ns-*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            if not psutil.pid_exists(int(owner.read_text())):
                shutil.rmtree(owner.parent, ignore_errors=True)
