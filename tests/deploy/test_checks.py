"""`make test` runs its two halves at once, and `make test-local` what neither has: nothing is left out, no failure is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.deploy.repository import ROOT

TOOL = """#!/bin/sh
case "$*" in "-c import"*) echo 3.12; exit;; esac
echo "$$ $(basename "$0") $*" >>calls
case "$*" in *{hangs}*) sleep 60;; *{fails}*) exit 1;; esac
"""


def folder(tmp_path: Path, fails: str = "nothing", hangs: str = "nothing") -> Path:
    """A checkout whose tools only write down how they were called."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "node_modules/asl-validator").mkdir(parents=True)
    tools = [tmp_path / one for one in (".venv/bin/python", ".venv/bin/ruff", ".venv/bin/mypy", "bin/node", "bin/npm")]
    for tool in [*tools, tmp_path / ".venv-functions/bin/python"]:
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(TOOL.format(fails=fails, hangs=hangs))
        tool.chmod(0o755)
    return tmp_path


def pids(where: Path) -> list[int]:
    """Of both halves' pytest."""
    calls = (where / "calls").read_text().splitlines() if (where / "calls").exists() else []
    return [int(one.split()[0]) for one in calls if "-m pytest" in one]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started(where: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PATH": f"{where / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(where)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        ["sh", ".ci/test.sh", *arguments],
        cwd=where,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        # In `make test` these tests run in the background, where SIGINT is ignored from birth: no trap could be set for it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def halves(where: Path) -> tuple[set[str], set[str]]:
    """(folders that the first pytest is given, folders that the second is told to leave to it)."""
    lines = [one.split() for one in (where / "calls").read_text().splitlines() if "-m pytest" in one]
    [other] = [one for one in lines if any(word.startswith("--ignore=") for word in one)]
    [first] = [one for one in lines if one is not other]
    given = {one for one in first if one.startswith("tests/")}
    return given, {one.removeprefix("--ignore=") for one in other if one.startswith("--ignore=")}


def apart(where: Path) -> set[str]:
    """Folders of `make test-local`."""
    run = started(where, "apart")
    run.communicate(timeout=60)
    assert run.returncode == 0
    [line] = [one.split() for one in (where / "calls").read_text().splitlines() if "-m pytest" in one]
    return {one for one in line if one.startswith("tests/")}


def test_every_test_is_in_exactly_one_part_and_the_folders_are_there(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    local = apart(folder(tmp_path / "local"))
    (tmp_path / "both").mkdir()
    run = started(folder(tmp_path / "both"))
    out, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, "")
    given, left = halves(tmp_path / "both")
    assert given and local and not given & local
    assert left == given | local
    assert all((ROOT / one).is_dir() for one in left)
    checks = (ROOT / ".ci" / "run").read_text()
    assert "make test </dev/null" in checks and "make test-local </dev/null" in checks
    assert (
        out.index("== pytest: what plays")
        < out.index("== ruff")
        < out.index("== mypy")
        < out.index("what only computes")
    )


def test_a_failure_of_the_local_stacks_own_tests_is_a_failure(tmp_path: Path) -> None:
    run = started(folder(tmp_path, fails="pytest"), "apart")
    run.communicate(timeout=60)
    assert run.returncode == 1


@pytest.mark.parametrize("fails", ["check", "mypy", "--ignore", "tests/story"])
def test_whatever_fails_is_a_failure_of_the_whole_and_the_rest_is_still_run(tmp_path: Path, fails: str) -> None:
    where = folder(tmp_path, fails="pytest?tests/chaos" if fails == "tests/story" else fails)
    if fails == "mypy":  # it is called without an argument
        (where / ".venv/bin/mypy").write_text("#!/bin/sh\nexit 1\n")
    run = started(where)
    run.communicate(timeout=60)
    assert run.returncode == 1
    halves(where)


def test_an_interrupt_ends_both_halves(tmp_path: Path) -> None:
    """As a terminal sends it: to what is in the foreground, of which the second half is no part."""
    where = folder(tmp_path, hangs="pytest")
    run = started(where)
    deadline = time.monotonic() + 30
    while len(pids(where)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids(where)) == 2

    os.killpg(run.pid, signal.SIGINT)

    assert run.wait(30) == 130
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids(where)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids(where) if alive(pid)] == []
    assert list(where.glob("tmp.*")) == []
