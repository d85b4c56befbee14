"""Rules that hold for every run, every observation and every wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract.job import Outcome, OutcomeCause, Phase, Progress
from nightshift.contract.spec import RunSpec
from nightshift.core.budgets import spent_budget, spent_recoveries
from nightshift.core.causes import POLICIES, Action, EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import ClusterView, JobState, JobView, Observation, RayView, WorkloadView
from nightshift.core.run import FINAL_STATES, Awaiting, Question, Run, RunState, Signal, SignalKind
from tests.builders import NOW, attempt, cluster, outcome, progress, ray, run, spec

INSTANCES = ("i-head", "i-w1", "i-w2", "i-w3", "i-new")
MESSAGES = ("", "ActorDiedError: ip: ip-i-w2", "NCCL error", "CUDA out of memory", "No space left on device", "?")
TIMES = st.sampled_from([NOW - timedelta(hours=hours) for hours in (-1, 0, 0.1, 0.3, 1, 2, 13, 99, 101, 900)])
STEPS = st.integers(0, 400)
BUDGETS = {"dollars": 500, "max_recoveries_without_progress": 2, "wall_hours": 100, "gpu_hours": 200}
SMALLER: dict[str, Any] = {"on_out_of_memory": {"gpu_memory_utilization": 0.3}}
SPECS = (spec(budgets=BUDGETS), spec(budgets=BUDGETS, recovery=SMALLER))
RUNS = st.sampled_from([None, "maze-1", "other"])
HINTS = st.sets(st.sampled_from(INSTANCES)).map(
    lambda found: tuple(Signal(kind=SignalKind.NODE_HEALTH, instance_id=one, at=NOW) for one in sorted(found))
)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    hosts = draw(st.lists(st.sampled_from(INSTANCES), unique=True, max_size=5))
    if not hosts:
        return ClusterView(exists=draw(st.booleans()))
    whole = cluster(*hosts, unhealthy_instances=frozenset(draw(st.sets(st.sampled_from(INSTANCES), max_size=2))))
    ends = st.sampled_from([None, "OOMKilled, exit code 137", "Error, exit code 1"])
    taken = st.sampled_from([None, None, "PreemptionByScheduler: why", "DeletionByTaintManager: why"])
    pods = tuple(replace(p, ready=draw(st.booleans()), ended=draw(ends), disruption=draw(taken)) for p in whole.pods)
    workload = draw(
        st.sampled_from([None, WorkloadView(admitted=True, admitted_at=NOW), WorkloadView(evicted="Preempted")])
    )
    return replace(
        whole, exists=draw(st.booleans()), pods=pods, suspended=draw(st.booleans()), workload=workload,
        head_ready=draw(st.booleans()), ready_workers=draw(st.integers(0, 4)),
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> Run:
    question = None
    if draw(st.booleans()):
        cause = draw(st.sampled_from(EndCause))
        until = draw(TIMES)
        question = Question(
            cause=cause, text="?", asked_at=NOW, until=until, given_up_by=draw(st.sampled_from([None, "me"]))
        )
    return run(
        state=draw(st.sampled_from(sorted(set(RunState) - FINAL_STATES))),
        verified_step=draw(STEPS), recovery_floor=draw(STEPS), step=draw(STEPS),
        recoveries_without_progress=draw(st.integers(0, 4)), waiting_since=draw(TIMES), leased_at=draw(st.none() | TIMES),
        cancel_requested=draw(st.booleans()), question=question, smaller=draw(st.booleans()),
        queue=draw(st.sampled_from([None, "team"])), witness="w", witness_at=draw(st.none() | TIMES),
        dollars_per_hour=36.6, prices_as_of=NOW.date(), taken_away=tuple(draw(st.sets(st.sampled_from(INSTANCES), max_size=1))),
    )  # fmt: skip


@st.composite
def reports(draw: st.DrawFn) -> tuple[Progress | None, Outcome | None]:
    steps = {"step": draw(STEPS), "saved_step": draw(STEPS), "resumed_step": draw(st.none() | STEPS)}
    told = progress(phase=draw(st.sampled_from(Phase)), at=draw(TIMES), **steps) if draw(st.booleans()) else None
    cause = draw(st.none() | st.sampled_from(OutcomeCause))
    return told, outcome(cause, message=draw(st.sampled_from(MESSAGES)), exit_code=1, **steps) if cause else None


@st.composite
def looks(draw: st.DrawFn) -> tuple[Run, RunSpec, Awaiting, Observation]:
    told, over = draw(reports())
    ends = st.none() | st.sampled_from(EndCause)
    before = [attempt(n, end_cause=draw(ends), last_saved_step=draw(STEPS)) for n in range(1, draw(st.integers(1, 4)))]
    view = draw(clusters())
    seen = Observation(
        view, JobView(draw(st.sampled_from(JobState)), draw(st.sampled_from(MESSAGES))),
        ray=draw(st.sampled_from([RayView(), ray(), ray(actors=3)])), progress=told, outcome=over, evidence=draw(st.booleans()),
        lease_holder=draw(RUNS), next_in_line=draw(RUNS), signals=draw(HINTS),
        job_since=draw(st.none() | TIMES), witness=draw(st.sampled_from([None, "w", "x"])), gpu_hours=draw(st.floats(0, 400)),
        attempts=(*before, attempt(len(before) + 1, last_saved_step=draw(STEPS))),
    )  # fmt: skip
    return draw(runs()), draw(st.sampled_from(SPECS)), draw(st.sampled_from(Awaiting)), seen


def judged(look: tuple[Run, RunSpec, Awaiting, Observation]) -> Decision:
    return decide(*look, NOW)


@settings(max_examples=150, deadline=None)
@given(looks())
def test_every_look_has_a_decision_that_its_wait_can_carry_out(
    look: tuple[Run, RunSpec, Awaiting, Observation],
) -> None:
    decision, awaiting = judged(look), look[2]
    assert decision.why
    ends = {Verb.FAILED, Verb.CANCELLED}
    waits = {Verb.HOLD, Verb.NAP}
    allowed = waits | ends | ({Verb.RECOVER, Verb.SUCCEEDED} if awaiting is Awaiting.ATTEMPT else {Verb.READY})
    assert decision.verb in allowed
    assert (decision.cause is not None) == (decision.verb in {*ends, Verb.RECOVER, Verb.SUCCEEDED})
    if decision.ask is not None:
        assert look[0].question is None, "a question is put once"
        assert POLICIES[decision.ask].action in (Action.ASK, Action.WAIT)


@settings(max_examples=150, deadline=None)
@given(looks())
def test_no_attempt_follows_past_a_budget_and_none_that_nobody_may_start(
    look: tuple[Run, RunSpec, Awaiting, Observation],
) -> None:
    on, asked, _, seen = look
    decision = judged(look)
    if decision.verb is not Verb.RECOVER:
        return
    assert decision.cause is not None
    policy = POLICIES[decision.cause]
    assert policy.action.goes_on or decision.smaller
    if policy.action in (Action.RECOVER, Action.GIVE_UP):
        assert spent_recoveries(on) < asked.budgets.max_recoveries_without_progress
    assert spent_budget(on, asked, seen.gpu_hours, NOW) is None
    assert not on.cancel_requested or seen.outcome is None
    if decision.smaller:
        assert decision.cause is EndCause.GPU_OUT_OF_MEMORY
        assert asked.recovery.on_out_of_memory is not None and not on.smaller


@settings(max_examples=150, deadline=None)
@given(looks())
def test_no_success_without_evidence_and_no_ready_lease_that_somebody_holds(
    look: tuple[Run, RunSpec, Awaiting, Observation],
) -> None:
    on, _, awaiting, seen = look
    decision = judged(look)
    if decision.verb is Verb.SUCCEEDED:
        assert seen.evidence and (seen.outcome is None or seen.outcome.cause.is_success)
    if decision.verb is Verb.READY and awaiting is Awaiting.LEASE:
        assert seen.lease_holder in (None, on.run_id) or on.queue is not None


@settings(max_examples=150, deadline=None)
@given(looks(), st.sampled_from(sorted(RunState)))
def test_every_cause_lands_somewhere_in_every_state(
    look: tuple[Run, RunSpec, Awaiting, Observation], state: RunState
) -> None:
    on, asked, _, seen = look
    for cause in OutcomeCause:
        told = outcome(cause, exit_code=1, resumed_step=0)
        over = replace(seen, outcome=told, cluster=cluster(), evidence=False)
        decision = decide(on.model_copy(update={"state": state}), asked, Awaiting.ATTEMPT, over, NOW)
        assert decision.verb in (Verb.RECOVER, Verb.FAILED, Verb.CANCELLED) and decision.cause is not None
        assert decision.verb is not Verb.CANCELLED or on.cancel_requested
