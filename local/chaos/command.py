"""``python -m local chaos``: every fault in a run of its own, one table, and an exit code."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from local import proctree
from local.chaos.evidence import Evidence
from local.chaos.faults import Fault, chosen
from local.chaos.judge import broken_promises
from local.chaos.play import Play
from local.chaos.processes import DriverWatch
from local.chaos.table import COLUMNS, Row
from local.processes import StackError, ending_on_signals
from local.stack import Stack
from local.story.screen import Screen

SCHEDULE_SPEED = 5.0
"""The reconciler's period is five minutes: here it passes every minute, over every fault."""

_BUSY_SHARE = 0.2
"""Of one core: where other programs took more than that, times say little."""


class Stage:
    """The stack that runs are played on; replaced where a fault has left it unfit for the next."""

    def __init__(self, out: Path, screen: Screen) -> None:
        self._out, self._screen = out, screen
        self._exit: ExitStack | None = None
        self._count = 0
        self.left_over: list[str] = []
        self.processes_seen = 0
        self.cpu_seconds = 0.0

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def ready(self) -> tuple[Stack, DriverWatch]:
        """A stack with nothing on it."""
        if self._exit is None:
            self._count += 1
            self._exit = ExitStack()
            say, logs = lambda text: self._screen.line("stack", text), self._out / f"logs-{self._count}"
            self.stack = Stack(say, logs, measures_memory=False, schedule_speed=SCHEDULE_SPEED)
            self._exit.enter_context(self.stack)
            self._drivers = self._exit.enter_context(DriverWatch(self.stack.supervisor.note))
        return self.stack, self._drivers

    def clear(self) -> None:
        """End the stack, and count what of it was still running after its end."""
        if self._exit is None:
            return
        exit_stack, self._exit = self._exit, None
        exit_stack.close()
        self.left_over += self.stack.left_over
        self.processes_seen += self.stack.supervisor.seen_count
        self.cpu_seconds += self.stack.supervisor.cpu_seconds

    @property
    def cpu_now(self) -> float:
        """Processor time of all stacks so far."""
        return self.cpu_seconds + (self.stack.supervisor.cpu_seconds if self._exit is not None else 0.0)


def run_chaos(out: Path, screen: Screen, names: Sequence[str] = (), fewer: bool = False) -> int:
    """0 only if every verdict is good and nothing runs any more. Raises ValueError for an unknown name."""
    faults = chosen(list(names), fewer)
    shutil.rmtree(out, ignore_errors=True)
    (out / "timelines").mkdir(parents=True)
    rows: list[Row] = []
    with ending_on_signals(), Stage(out, screen) as stage:
        for fault in faults:
            rows.append(_played(stage, fault, out, screen))
            (out / "summary.json").write_text(json.dumps(_document(rows, stage, screen), indent=1) + "\n")
    (out / "summary.json").write_text(json.dumps(_document(rows, stage, screen), indent=1) + "\n")
    return _report(rows, stage, out, screen)


def _played(stage: Stage, fault: Fault, out: Path, screen: Screen) -> Row:
    began, busy = time.monotonic(), proctree.busy_seconds()
    evidence: Evidence | None = None
    cpu = stage.cpu_now + time.process_time()
    try:
        stack, drivers = stage.ready()
        with (out / "timelines" / f"{fault.name}.txt").open("w") as timeline:
            evidence, problems = _witnessed(
                Play(stack, drivers, Screen(timeline, live=False), f"chaos-{fault.name}"), fault
            )
    except StackError as error:
        problems = [str(error)[:500]]
    if evidence is None or _is_unfit(evidence):
        stage.clear()
    own = stage.cpu_now + time.process_time() - cpu
    others = max(0.0, proctree.busy_seconds() - busy - own)
    row = Row(fault.name, fault.title, evidence, problems, time.monotonic() - began, others)
    screen.line("check", f"{fault.name}: {'ok' if row.ok else 'NOT OK: ' + '; '.join(problems)}")
    return row


def _witnessed(play: Play, fault: Fault) -> tuple[Evidence, list[str]]:
    """What came of it, also where the fault could not be played to its end."""
    problems: list[str] = []
    try:
        fault.play(play)
    except StackError as error:
        play.stack.supervisor.check()  # a stack that is gone is another error
        problems.append(str(error)[:500])
    play.fault()
    evidence = play.evidence()
    return evidence, problems + broken_promises(evidence, fault.expected)


def _is_unfit(seen: Evidence) -> bool:
    """Something is left that would disturb the next run."""
    return bool(seen.pods or seen.rayclusters or seen.lease_holders or seen.processes)


def _document(rows: Sequence[Row], stage: Stage, screen: Screen) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "seconds": round(screen.seconds, 1),
        "ok": all(row.ok for row in rows) and not stage.left_over,
        "left_over": stage.left_over,
        "seconds_of_others": round(sum(row.others for row in rows), 1),
        "faults": [row.document() for row in rows],
    }


def machine() -> str:
    """Kind of this computer, for numbers that depend on it."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _report(rows: Sequence[Row], stage: Stage, out: Path, screen: Screen) -> int:
    screen.heading("Faults, each in a run of its own (times in seconds after the fault)")
    screen.table(COLUMNS, [row.cells() for row in rows])
    screen.text()
    screen.text(f"Processes left: {len(stage.left_over)} of {stage.processes_seen} seen. {machine()}. {_busy(rows)}")
    screen.text(f"Timelines, logs and summary.json: {out}")
    bad = [f"{row.name}: {problem}" for row in rows for problem in row.problems]
    bad += [f"still running after the end: {', '.join(stage.left_over)}"] if stage.left_over else []
    if bad:
        screen.text("NOT OK:\n" + "\n".join(f"  {one}" for one in bad), style="bold red")
        return 1
    screen.text(f"ok: {len(rows)} faults, {screen.seconds / 60:.1f} minutes", style="bold green")
    return 0


def _busy(rows: Sequence[Row]) -> str:
    others, total = sum(row.others for row in rows), sum(row.seconds for row in rows)
    hint = ", so times say little" if others > _BUSY_SHARE * total else ""
    return f"Other programs took {others:.0f} s of processor time in {total:.0f} s{hint}."
