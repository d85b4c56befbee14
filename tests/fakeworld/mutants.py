"""Planted faults: each breaks one promise of the real code, and names the invariant that must find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from nightshift.core.decision import Verb
from nightshift.core.decisions import attempt as core_attempt
from nightshift.core.run import Awaiting, RunState
from nightshift.handlers.controller import STEPS
from nightshift.steps import ending, judge, look, observe, reconcile, signals, transitions
from nightshift.steps.requests import Reply
from tests.fakeworld.cluster import Fleet
from tests.fakeworld.store import MemoryRunStore

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """``found_by``: the invariants that may find it; ``within``: seeds that are enough."""

    name: str
    found_by: tuple[str, ...]
    plant: Plant
    within: int = 150


def _skip_the_fence(patch: pytest.MonkeyPatch) -> None:
    real = judge.decide

    def decide(run: Any, spec: Any, awaiting: Awaiting, *seen: Any) -> Any:
        decision = real(run, spec, awaiting, *seen)
        return replace(decision, verb=Verb.READY) if awaiting is Awaiting.FENCE else decision

    patch.setattr(judge, "decide", decide)


def _double_submit(patch: pytest.MonkeyPatch) -> None:
    real = transitions.submit

    def submit(ports: Any, request: Any, bucket: str) -> Reply:
        run = ports.runs.load(request.run_id, request.k)
        for attempt in ports.runs.attempts(run.run_id):
            ports.runs.items[run.run_id].attempts[attempt.n] = attempt.model_copy(update={"ended_at": ports.now()})
        ports.runs.items[run.run_id].run = run.model_copy(update={"state": RunState.PROVISIONING})
        return real(ports, request, bucket)

    patch.setattr(transitions, "submit", submit)


def _ignore_the_floor(patch: pytest.MonkeyPatch) -> None:
    real = transitions.job_command
    patch.setattr(transitions, "job_command", lambda r, a, b: real(r, a.model_copy(update={"floor": 0}), b))


def _sleep_over_a_signal(patch: pytest.MonkeyPatch) -> None:
    real = MemoryRunStore.nap

    def nap(self: Any, run: Any, token: str, interval: int, now: Any, counter: int, look_seq: int) -> bool:
        return real(self, run, token, interval, now, self.get(run.run_id).signal_counter, look_seq)

    patch.setattr(MemoryRunStore, "nap", nap)


def _wake_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(signals, "wake", lambda ports, run_id, signal: ports.runs.bump(run_id, signal) and None)


def _keep_the_old_token(patch: pytest.MonkeyPatch) -> None:
    real = MemoryRunStore.begin_look

    def begin(self: Any, run_id: str, k: int, now: Any) -> Any:
        token = self.items[run_id].token
        run = real(self, run_id, k, now)
        self.items[run_id].token = token
        return run

    patch.setattr(MemoryRunStore, "begin_look", begin)


def _no_teardown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fleet, "delete", lambda self, name: None)


def _keep_the_lease(patch: pytest.MonkeyPatch) -> None:
    real = MemoryRunStore.finish

    def finish(self: Any, run: Any, state: Any, **changes: Any) -> Any:
        held = dict(self.held)
        done = real(self, run, state, **changes)
        self.held.update(held)
        return done

    patch.setattr(MemoryRunStore, "finish", finish)


def _no_final_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ending, "emit_final", lambda *_: None)


def _believe_old_evidence(patch: pytest.MonkeyPatch) -> None:
    def complete(found: Any, attempt: int, last: int) -> bool:
        return bool(found.final and found.final_export and found.final.step == found.final_export.step == last)

    patch.setattr(observe, "is_complete", complete)


def _believe_ray(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(observe, "is_complete", lambda *_: True)


def _never_count_recoveries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core_attempt, "spent_recoveries", lambda _: 0)


def _end_a_shift_that_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(look, "_stale", lambda p, r, interval: Reply(decision="stale", interval=interval))


def _break_a_step(patch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Reply:
        raise KeyError("verdict")

    patch.setitem(STEPS, "publish", broken)


def _no_finisher(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ending, "finish_for", lambda *_: False)


def _no_reconciler(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "reconcile", lambda _: reconcile.Report())


def alone(plant: Plant) -> Plant:
    """A fault that the reconciler repairs by itself, without it."""

    def both(patch: pytest.MonkeyPatch) -> None:
        plant(patch)
        _no_reconciler(patch)

    return both


LIVE = "never two live attempts"
FLOOR, SIGNALS = "never below the floor", "signals are never lost"
BUDGET, END, MESSAGE = "never over the recovery budget", "always a terminal state", "always a final message"
EVIDENCE, OLD = "no success without evidence", "no evidence of an older attempt"
CLUSTER, LEASE, BREAKS = "no RayCluster is left", "no lease is left", "no step breaks"

MUTANTS = (
    Mutant("skip the fence", (LIVE,), _skip_the_fence),
    Mutant("submit a second attempt when repeated", (LIVE,), _double_submit),
    Mutant("ignore the floor", (FLOOR,), _ignore_the_floor),
    Mutant("sleep over a signal", (SIGNALS,), _sleep_over_a_signal),
    Mutant("wake nobody", (SIGNALS,), _wake_nobody),
    Mutant("keep the old token", (SIGNALS,), _keep_the_old_token),
    Mutant("no teardown", (CLUSTER,), _no_teardown),
    Mutant("keep the lease", (LEASE,), alone(_keep_the_lease)),
    Mutant("no final message", (MESSAGE,), alone(_no_final_message)),
    Mutant("believe old evidence", (OLD,), _believe_old_evidence, 400),
    Mutant("believe Ray without evidence", (EVIDENCE, OLD), _believe_ray),
    Mutant("never count recoveries", (BUDGET,), _never_count_recoveries),
    Mutant("end a shift that was only overtaken", (END, MESSAGE), alone(_end_a_shift_that_was_overtaken), 600),
    Mutant("break a step", (BREAKS,), _break_a_step),
    Mutant("no finisher", (END,), alone(_no_finisher), 200),
    Mutant("no reconciler", (END, MESSAGE, CLUSTER, LEASE), _no_reconciler, 400),
)
