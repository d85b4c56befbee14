"""Runs last of this folder: when the stack has ended, nothing of it is left."""

from __future__ import annotations

import time

from local import proctree
from local.stack import Stack


def test_when_the_stack_ends_no_process_and_no_folder_of_it_is_left(stack: Stack) -> None:
    running = stack.supervisor.note()
    assert len(running) >= 4, "keepers, cloud and kube at least"
    before = time.monotonic()

    stack.close()

    assert time.monotonic() - before < 15
    assert stack.left_over == []
    assert proctree.still_running(running) == []
    assert not stack.config.state_dir.exists()
