"""One fault's run: asked for, watched, hit, and watched to its end. What a fault does is in ``faults``."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from local.chaos.evidence import Evidence, Hit
from local.chaos.processes import Driver, DriverWatch
from local.chaos.request import CKPT_INTERVAL, short_request
from local.chaos.sabotage import Plan, plan_file
from local.cloud.faults import ROUTE
from local.hyperpod import HyperPod
from local.kube import hyperpod_events as events
from local.stack import Stack
from local.story.demo import lease_holders
from local.story.screen import Screen
from local.story.watch import FINAL_STATES, StoryFailed, Watch
from nightshift.contract import Manifest, Outcome, Phase, Progress, RunKeys
from nightshift.contract.publication import AttemptLine

END_SECONDS = 180.0
"""Deadlines of waits are wide: what is slow is said by the measured times, and only what never comes ends a wait."""

_EVAL_INTERVAL = 8


class Play:
    """``hits`` and ``notes`` are for the faults to fill; every wait has a deadline and raises StoryFailed."""

    def __init__(self, stack: Stack, drivers: DriverWatch, screen: Screen, run_id: str) -> None:
        self.stack, self.screen, self.run_id = stack, screen, run_id
        self.hyperpod: HyperPod = stack.hyperpod
        self.keys = RunKeys(run_id)
        self.hits: list[Hit] = []
        self.notes: list[str] = []
        self._drivers = drivers
        self._watch = Watch(stack, screen, run_id, _EVAL_INTERVAL)
        self._struck: Sequence[int] = ()

    # The run

    def start(self, steps: int = 16, sabotage: Plan | None = None) -> None:
        """Ask for the run, and wait until it is known."""
        if sabotage is not None:
            path = plan_file(self.stack.config.shared_dir, self.run_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(sabotage.model_dump_json())
        self.stack.account.put_start(short_request(self.run_id, steps, sabotage is not None).spec, owner="chaos")
        self.until("run record", lambda: self._watch.view is not None, 60)

    def until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        self._watch.until(what, condition, time.monotonic() + seconds)

    def pause(self, seconds: float) -> None:
        """Go on watching for so long."""
        deadline = time.monotonic() + seconds
        self.until("end of a pause", lambda: time.monotonic() >= deadline, seconds + 30)

    @property
    def state(self) -> str:
        return self._watch.view.state if self._watch.view is not None else "unknown"

    @property
    def attempt(self) -> int:
        return self._watch.attempt

    def progress(self, attempt: int) -> Progress | None:
        """What the attempt reported last, read now: a fault is aimed by it."""
        body = self.stack.account.read(self.keys.progress(attempt))
        return None if body is None else Progress.from_json(body)

    def outcome(self, attempt: int) -> Outcome | None:
        """What the attempt said of itself at its end."""
        body = self.stack.account.read(self.keys.outcome(attempt))
        return None if body is None else Outcome.from_json(body)

    def line(self, attempt: int) -> AttemptLine | None:
        """The attempt as the API shows it."""
        found = self._watch.view.attempts if self._watch.view is not None else []
        return next((one for one in found if one.n == attempt), None)

    def until_saved(self, attempt: int, step: int = CKPT_INTERVAL, seconds: float = 300) -> None:
        """A checkpoint of at least ``step`` is verified, by this attempt, and a new step is under way."""

        def saved() -> bool:
            self.expect_alive()
            now = self.progress(attempt)
            return now is not None and now.saved_step >= step and now.phase in (Phase.GENERATE, Phase.TRAIN)

        self.until(f"checkpoint of attempt {attempt}", saved, seconds)

    def until_final(self, seconds: float = 400) -> None:
        self.until("end of the run", lambda: self.state in FINAL_STATES, seconds)

    def expect_alive(self) -> None:
        if self.state in FINAL_STATES:
            view = self._watch.view
            raise StoryFailed(f"the run ended early as {self.state}: {view.sentence if view else ''}")

    # Hits

    def hit(self, attempt: int, what: str) -> None:
        """Say that a fault strikes now."""
        self.hits.append(Hit(attempt, time.time()))
        self.screen.line("fault", what)

    def until_decided(self, seconds: float = 240) -> None:
        """The attempt that was hit last is judged over."""
        attempt = self.hits[-1].attempt

        def decided() -> bool:
            line = self.line(attempt)
            return line is not None and line.ended_at is not None

        self.until(f"judgement on attempt {attempt}", decided, seconds)

    def until_recovered(self, seconds: float = 400) -> None:
        """The attempt after the one that was hit last has made a step that is new to it."""
        attempt = self.hits[-1].attempt + 1

        def recovered() -> bool:
            self.expect_alive()
            now = self._watch.progress.get(attempt)
            if now is None or now.resumed_step is None or now.step <= now.resumed_step:
                return False
            self.hits[-1] = replace(self.hits[-1], first_step=now.at.timestamp())
            return True

        self.until(f"new step of attempt {attempt}", recovered, seconds)

    def drivers(self) -> list[Driver]:
        """The run's living drivers."""
        return self._drivers.living(self.run_id)

    def until_driver_dies(self, attempt: int, seconds: float = 300) -> None:
        """The attempt has had a driver, and it lives no more."""

        def dead() -> bool:
            self.expect_alive()
            known = any(one.attempt == attempt for one in self._drivers.of(self.run_id))
            return known and all(one.attempt != attempt for one in self.drivers())

        self.until(f"death of the driver of attempt {attempt}", dead, seconds)

    def driver(self, attempt: int) -> Driver:
        """The living driver of an attempt."""
        for one in self.drivers():
            if one.attempt == attempt:
                return one
        raise StoryFailed(f"no driver of attempt {attempt} is running")

    def kill_processes(self, pids: Sequence[int], number: int = signal.SIGKILL) -> None:
        """Signal processes, each of which must be the stack's own."""
        ours = {process.pid for process in self.stack.supervisor.note()}
        for pid in pids:
            if pid not in ours:
                raise StoryFailed(f"process {pid} does not belong to this stack")
            os.kill(pid, number)

    def function_processes(self, function: str) -> list[int]:
        """Pids of a function's warm processes."""
        name = self.stack.outputs[f"{function}Name"]
        found = _get(self.stack.config.cloud_url + "/_local/processes")
        return [one["pid"] for one in found if one["what"] == f"lambda {name}"]

    def nudge(self) -> None:
        """Make the controller look now: HyperPod says that an instance of the run is healthy."""
        worker, config = self.hyperpod.worker_with_pod(), self.stack.config
        moment = events.Moment(datetime.now(UTC), str(uuid.uuid4()))
        _post(config.cloud_url + "/_local/events", events.node_health(config, moment, worker, healthy=True))

    # Faults of the cloud

    def fault(self, *rules: dict[str, Any]) -> None:
        """Set the cloud's plan of faults."""
        _post(self.stack.config.cloud_url + ROUTE, list(rules))

    def struck(self) -> list[int]:
        """How often each rule of the plan has struck."""
        return [one["struck"] for one in _get(self.stack.config.cloud_url + ROUTE)]

    def calm(self, must_have_struck: bool = True) -> None:
        """Take the plan away; a verdict needs to know how often it struck, where it had to."""
        if must_have_struck:
            self._struck = [*self._struck, *self.struck()]
        self.fault()

    # The end

    def evidence(self) -> Evidence:
        """Wait for the very end, as far as it comes in time, and take down what is there."""
        self._settle()
        self._watch.refresh()
        view, account, outputs = self._watch.view, self.stack.account, self.stack.outputs
        attempts = view.attempts if view is not None else []
        progress = {one.n: found for one in attempts if (found := self.progress(one.n)) is not None}
        manifest = account.read(self.keys.manifest)
        executions = [*account.executions(outputs["TrainingRunArn"]), *account.executions(outputs["ShiftArn"])]
        drivers = self._drivers.of(self.run_id)
        return Evidence(
            run_id=self.run_id,
            ckpt_interval=CKPT_INTERVAL,
            view=view,
            progress=progress,
            drivers=drivers,
            hits=[_completed(one, attempts, drivers, progress) for one in self.hits],
            manifest_state=None if manifest is None else Manifest.from_json(manifest).state,
            finals=self._finals(),
            pods=self.hyperpod.pods(),
            rayclusters=self.hyperpod.rayclusters(),
            lease_holders=lease_holders(self.stack),
            processes=self._pod_processes(),
            executions={one["name"]: one["status"] for one in executions if one["name"].startswith(f"{self.run_id}-")},
            struck=self._struck,
            notes=self.notes,
        )

    def _settle(self) -> None:
        def over() -> bool:
            told = self.state in FINAL_STATES and bool(self._finals())
            return (
                told and not self.hyperpod.pods() and not self.hyperpod.rayclusters() and not lease_holders(self.stack)
            )

        try:
            self.until("end of everything", over, END_SECONDS)
            self.pause(1.0)  # a second last message would come about now
        except StoryFailed as failed:
            self.screen.line("check", str(failed))

    def _finals(self) -> list[str]:
        ends = tuple(f"{self.run_id} {word}" for word in ("finished", "failed", "was cancelled"))
        return [message.headline for message in self._watch.messages if message.headline.startswith(ends)]

    def _pod_processes(self) -> list[str]:
        return [one["what"] for one in self.hyperpod.processes() if not one["what"].startswith("local.kube")]


def _completed(
    hit: Hit, attempts: Sequence[AttemptLine], drivers: Sequence[Driver], progress: dict[int, Progress]
) -> Hit:
    """A hit with what followed it: the judgement, the next attempt's driver, and its first new step if it was not seen."""
    ended = next((one.ended_at for one in attempts if one.n == hit.attempt), None)
    running = min((one.started for one in drivers if one.attempt == hit.attempt + 1), default=None)
    return replace(hit, decided=ended.timestamp() if ended is not None else None, running=running)


def _post(url: str, document: Any) -> Any:
    data, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method="POST"), timeout=20) as answer:
        return json.load(answer)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)
