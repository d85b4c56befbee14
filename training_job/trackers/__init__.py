"""Metrics to W&B, MLflow or Tensorboard: one tracker run for a Nightshift run, continued by each attempt, no step twice.

A tracker is a convenience: it works on a thread of its own, whatever it does never touches training, and one that fails is
told once and given up after a few tries.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nightshift.contract import RunSpec, SharedPaths
from nightshift.contract.tracking import Tracker
from training_job.files import write_atomically
from training_job.trackers.backends import Backend, Mlflow, Tensorboard, Wandb

MAX_WAITING: Final = 1_000
"""Logged values that may wait for a slow tracker; what comes on top is dropped."""

MAX_FAILURES: Final = 5
"""Failures in a row after which a tracker is given up for the attempt."""

_EVAL: Final = "eval/"


class Floors:
    """The last steps that the tracker has taken, in a file on the shared mount. Evals have their own: an attempt may have
    logged a step and died before its eval."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before = self._read()
        """What attempts before this one have logged; within an attempt a step may be logged in several parts."""
        self._now = dict(self.before)

    def _read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
            return {name: int(found[name]) for name in ("train", "eval")}
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ):  # none yet, or one that cannot be read: better twice than never
            return {"train": -1, "eval": -1}

    def new(self, metrics: Mapping[str, float], step: int) -> dict[str, float]:
        """Those that no attempt before this one has logged."""
        return {name: value for name, value in metrics.items() if step > self.before[_kind(name)]}

    def logged(self, metrics: Mapping[str, float], step: int) -> None:
        kinds = {_kind(name) for name in metrics}
        if any(step > self._now[kind] for kind in kinds):
            self._now |= {kind: max(step, self._now[kind]) for kind in kinds}
            write_atomically(self._path, json.dumps(self._now).encode())


def _kind(name: str) -> str:
    return "eval" if name.startswith(_EVAL) else "train"


class Tracked:
    """``open_backend`` may take its time: it is called on the tracker's thread, with the first values."""

    def __init__(
        self, open_backend: Callable[[], Backend] | None, floors: Path, warn: Callable[[str], None] = print
    ) -> None:
        self._open, self._path, self._warn = open_backend, floors, warn
        self._queue: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(MAX_WAITING)
        self._failures, self._warned = 0, set[str]()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        if open_backend is not None:
            self._thread.start()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Numbers of a step; returns at once. What is no finite number is left out."""
        if self._open is None:
            return
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        try:
            self._queue.put_nowait((step, numbers))
        except queue.Full:
            self._tell("slow", f"it is slower than training: values of step {step} and others are left out")

    def close(self, seconds: float) -> None:
        """Wait until all is logged, ``seconds`` at most."""
        if self._open is None:
            return
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._tell("end", "it did not take everything before the end")
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._tell("end", f"it did not take everything within {seconds:.0f} s of the end")

    def _work(self) -> None:
        backend: Backend | None = None
        floors: Floors | None = None
        while (waiting := self._queue.get()) is not None:
            if self._failures >= MAX_FAILURES:
                continue
            step, metrics = waiting
            try:
                floors = floors or Floors(self._path)
                fresh = floors.new(metrics, step)
                if fresh and self._open is not None:
                    backend = backend or self._open()
                    backend.log(fresh, step)
                    floors.logged(fresh, step)
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
                self._failed(error)
        if backend is not None:
            try:
                backend.close()
            except Exception as error:  # noqa: BLE001 - the same
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._tell("failed", f"{type(error).__name__}: {str(error)[:300]}; training goes on")
        if self._failures == MAX_FAILURES:
            self._tell("given up", f"it failed {MAX_FAILURES} times in a row and is given up for this attempt")

    def _tell(self, what: str, words: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._warn(f"tracker: {words}")


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def silent() -> Tracked:
    """Tracks nothing."""
    return Tracked(None, Path())


def open_tracker(spec: RunSpec, paths: SharedPaths, warn: Callable[[str], None] = print) -> Tracked:
    """The tracker that the spec asks for."""
    asked, folder = spec.tracking, paths.tracking
    facts = facts_of(spec)
    floors = folder / f"logged-{asked.tracker}.json"
    match asked.tracker:
        case Tracker.CONSOLE:
            return silent()
        case Tracker.TENSORBOARD:
            return Tracked(lambda: Tensorboard(folder / "tensorboard"), floors, warn)
        case Tracker.WANDB:
            return Tracked(lambda: Wandb(asked.project, spec.run_id, folder, facts), floors, warn)
        case Tracker.MLFLOW:
            uri = asked.mlflow_uri or ""
            return Tracked(lambda: Mlflow(uri, asked.project, spec.run_id, facts), floors, warn)


def facts_of(spec: RunSpec) -> dict[str, str | int | float | bool]:
    """What a tracker shows of a run beside its curves: flat, and nothing of the task's own settings or of secrets."""
    training = spec.training.model_dump(mode="json", exclude={"skyrl"})
    return {
        "run_id": spec.run_id,
        "image": spec.image,
        "model": spec.model.source,
        "task": spec.task.environment,
        "gpus": spec.topology.gpus,
        **{f"lora.{name}": str(value) for name, value in spec.model.lora.model_dump().items()},
        **{f"training.{name}": value for name, value in training.items()},
    }
