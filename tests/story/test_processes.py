"""The supervisor and the keeper, with tiny real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local import proctree
from local.processes import ChildFailed, Supervisor, child_environment

READY_THEN_SLEEP = "import time; print('READY', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('READY', flush=True); time.sleep(60)"
WITH_ORPHAN = """
import subprocess, sys, time
orphan = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
grandchild = subprocess.Popen([sys.executable, "-c", f"import subprocess, sys; {orphan}"])
grandchild.wait()
print("READY", flush=True)
time.sleep(60)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs", stop_seconds=0.5) as one:
        yield one


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_a_child_that_says_ready_is_ready_and_its_end_leaves_no_process(supervisor: Supervisor) -> None:
    child = supervisor.start("good", python(READY_THEN_SLEEP))
    supervisor.wait_ready(child, 5)
    running = supervisor.note()
    assert len(running) == 2, "the keeper and its command"

    supervisor.stop()

    assert proctree.still_running(running) == []
    assert supervisor.leftovers() == []


def test_a_child_that_dies_before_it_is_ready_is_reported_with_its_last_words(supervisor: Supervisor) -> None:
    child = supervisor.start("bad", python("import sys; sys.exit('the port is taken')"))
    with pytest.raises(ChildFailed, match=r"bad ended with exit code 1 .*bad\.log(?s:.*)the port is taken"):
        supervisor.wait_ready(child, 5)


def test_a_command_that_does_not_exist_is_reported(supervisor: Supervisor) -> None:
    child = supervisor.start("missing", ["/no/such/command"])
    with pytest.raises(ChildFailed, match=r"exit code 127(?s:.*)cannot start /no/such/command"):
        supervisor.wait_ready(child, 5)


def test_a_child_that_never_says_ready_is_given_up_at_the_deadline(supervisor: Supervisor) -> None:
    child = supervisor.start("mute", python("import time; print('NOT READY', flush=True); time.sleep(60)"))
    before = time.monotonic()
    with pytest.raises(ChildFailed, match=r"mute was not ready after 0\.3 s"):
        supervisor.wait_ready(child, 0.3)
    assert time.monotonic() - before < 1.0


def test_the_death_of_any_child_is_noticed_while_another_is_awaited(supervisor: Supervisor) -> None:
    supervisor.start("first", python("import sys; sys.exit(3)"))
    second = supervisor.start("second", python("import time; time.sleep(60)"))
    with pytest.raises(ChildFailed, match="first ended with exit code 3"):
        supervisor.wait_ready(second, 5)


def test_a_child_that_ignores_sigterm_is_killed_after_the_patience_and_not_before(supervisor: Supervisor) -> None:
    child = supervisor.start("deaf", python(DEAF))
    supervisor.wait_ready(child, 5)
    running = supervisor.note()
    before = time.monotonic()

    supervisor.stop()

    assert 0.4 < time.monotonic() - before < 3.0
    assert proctree.still_running(running) == []


def test_a_grandchild_that_was_orphaned_in_a_session_of_its_own_is_ended_too(supervisor: Supervisor) -> None:
    child = supervisor.start("orphans", python(WITH_ORPHAN))
    supervisor.wait_ready(child, 5)
    running = supervisor.note()
    assert len(running) == 3, "keeper, command and the orphan, which the keeper has adopted"

    supervisor.stop()

    assert proctree.still_running(running) == []
    assert "left behind" in child.tail()


def test_a_process_that_outlived_the_stop_is_named_and_killed(supervisor: Supervisor) -> None:
    child = supervisor.start("killed", python(WITH_ORPHAN))
    supervisor.wait_ready(child, 5)
    supervisor.note()
    child.keeper.kill()  # nobody is left to adopt and sweep: the orphan survives
    child.keeper.wait()

    supervisor.stop()
    left = supervisor.leftovers()

    assert any("time.sleep(60)" in line for line in left)
    assert eventually(lambda: supervisor.leftovers() == [])


def test_a_task_may_end_and_its_words_and_exit_code_are_given(supervisor: Supervisor) -> None:
    task = supervisor.start_task("task", python("print('hello'); raise SystemExit(3)"), {})
    assert supervisor.finish(task, 5) == (3, "hello\n")
    supervisor.check()


def test_a_task_that_takes_too_long_is_given_up_and_ended_with_the_rest(supervisor: Supervisor) -> None:
    task = supervisor.start_task("slow", python("import time; time.sleep(60)"), {})
    running = supervisor.note()
    with pytest.raises(ChildFailed, match=r"slow did not end within 0\.2 s"):
        supervisor.finish(task, 0.2)
    supervisor.stop()
    assert proctree.still_running(running) == []


def test_a_process_with_the_same_pid_but_another_start_is_not_taken_for_the_same() -> None:
    me = proctree.look_up(os.getpid())
    assert me is not None and proctree.still_running([me]) == [me]
    other = proctree.Process(me.pid, me.started - 1, me.parent, me.state, me.name)
    assert proctree.still_running([other]) == []


PARENT = """
import sys, time
from pathlib import Path
from local.processes import Supervisor, ending_on_signals
with ending_on_signals(), Supervisor(Path(sys.argv[1]), stop_seconds=0.5) as supervisor:
    child = supervisor.start("child", [sys.executable, "-c", sys.argv[2]])
    supervisor.wait_ready(child, 5)
    print(" ".join(str(process.pid) for process in supervisor.note()), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "child"),
    [
        pytest.param(signal.SIGKILL, READY_THEN_SLEEP, id="SIGKILL"),
        pytest.param(signal.SIGKILL, DEAF, id="SIGKILL, and the child ignores SIGTERM"),
        pytest.param(signal.SIGKILL, WITH_ORPHAN, id="SIGKILL, and the child leaves an orphan"),
        pytest.param(signal.SIGTERM, WITH_ORPHAN, id="SIGTERM"),
        pytest.param(signal.SIGINT, DEAF, id="SIGINT"),
        pytest.param(signal.SIGHUP, READY_THEN_SLEEP, id="SIGHUP"),
    ],
)
def test_the_children_end_however_the_parent_ends(tmp_path: Path, number: signal.Signals, child: str) -> None:
    parent = subprocess.Popen(
        [*python(PARENT), str(tmp_path), child],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment({}),
        start_new_session=True,
        text=True,
    )
    try:
        assert parent.stdout is not None
        started = [proctree.look_up(int(pid)) for pid in parent.stdout.readline().split()]
        running = [process for process in started if process is not None]
        assert len(running) >= 2

        parent.send_signal(number)
        parent.wait(10)

        assert eventually(lambda: proctree.still_running(running) == [], 5)
    finally:
        parent.kill()
        parent.communicate()
