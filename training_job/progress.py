"""progress.json out and control.json in, on a thread of their own: no step ever waits for either."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from nightshift.contract import Control, ControlCommand, Phase, Progress, RunKeys
from nightshift.contract.reading import Unreadable
from training_job.clock import now
from training_job.store import ObjectStore, read

MIN_GAP: Final = 0.25
"""Seconds between two writes; of the values in between only the last is written."""

CONTROL_GAP: Final = 1.0
"""Seconds between two looks at control.json."""


class ProgressReporter:
    """Keeps the newest ``Progress`` and writes it soon. A failed write is tried again with the next; it never raises.

    Two writers never meet: only this thread writes, and ``flush`` waits for it.
    """

    def __init__(
        self, store: ObjectStore, first: Progress, acknowledged: int = 0, warn: Callable[[str], None] = print
    ) -> None:
        self._store, self._keys, self._warn = store, RunKeys(first.run_id), warn
        self._current = first.model_copy(update={"acknowledged": acknowledged})
        self._control: Control | None = None
        self._refused = ""
        self._changed = threading.Condition()
        self._written: Progress | None = None
        self._shown: Progress | None = None
        self._also: list[Callable[[Progress], None]] = []
        self._stopping = False
        self._last_control = float("-inf")
        self._spent: dict[Phase, float] = {}
        self._reported = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)
        self._thread.start()

    @property
    def current(self) -> Progress:
        """What was last reported."""
        return self._current

    def report(self, **fields: Any) -> None:
        """Change fields of the progress; returns at once."""
        with self._changed:
            told = {"phase_seconds": self._phase_seconds(), "at": now()}
            self._current = Progress.model_validate({**self._current.model_dump(), **fields, **told})
            self._changed.notify_all()

    def _phase_seconds(self) -> dict[str, float]:
        """The time since the last report was spent in the phase that was reported then: all of an attempt's time is in one."""
        moment, phase = time.monotonic(), self._current.phase
        self._spent[phase] = self._spent.get(phase, 0.0) + moment - self._reported
        self._reported = moment
        return {one.value: round(seconds, 3) for one, seconds in self._spent.items()}

    def alive(self) -> None:
        """Say only that the job is at work, in a phase that is long and silent. As cheap as any report: for each part of it."""
        self.report()

    def also(self, show: Callable[[Progress], None]) -> None:
        """Have each newest progress shown elsewhere, too, on this thread. ``show`` must not raise."""
        self._also.append(show)

    def phase(self, phase: Phase) -> None:
        self.report(phase=phase)

    def pending_control(self) -> Control | None:
        """The newest request that was not yet acknowledged."""
        control = self._control
        return control if control is not None and control.seq > self._current.acknowledged else None

    def read_control_now(self) -> Control | None:
        """Like ``pending_control``, after a fresh look. Blocks for one request; for the end of a job only."""
        self._look_at_control()
        return self.pending_control()

    def flush(self, seconds: float) -> bool:
        """Wait until the newest progress is written; False where that took longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._written is not self._current:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._changed.notify_all()
                self._changed.wait(left)
        return True

    def close(self, seconds: float = 10.0) -> bool:
        """Flush and end the thread."""
        done = self.flush(seconds)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        return done

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._written is self._current and not self._stopping:
                    self._changed.wait(CONTROL_GAP)
                if self._stopping:
                    return
                progress = self._current
            if progress is not self._shown:
                self._shown = progress
                for show in self._also:
                    show(progress)
            self._write(progress)
            self._look_at_control_sometimes()
            time.sleep(MIN_GAP)

    def _write(self, progress: Progress) -> None:
        if progress is self._written:
            return
        try:
            self._store.put(self._keys.progress(progress.attempt), progress.to_json().encode())
        except Exception as error:  # noqa: BLE001 - whatever it is, training matters more; the next write tries again
            self._warn(f"progress.json could not be written: {type(error).__name__}: {str(error)[:200]}")
            time.sleep(1.0)
            return
        with self._changed:
            self._written = progress
            self._changed.notify_all()

    def _look_at_control_sometimes(self) -> None:
        if time.monotonic() - self._last_control >= CONTROL_GAP:
            self._last_control = time.monotonic()
            self._look_at_control()

    def _look_at_control(self) -> None:
        try:
            control = read(self._store, Control, self._keys.control)
        except Unreadable as problem:
            self._refuse(str(problem))
        except Exception as error:  # noqa: BLE001 - the same: the next look tries again
            self._warn(f"control.json could not be read: {type(error).__name__}: {str(error)[:200]}")
        else:
            if control is not None and control.run_id != self._current.run_id:
                self._refuse(f"it is of run {control.run_id[:40]}")
            elif control is not None:
                self._control, self._refused = control, ""

    def _refuse(self, problem: str) -> None:
        """Told once: control.json is read every second."""
        if problem != self._refused:
            self._refused = problem
            self._warn(f"{self._keys.control} is not believed: {problem}")


def wants_stop(control: Control | None) -> bool:
    """Does this request ask the job to end after its next checkpoint?"""
    return control is not None and control.command is ControlCommand.STOP_AFTER_CHECKPOINT
