"""Faults of processes: the driver, the dashboard, a job that does not stop, a job that dies in a save."""

from __future__ import annotations

import signal

from local.chaos.nodes import kill_worker, recovery
from local.chaos.play import Play
from local.chaos.sabotage import Kill, Plan
from local.story.watch import StoryFailed


def driver_killed(play: Play) -> None:
    play.start()
    play.until_saved(1)
    pid = play.driver(1).pid
    play.hit(1, f"SIGKILL to the driver, {pid}")
    play.kill_processes([pid])
    recovery(play)


def _dashboard(play: Play) -> int:
    found = [one["pid"] for one in play.hyperpod.processes() if "dashboard.py" in one["what"]]
    if not found:
        raise StoryFailed("no dashboard is running")
    return int(found[0])


def dashboard_killed(play: Play) -> None:
    """``ray start --block`` ends when one of its processes dies, so the head's container starts again, job and all."""
    play.start()
    play.until_saved(1)
    pid = _dashboard(play)
    play.hit(1, f"SIGKILL to the dashboard, {pid}")
    play.kill_processes([pid])
    recovery(play)


def dashboard_silent(play: Play) -> None:
    """Connections are taken and never answered, to the end of the run: the job must not be judged by that."""
    play.start(steps=60)
    play.until_saved(1)
    pid = _dashboard(play)
    play.screen.line("fault", f"SIGSTOP to the dashboard, {pid}")
    play.kill_processes([pid], signal.SIGSTOP)
    play.nudge()
    play.until_final()


def stubborn_job(play: Play) -> None:
    """A node is lost; the old driver ignores SIGTERM and goes on as if nothing had happened."""
    play.start(sabotage=Plan(stubborn=(1,)))
    play.until_saved(1)
    old = play.driver(1)
    kill_worker(play, 1)
    play.until_recovered()
    if any(one.pid == old.pid for one in play.drivers()):
        raise StoryFailed("the old driver still runs beside the new attempt")
    play.until_final()


def stuck_stop(play: Play) -> None:
    """Nobody takes the request to stop: Ray's supervisor of the job is frozen, and the driver with it."""
    play.start()
    play.until_saved(1)
    old = play.driver(1)
    supervisors = [one["pid"] for one in play.hyperpod.processes() if "JobSupervisor" in one["what"]]
    play.screen.line("fault", f"SIGSTOP to the job's supervisor {supervisors} and to its driver {old.pid}")
    play.kill_processes([*supervisors, old.pid], signal.SIGSTOP)
    kill_worker(play, 1)
    play.until_recovered(900)
    if not supervisors or any(one.pid == old.pid for one in play.drivers()):
        raise StoryFailed("the old driver still exists beside the new attempt, or there was no supervisor to freeze")
    play.until_final()


TORN = {
    1: Kill(point="bytes", part="model", at=1),
    2: Kill(point="bytes", part="optim", at=20_000),
    3: Kill(point="bytes", part="extra_state", at=-1),
    4: Kill(point="no_pointer"),
    5: Kill(point="empty_pointer"),
    6: Kill(point="torn", part="optim"),
    7: Kill(point="rot", part="model", at=10_000),
}


def torn_saves(play: Play) -> None:
    """Seven attempts die in the middle of a save, each at another place; each has saved a new checkpoint before."""
    play.start(steps=40, sabotage=Plan(kills=TORN))
    for attempt, kill in TORN.items():
        play.until_driver_dies(attempt)
        play.hit(attempt, f"attempt {attempt} died in a save: {kill.point} {kill.part} {kill.at}")
        _nudge_until_decided(play, attempt)
        play.until_recovered()
    play.until_final()
    told = play.outcome(len(TORN) + 1)
    moved = told.guard.quarantined if told is not None and told.guard is not None else []
    if not any(name.startswith("global_step_") for name in moved):
        raise StoryFailed(
            f"the last attempt's guard does not report the broken checkpoint that it moved aside: {moved}"
        )
    play.notes.append(
        f"{', '.join(dict.fromkeys(kill.point for kill in TORN.values()))}; quarantined at last: {', '.join(moved)}"
    )


def _nudge_until_decided(play: Play, attempt: int) -> None:
    """A driver that is merely gone sends no signal, and seven naps are long."""
    for _ in range(30):
        play.nudge()
        play.pause(2.0)
        line = play.line(attempt)
        if line is not None and line.ended_at is not None:
            return
    raise StoryFailed(f"attempt {attempt} was not judged although it is dead")
