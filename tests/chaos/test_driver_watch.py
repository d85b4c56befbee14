"""The watch over drivers, on real processes that look like them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local import proctree
from local.chaos.processes import DriverWatch

Start = Callable[[int], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts something with a driver's command line that sleeps."""
    module = tmp_path / "training_job" / "__main__.py"
    module.parent.mkdir()
    module.write_text("import time\ntime.sleep(60)\n")
    started: list[subprocess.Popen[bytes]] = []

    def begin(attempt: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "training_job",
            "run",
            "--bucket",
            "b",
            "--run-id",
            "r",
            "--attempt",
            str(attempt),
        ]
        started.append(subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.wait(10)


def own() -> list[proctree.Process]:
    return proctree.descendants(os.getpid())


def test_a_driver_is_seen_while_it_lives_with_the_time_of_its_start_and_not_after_its_death(start: Start) -> None:
    watch, before = DriverWatch(own), time.time()
    process = start(1)
    watch.sample()
    (seen,) = watch.living("r")
    assert (seen.attempt, seen.pid) == (1, process.pid)
    assert before - 0.1 <= seen.started <= time.time() and seen.seen >= seen.started
    process.kill()
    process.wait(10)
    assert watch.living("r") == []
    assert [one.attempt for one in watch.of("r")] == [1], "it is remembered for the verdict"
    assert watch.living("other") == []


def test_a_frozen_driver_lives(start: Start) -> None:
    watch, process = DriverWatch(own), start(2)
    process.send_signal(19)  # SIGSTOP
    assert [one.attempt for one in watch.living("r")] == [2]


def test_a_driver_of_another_stack_on_the_same_computer_is_none_of_ours(start: Start) -> None:
    watch = DriverWatch(list)
    start(1)
    assert watch.living("r") == []
    assert watch.of("r") == []
