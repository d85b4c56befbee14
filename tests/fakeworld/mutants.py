"""Planted faults: each breaks one promise of the real code, and names the invariant that must find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from nightshift.core import budgets
from nightshift.core.causes import EndCause
from nightshift.core.decision import Verb
from nightshift.core.decisions import attempt as core_attempt
from nightshift.core.decisions import cluster as core_cluster
from nightshift.core.decisions import fence as core_fence
from nightshift.core.run import Awaiting, RunState
from nightshift.handlers.controller import STEPS
from nightshift.steps import ending, judge, look, observe, reconcile, signals, transitions
from nightshift.steps.requests import Reply
from tests.fakeworld.cluster import Fleet
from tests.fakeworld.store import MemoryRunStore

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """``found_by``: the invariants that may find it; ``within``: seeds that are enough; ``hint``: one that found it once, and
    is tried first."""

    name: str
    found_by: tuple[str, ...]
    plant: Plant
    within: int = 150
    hint: int = 0

    @property
    def seeds(self) -> list[int]:
        return [self.hint, *(seed for seed in range(self.within) if seed != self.hint)]


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

    def begin(self: Any, run_id: str, *given: Any) -> Any:
        token = self.items[run_id].token
        run = real(self, run_id, *given)
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
    patch.setattr(core_attempt, "recoveries_spent", lambda *_: None)


def _spend_recoveries_on_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budgets, "_is_wait", lambda _: False)


def _retry_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core_attempt, "crash_loop", lambda *_: None)


def _ignore_the_wall_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core_attempt, "spent_budget", lambda *_: None)


def _ignore_the_questions_deadline(patch: pytest.MonkeyPatch) -> None:
    for module in (core_cluster, core_fence):
        patch.setattr(module, "unanswered", lambda *_: None)


def _ask_at_every_look(patch: pytest.MonkeyPatch) -> None:
    real = judge.decide

    def decide(run: Any, *given: Any) -> Any:
        return real(run.model_copy(update={"question": None}), *given)

    patch.setattr(judge, "decide", decide)


def _ask_without_a_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judge, "emit", lambda *_, **__: True)


def _forget_the_exclusion(patch: pytest.MonkeyPatch) -> None:
    real = Fleet.create
    patch.setattr(Fleet, "create", lambda self, spec, owner, excluded=(): real(self, spec, owner))
    patch.setattr(Fleet, "exclude", lambda *_: False)


def _never_escalate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judge, "escalate", lambda ports, run, spec, decision: run)


def _trust_rays_books(patch: pytest.MonkeyPatch) -> None:
    real = core_fence._held

    def held(run: Any, seen: Any) -> str | None:
        return real(run, replace(seen, ray=replace(seen.ray, dying_by_ip={})))

    patch.setattr(core_fence, "_held", held)


def _succeed_without_a_start(patch: pytest.MonkeyPatch) -> None:
    real = judge.decide

    def decide(run: Any, spec: Any, awaiting: Awaiting, *seen: Any) -> Any:
        decision = real(run, spec, awaiting, *seen)
        started = awaiting is Awaiting.CLUSTER and decision.verb is Verb.READY
        return replace(decision, verb=Verb.SUCCEEDED, cause=EndCause.FINISHED) if started else decision

    patch.setattr(judge, "decide", decide)


def _resubmit_at_succession(patch: pytest.MonkeyPatch) -> None:
    real = transitions.admit

    def admit(ports: Any, request: Any) -> Reply:
        reply, item = real(ports, request), ports.runs.items[request.run_id]
        if request.k > 1 and reply.decision == "running":
            last = item.attempts[item.run.attempt]
            item.attempts[last.n] = last.model_copy(update={"ended_at": ports.now()})
            item.run = item.run.model_copy(update={"state": RunState.PROVISIONING})
            return reply.model_copy(update={"decision": "provisioning"})
        return reply

    patch.setitem(STEPS, "admit", admit)


def _never_hand_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(look, "_handing_on", lambda reply, *_: reply)


def _ignore_urgency(patch: pytest.MonkeyPatch) -> None:
    def first(self: Any, pool: str) -> str | None:
        waiting = [i.queue_place[1:] for i in self.items.values() if i.queue_place is not None]
        return min(waiting)[1] if waiting else None

    patch.setattr(MemoryRunStore, "next_in_line", first)


def _jump_the_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryRunStore, "next_in_line", lambda *_: None)


def _ignore_a_cancel(patch: pytest.MonkeyPatch) -> None:
    real = judge.decide

    def decide(run: Any, *given: Any) -> Any:
        return real(run.model_copy(update={"cancel_requested": False}), *given)

    patch.setattr(judge, "decide", decide)


def _forget_the_smaller_values(patch: pytest.MonkeyPatch) -> None:
    real = transitions.job_command
    patch.setattr(transitions, "job_command", lambda r, a, b: real(r, a.model_copy(update={"smaller": False}), b))


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
HOLDS, LOOPS, WALL = "the fence holds", "never over the crash-loop guard", "never over the wall hours"
ASKED, ONE, TOLD = "no question is waited for without end", "one question at a time", "every question is told"
LINE, WAITS, CANCEL = "first come, first served", "waiting spends no recovery", "a cancel ends its run"
EXCLUDED, SMALLER = "an excluded instance hosts no attempt", "smaller values reach the job"
BOUNDED, FENCES, QUIET = "histories are bounded", "a fence ends", "a quiet run succeeds"
BUDGET, END, MESSAGE = "never over the recovery budget", "always a terminal state", "always a final message"
EVIDENCE, OLD = "no success without evidence", "no evidence of an older attempt"
CLUSTER, LEASE, BREAKS = "no RayCluster is left", "no lease is left", "no step breaks"

MUTANTS = (
    Mutant("skip the fence", (LIVE, HOLDS), _skip_the_fence),
    Mutant("submit a second attempt when repeated", (LIVE,), _double_submit, hint=9),
    Mutant("ignore the floor", (FLOOR,), _ignore_the_floor, hint=2),
    Mutant("sleep over a signal", (SIGNALS,), _sleep_over_a_signal, hint=91),
    Mutant("wake nobody", (SIGNALS,), _wake_nobody),
    Mutant("keep the old token", (SIGNALS,), _keep_the_old_token, hint=30),
    Mutant("no teardown", (CLUSTER,), _no_teardown),
    Mutant("keep the lease", (LEASE,), alone(_keep_the_lease)),
    Mutant("no final message", (MESSAGE,), alone(_no_final_message)),
    Mutant("believe old evidence", (OLD,), _believe_old_evidence, 400, hint=18),
    Mutant("believe Ray without evidence", (EVIDENCE, OLD), _believe_ray, hint=2),
    Mutant("never count recoveries", (BUDGET,), _never_count_recoveries, 400, hint=8),
    Mutant("spend recoveries on waiting", (WAITS,), _spend_recoveries_on_waiting, 1_500, hint=14),
    Mutant("retry the same end for ever", (LOOPS,), _retry_for_ever, 400, hint=11),
    Mutant("ignore the wall time", (WALL,), _ignore_the_wall_time, 400, hint=4),
    Mutant("ignore a question's deadline", (ASKED,), _ignore_the_questions_deadline, 400, hint=53),
    Mutant("ask at every look", (ONE,), _ask_at_every_look, 400, hint=53),
    Mutant("ask without a message", (TOLD,), _ask_without_a_message, 400, hint=16),
    Mutant("forget the exclusion", (EXCLUDED,), _forget_the_exclusion, 600, hint=103),
    Mutant("never escalate a fence", (FENCES,), _never_escalate, 600, hint=109),
    Mutant("trust Ray's books about GPUs", (HOLDS,), _trust_rays_books, 200, hint=59),
    Mutant("succeed without a start", (EVIDENCE, QUIET), _succeed_without_a_start, hint=22),
    Mutant("submit again at a succession", (LIVE,), _resubmit_at_succession, 400, hint=45),
    Mutant("never hand on to a successor", (BOUNDED,), _never_hand_on, 200, hint=8),
    Mutant("ignore urgency", (LINE,), _ignore_urgency, 600, hint=6),
    Mutant("jump the line", (LINE,), _jump_the_line, 400, hint=6),
    Mutant("ignore a cancel", (CANCEL,), _ignore_a_cancel, 600, hint=77),
    Mutant("forget the smaller values", (SMALLER,), _forget_the_smaller_values, 400, hint=29),
    Mutant(
        "end a shift that was only overtaken",
        (END, MESSAGE, FENCES),
        alone(_end_a_shift_that_was_overtaken),
        600,
        hint=10,
    ),
    Mutant("break a step", (BREAKS,), _break_a_step),
    Mutant("no finisher", (END, FENCES), alone(_no_finisher), 200, hint=1),
    Mutant("no reconciler", (END, MESSAGE, CLUSTER, LEASE, FENCES), _no_reconciler, 400, hint=10),
)
