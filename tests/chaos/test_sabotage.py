"""What misbehaves inside the driver: real processes that really die, on the very byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.chaos.sabotage import Kill, Plan, install, plan_file
from local.config import REPOSITORY
from nightshift.contract import SharedPaths
from training_job import checkpoints

ARGV = ["run", "--run-id", "r", "--attempt", "1"]
SAVER = """
import sys
from pathlib import Path
from local.chaos.sabotage import oracle
import torch
from nightshift.contract import SharedPaths
from training_job import checkpoints
paths = SharedPaths("r", Path(sys.argv[-1]))
for step in (2, 4, 6):
    policy = paths.checkpoint(step) / "policy"
    policy.mkdir(parents=True)
    for part in checkpoints.PARTS:
        torch.save({"step": step, "w": torch.arange(5000.0)}, policy / checkpoints.part_file(part))
    checkpoints.write_pointer(paths, step)
    print("saved", step, flush=True)
"""


def saved_until_death(shared: Path, kill: Kill) -> tuple[int, str, SharedPaths]:
    path = plan_file(shared, "r")
    path.parent.mkdir(parents=True)
    path.write_text(Plan(kills={1: kill}).model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", SAVER, *ARGV, str(shared)],
        env={**os.environ, "NIGHTSHIFT_SHARED": str(shared), "PYTHONPATH": f"functions{os.pathsep}."},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, SharedPaths("r", shared)


def size(paths: SharedPaths, step: int, part: str) -> int:
    return (paths.checkpoint(step) / "policy" / f"{part}_world_size_1_rank_0.pt").stat().st_size


def test_the_driver_dies_on_the_very_byte_of_its_second_save(tmp_path: Path) -> None:
    code, said, paths = saved_until_death(tmp_path, Kill(point="bytes", part="optim", at=1234))
    assert (code, said) == (-signal.SIGKILL, "saved 2\n")
    assert size(paths, 4, "optim") == 1234
    assert size(paths, 4, "model") == size(paths, 2, "model"), "what was written before is whole"
    assert paths.pointer.read_text() == "2"
    assert not (paths.checkpoint(4) / "policy" / "extra_state_world_size_1_rank_0.pt").exists()


def test_the_driver_dies_with_a_torn_checkpoint_behind_its_pointer(tmp_path: Path) -> None:
    code, _, paths = saved_until_death(tmp_path, Kill(point="torn", part="optim"))
    assert code == -signal.SIGKILL
    assert paths.pointer.read_text() == "4"
    assert size(paths, 4, "optim") == size(paths, 2, "optim") // 2


def test_an_attempt_that_the_plan_does_not_name_is_left_alone(tmp_path: Path) -> None:
    before, path = signal.getsignal(signal.SIGTERM), plan_file(tmp_path, "r")
    path.parent.mkdir(parents=True)
    path.write_text(Plan(kills={2: Kill(point="no_pointer")}, stubborn=(3,)).model_dump_json())
    write_pointer = checkpoints.write_pointer
    assert install(ARGV, {"NIGHTSHIFT_SHARED": str(tmp_path)}) is not None, "there is a plan"
    assert checkpoints.write_pointer is write_pointer
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_done_to_a_process_that_is_no_driver_or_has_no_plan(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert install(["pytest"], {"NIGHTSHIFT_SHARED": str(tmp_path)}) is None
    assert install(ARGV, {"NIGHTSHIFT_SHARED": str(tmp_path)}) is None
    assert install(ARGV, {}) is None
    assert signal.getsignal(signal.SIGTERM) is before


STUBBORN = """
import signal, time
from local.chaos.sabotage import oracle
from training_job.run import on_sigterm
on_sigterm()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("attempt", "survives"), [(1, True), (2, False)])
def test_a_stubborn_attempt_outlives_sigterm_though_the_job_sets_its_own_handler_and_another_does_not(
    tmp_path: Path, attempt: int, survives: bool
) -> None:
    path = plan_file(tmp_path, "r")
    path.parent.mkdir(parents=True)
    path.write_text(Plan(stubborn=(1,)).model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, "--run-id", "r", "--attempt", str(attempt)],
        env={**os.environ, "NIGHTSHIFT_SHARED": str(tmp_path), "PYTHONPATH": f"functions{os.pathsep}."},
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.terminate()
        if survives:
            time.sleep(0.5)
            assert process.poll() is None
        else:
            assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait(10)
