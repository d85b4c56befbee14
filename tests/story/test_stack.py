"""The stack's own folder, and its end when it cannot come up."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import local.stack
from local import proctree
from local.processes import ChildFailed
from local.stack import Stack, new_state_dir


def test_a_folder_of_a_killed_owner_is_removed_and_one_of_a_living_owner_is_not() -> None:
    mine = new_state_dir()
    killed = Path(tempfile.mkdtemp(prefix="ns-", dir="/tmp"))
    me = proctree.look_up(os.getpid())
    assert me is not None
    (killed / "owner").write_text(f"{me.pid} {me.started - 1}")  # the pid was given out again
    another = new_state_dir()
    try:
        assert not killed.exists()
        assert mine.exists() and another.exists() and another != mine
        assert len(str(another)) <= 20, "unix sockets of Ray live below it"
    finally:
        for folder in (mine, another, killed):
            shutil.rmtree(folder, ignore_errors=True)


def test_a_stack_that_cannot_come_up_ends_what_it_started_and_keeps_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    false = Path(shutil.which("false") or "/bin/false")
    real = local.stack.new_config
    monkeypatch.setattr(local.stack, "new_config", lambda folder: real(folder).model_copy(update={"pod_python": false}))
    stack = Stack(print, logs_to=tmp_path / "logs")
    with pytest.raises(ChildFailed, match="ended with exit code 1"), stack:
        raise AssertionError("it must not come up")
    assert stack.left_over == []
    assert (tmp_path / "logs" / "cloud.log").exists()
    assert not stack.config.state_dir.exists()
