"""A whole fake world around the real steps and the shipped state machines: time, functions, Step Functions, table, bucket,
HyperPod, Kubernetes, Ray, jobs and events.

What it cannot show: anything below the ports (adapters, boto3, HTTP, IAM, serialisation), the handlers, the notifier, the
count of history events, and interleavings that do not nest. The modules ``cloud``, ``cluster``, ``job``, ``machine``,
``people``, ``store`` and ``upkeep`` name their own gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from nightshift.contract.events import StageEvent
from nightshift.contract.layout import RunKeys
from nightshift.core.history import BOUNDS
from nightshift.core.reconcile import ExecutionState, ExecutionStatus
from nightshift.core.run import Attempt, Run, Signal, SignalKind
from nightshift.handlers.controller import STEPS
from nightshift.steps import ending, intake, look, signals, transitions
from nightshift.steps.ports import Nap, Ports
from nightshift.steps.requests import LookRequest, StepRequest
from tests.builders import spec_json
from tests.fakeworld.cloud import Bucket, Loop
from tests.fakeworld.cluster import Fleet
from tests.fakeworld.machine import Execution, StepFunctions
from tests.fakeworld.people import People
from tests.fakeworld.ray import RayPorts
from tests.fakeworld.store import MemoryRunStore
from tests.fakeworld.upkeep import Upkeep
from tests.fakeworld.watch import INTERVAL, Watch

LOOK_SECONDS, LAMBDA_SECONDS = int(INTERVAL), 50.0
TRAINING = {"total_steps": 6, "ckpt_interval": 2, "eval_interval": 3, "hf_save_interval": 3}
BUDGETS = {
    "wall_hours": 4,
    "max_recoveries_without_progress": 2,
    "start_minutes": 20,
    "node_wait_minutes": 30,
    "ask_hours": 2,
}
DETAIL_TYPES = {
    SignalKind.NODE_HEALTH: "SageMaker HyperPod Cluster Node Health Event",
    SignalKind.CLUSTER_EVENT: "SageMaker HyperPod Cluster Event",
}


class Table(MemoryRunStore):
    """The store as a service that can throttle, and that the watch looks at."""

    def __init__(self, world: World) -> None:
        super().__init__(world.loop.wrote)
        self._world = world

    def bump(self, run_id: str, signal: Signal) -> Nap | None:
        self._world.loop.touch("DynamoDB")
        nap = super().bump(run_id, signal)
        self._world.note(f"{run_id} signal {signal.kind}, token {nap.token if nap else None}")
        self._world.watch.bumped(run_id, nap)
        return nap

    def signals_since(self, run_id: str, counter: int) -> Any:
        self._world.loop.touch("DynamoDB")
        self._world.watch.observed(run_id)
        return super().signals_since(run_id, counter)

    def nap(self, run: Run, token: str, interval: int, now: Any, counter: int, look_seq: int) -> bool:
        self._world.loop.touch("DynamoDB")
        registered = super().nap(run, token, interval, now, counter, look_seq)
        if registered:
            self._world.note(f"{run.run_id} naps on {token}")
            self._world.watch.napped(run.run_id, token)
        return registered

    def update(self, run: Run, look_seq: int | None = None, **changes: Any) -> Run:
        self._world.loop.touch("DynamoDB")
        open_before = self.items[run.run_id].run.question
        done = super().update(run, look_seq, **changes)
        if changes.get("question") is not None:
            self._world.watch.asks(run.run_id, open_before, changes["question"])
        return done

    def enqueue(self, run: Run, **changes: Any) -> Run:
        self._world.watch.queued(run.run_id)
        return super().enqueue(run, **changes)

    def take_lease(self, run: Run, now: datetime) -> bool:
        self._world.loop.touch("DynamoDB")
        line = self._world.watch.line(run.pool)
        taken = super().take_lease(run, now)
        if taken:
            self._world.watch.leased(run.run_id, line)
        return taken

    def save_attempt(self, run: Run, attempt: Attempt, look_seq: int | None = None) -> bool:
        self._world.loop.touch("DynamoDB")
        saved = super().save_attempt(run, attempt, look_seq)
        if saved and attempt.ended_at is not None:
            self._world.watch.attempt_ended(attempt)
        return saved

    def claim_attempt(self, run: Run, attempt: Attempt) -> Run | None:
        self._world.loop.touch("DynamoDB")
        claimed = super().claim_attempt(run, attempt)
        if claimed is not None:
            self._world.watch.claimed(claimed)
        return claimed


def _throttled(name: str) -> Callable[..., Any]:
    def call(self: Table, *given: Any, **named: Any) -> Any:
        self._world.loop.touch("DynamoDB")
        return getattr(MemoryRunStore, name)(self, *given, **named)

    return call


for _name in ("create", "load", "begin_look", "finish", "audit", "active_on"):
    setattr(Table, _name, _throttled(_name))


class HyperPod:
    def __init__(self, fleet: Fleet) -> None:
        self.view, self.replace = fleet.hyperpod, fleet.replace


class Stages:
    def __init__(self, loop: Loop, people: People) -> None:
        self._loop, self._people, self.events = loop, people, list[StageEvent]()

    def emit(self, event: StageEvent) -> bool:
        self._loop.touch("EventBridge")
        self.events.append(event)
        self._loop.note(f"{event.run_id} stage {event.key}")
        self._people.told(event)
        self._loop.wrote(f"stage {event.key}")
        return True


class Executions:
    def __init__(self, world: World) -> None:
        self._world = world

    def start(self, name: str, payload: dict[str, Any]) -> None:
        self._world.loop.touch("Step Functions")
        self._world.machines.start("training_run", name, payload)
        self._world.loop.wrote("start execution")

    def status(self, name: str) -> ExecutionStatus | None:
        self._world.loop.touch("Step Functions")
        there = self._world.machines.executions.get(name)
        if there is None:
            return None
        stopped = None if there.stopped is None else datetime.fromisoformat(there.stopped)
        started = datetime.fromisoformat(there.started) if there.started else self._world.loop.now()
        return ExecutionStatus(ExecutionState(there.status), stopped, " ".join(there.error), started)

    def answer(self, token: str, payload: dict[str, Any]) -> bool:
        self._world.loop.touch("Step Functions")
        accepted = self._world.machines.answer(token, payload)
        self._world.note(f"{token} is answered: {payload['decision']}{'' if accepted else ', but nobody waits for it'}")
        self._world.loop.wrote(f"answer {payload['decision']}")
        return accepted


class World:
    """Implements ``machine.Platform``."""

    def __init__(self, seed: int) -> None:
        self.loop = Loop(seed)
        self.rng, self.at, self.note, self.stamp = self.loop.rng, self.loop.at, self.loop.note, self.loop.stamp
        self.bucket = Bucket(self.loop)
        self.people, self.bounds = People(self), BOUNDS
        self.fleet, self.stages = Fleet(self.loop, self.bucket), Stages(self.loop, self.people)
        self.machines = StepFunctions(self)
        self.watch = Watch(self)
        self.table = Table(self)
        self.fleet.node_event, self.fleet.outcome_written = self.node_event, self.outcome_written
        self.fleet.resumed, self.fleet.submitted = self.watch.resumed, self.watch.submitted
        self.loop.after = self.watch.look
        self.upkeep = Upkeep(self)
        self.ports = Ports(
            runs=self.table,
            clusters=self.fleet,
            jobs=lambda name: RayPorts(self.fleet, name),
            hyperpod=HyperPod(self.fleet),
            artifacts=self.bucket,
            stages=self.stages,
            executions=Executions(self),
            now=self.loop.now,
            sleep=self.loop.sleep,
            remaining=self.loop.remaining,
        )

    @property
    def time(self) -> float:
        return self.loop.time

    # functions --------------------------------------------------------------------------------------------------

    def request(self, run_id: str, **changes: Any) -> None:
        """``budgets`` and ``training`` among the changes are added to those of this world."""
        budgets, training = BUDGETS | changes.pop("budgets", {}), TRAINING | changes.pop("training", {})
        raw = spec_json(run_id=run_id, training=training, budgets=budgets, **changes)
        where = intake.Deployment("hp", "ns")
        self.loop.deliver("intake", 30, lambda: intake.request_run(self.ports, where, raw, "team"))

    def invoke(self, payload: dict[str, Any], done: Callable[[Any, tuple[str, str] | None], None]) -> None:
        what = f"{payload['run_id']} {payload['step']} {payload.get('awaiting', '')}".rstrip()

        def run() -> None:
            result, failure = self.loop.call(what, LAMBDA_SECONDS, lambda: self._step(payload), sheltered=False)
            if failure is None:
                decision = (result or {}).get("decision", "nap")
                self.note(f"{what} -> {decision}")
                if self.rng.random() < self.loop.rates.lost_answer:
                    self.loop.failures += 1
                    failure = ("Lambda.SdkClientException", "the answer was lost")
            self.at(0.01, lambda: done(result, failure))

        self.at(0.05, run)
        if self.rng.random() < self.loop.rates.twice:
            again = self.rng.uniform(0, 40)
            self.at(again, lambda: self.loop.call(f"{what} (twice)", 50, lambda: self._step(payload), False) and None)

    def _step(self, payload: dict[str, Any]) -> dict[str, Any]:
        if payload["step"] == "look":
            reply = look.look(self.ports, LookRequest.model_validate(payload), LOOK_SECONDS, self.bounds)
            return {} if reply is None else reply.model_dump(mode="json")
        request = StepRequest.model_validate(payload)
        if request.step == "submit":
            reply = transitions.submit(self.ports, request, "bucket")
        else:
            reply = STEPS[request.step](self.ports, request)
        return reply.model_dump(mode="json")

    def ended(self, execution: Execution) -> None:
        """A status change event: lost, late or twice."""
        if execution.kind != "training_run" or execution.status not in ("FAILED", "TIMED_OUT", "ABORTED"):
            return None
        run_id, status, why = execution.input["run_id"], execution.status, " ".join(execution.error)

        def finish() -> None:
            did = ending.finish_for(self.ports, run_id, execution.input["k"], status, why)
            self.note(f"{run_id} finisher -> {did}")

        if self.rng.random() < self.loop.rates.event_lost:
            return self.note(f"lost: {execution.name} {status}")
        self.at(self.rng.uniform(0.5, 5), lambda: self.loop.deliver("finisher", 120, finish))
        if self.rng.random() < self.loop.rates.event_twice:
            self.at(self.rng.uniform(0.5, 90), lambda: self.loop.deliver("finisher", 120, finish))
        return None

    # events -----------------------------------------------------------------------------------------------------

    def _event(self, what: str, event: dict[str, Any]) -> None:
        self.loop.publish(what, 30, lambda: signals.receive(self.ports, event))

    def node_event(self, kind: SignalKind, instance: str) -> None:
        detail = {"ClusterName": "hp", "InstanceId": instance}
        self._event(f"event about {instance}", {"detail-type": DETAIL_TYPES[kind], "detail": detail})

    def outcome_written(self, run_id: str, attempt: int) -> None:
        detail = {"object": {"key": RunKeys(run_id).outcome(attempt)}}
        self._event(f"outcome of {run_id} a{attempt}", {"detail-type": "Object Created", "detail": detail})

    def stop_execution(self, run_id: str, shift: bool, orphan: bool) -> None:
        """StopExecution from a console."""
        for execution in list(self.machines.executions.values()):
            wanted = execution.kind == ("shift" if shift else "training_run")
            if wanted and execution.input["run_id"] == run_id and execution.status == "RUNNING":
                self.note(f"{execution.name} is stopped by hand")
                self.watch.stopped = True
                execution.stop(orphan)
