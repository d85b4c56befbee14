"""The judgement of the controller, one look at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.control import ControlCommand
from nightshift.contract.job import OutcomeCause
from nightshift.core.causes import POLICIES, Action, EndCause, from_outcome
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.common import HOLD_FOR
from nightshift.core.observation import ClusterView, JobState, JobView, Observation, RayView
from nightshift.core.run import Awaiting, Question, Run, RunState, Signal, SignalKind
from tests.builders import NOW, cluster, outcome, progress, ray, run, spec

REPLACED = cluster("i-head", "i-w1", "i-w2", "i-new")
NODE_EVENT = Signal(kind=SignalKind.NODE_HEALTH, instance_id="i-w3", at=NOW)


def judge(seen: Observation, on: Run | None = None, awaiting: Awaiting = Awaiting.ATTEMPT, **limits: Any) -> Decision:
    return decide(on or run(), spec(**({"budgets": limits} if limits else {})), awaiting, seen, NOW)


def test_every_end_cause_has_a_policy_and_a_sentence_and_every_outcome_a_cause() -> None:
    assert set(POLICIES) == set(EndCause)
    assert all(p.sentence.endswith(".") and len(p.sentence) <= 300 for p in POLICIES.values())
    assert {from_outcome(c) for c in OutcomeCause} <= set(EndCause)


def test_a_running_job_on_whole_nodes_is_left_alone() -> None:
    decision = judge(Observation(cluster(), JobView(JobState.RUNNING), progress=progress()))
    assert decision.verb is Verb.NAP
    assert decision.control is None and not decision.stop_job


@pytest.mark.parametrize("job", [JobState.RUNNING, JobState.PENDING, JobState.UNREACHABLE])
def test_a_node_that_is_gone_ends_the_attempt_even_while_ray_still_calls_the_job_running(job: JobState) -> None:
    decision = judge(Observation(REPLACED, JobView(job), progress=progress(), signals=(NODE_EVENT,)))
    assert (decision.verb, decision.cause, decision.node) == (Verb.RECOVER, EndCause.NODE_REPLACED, "i-w3")


def test_a_node_that_vanished_without_an_event_is_a_cause_of_its_own() -> None:
    decision = judge(Observation(REPLACED, JobView(JobState.FAILED, "ActorDiedError")))
    assert (decision.verb, decision.cause) == (Verb.RECOVER, EndCause.NODE_LOST)


def test_an_empty_pod_list_is_no_proof_that_nodes_are_gone() -> None:
    decision = judge(Observation(cluster(pods=()), JobView(JobState.RUNNING), progress=progress()))
    assert decision.verb is Verb.NAP


def test_a_node_event_alone_never_fences_a_job_that_still_makes_steps() -> None:
    troubled = cluster(unhealthy_instances=frozenset({"i-w3"}))
    decision = judge(Observation(troubled, JobView(JobState.RUNNING), progress=progress(), signals=(NODE_EVENT,)))
    assert (decision.verb, decision.control) == (Verb.NAP, ControlCommand.CHECKPOINT_NOW)


def test_an_unhealthy_stranger_is_not_our_concern() -> None:
    troubled = cluster(unhealthy_instances=frozenset({"i-stranger"}))
    assert judge(Observation(troubled, JobView(JobState.RUNNING), progress=progress())).control is None


def test_an_unreachable_endpoint_says_nothing_about_the_job() -> None:
    decision = judge(Observation(cluster(), JobView(JobState.UNREACHABLE, "401"), progress=progress()))
    assert decision.verb is Verb.NAP


@pytest.mark.parametrize("job", [JobState.FAILED, JobState.MISSING, JobState.SUCCEEDED, JobState.UNREACHABLE])
def test_evidence_in_s3_is_success_whatever_ray_says(job: JobState) -> None:
    decision = judge(Observation(cluster(), JobView(job), outcome=outcome(), evidence=True))
    assert decision.verb is Verb.SUCCEEDED


@pytest.mark.parametrize("told", [None, outcome()])
def test_a_job_that_succeeded_without_evidence_is_no_success(told: Any) -> None:
    decision = judge(Observation(cluster(), JobView(JobState.SUCCEEDED), outcome=told, evidence=False))
    assert (decision.verb, decision.cause) == (Verb.RECOVER, EndCause.EVIDENCE_MISSING)


@pytest.mark.parametrize("cause", [OutcomeCause.TARGET_REACHED, OutcomeCause.PLATEAU])
def test_a_success_before_the_last_step_says_in_the_jobs_words_why_it_ended_there(cause: OutcomeCause) -> None:
    told = outcome(cause, step=40, message="no rise of 0.01 on 5 evals in a row, up to step 40")
    decision = judge(Observation(cluster(), JobView(JobState.SUCCEEDED), outcome=told, evidence=True))
    assert (decision.verb, decision.cause) == (Verb.SUCCEEDED, EndCause.FINISHED)
    assert "ended early: no rise of 0.01 on 5 evals" in decision.why
    to_the_end = Observation(cluster(), JobView(JobState.SUCCEEDED), outcome=outcome(), evidence=True)
    assert "early" not in judge(to_the_end).why


def test_evidence_does_not_turn_a_reported_failure_into_success() -> None:
    failed = outcome(OutcomeCause.CODE_ERROR, exit_code=70, step=0)
    decision = judge(Observation(cluster(), JobView(JobState.FAILED), outcome=failed, evidence=True))
    assert (decision.verb, decision.cause) == (Verb.FAILED, EndCause.CODE_ERROR)


@pytest.mark.parametrize("cause", [c for c in OutcomeCause if not c.is_success])
def test_what_the_job_says_is_done_about_its_failure_as_the_policy_says(cause: OutcomeCause) -> None:
    decision = judge(Observation(cluster(), JobView(JobState.FAILED), outcome=outcome(cause, exit_code=70)))
    expected = from_outcome(cause)
    action = POLICIES[expected].action
    assert decision.cause is expected
    assert decision.verb is (Verb.RECOVER if action.goes_on else Verb.FAILED)
    assert decision.ask is (expected if action is Action.ASK else None)


@pytest.mark.parametrize("cause", [c for c in OutcomeCause if not c.is_success])
def test_a_lost_node_explains_what_a_node_can_cause_and_an_error_of_the_code_and_nothing_else(
    cause: OutcomeCause,
) -> None:
    """An error of the code too: over HTTP a node that is gone is just any exception."""
    said = outcome(cause, exit_code=70, step=0)
    decision = judge(Observation(REPLACED, JobView(JobState.FAILED), outcome=said, signals=(NODE_EVENT,)))
    end = from_outcome(cause)
    if POLICIES[end].by_node or cause in (OutcomeCause.CODE_ERROR, OutcomeCause.STOPPED_ON_REQUEST):
        assert (decision.verb, decision.cause, decision.node) == (Verb.RECOVER, EndCause.NODE_REPLACED, "i-w3")
    else:
        assert decision.cause is end
    on_whole_nodes = judge(Observation(cluster(), JobView(JobState.FAILED), outcome=said))
    assert on_whole_nodes.cause is end, "without a loss it must stay what the job says"


def test_a_job_that_ray_forgot_is_a_lost_head() -> None:
    decision = judge(Observation(cluster(), JobView(JobState.MISSING), progress=progress()))
    assert (decision.verb, decision.cause) == (Verb.RECOVER, EndCause.HEAD_LOST)


@given(used=st.integers(0, 10), allowed=st.integers(0, 10), progressed=st.booleans())
def test_recoveries_are_spent_only_without_new_verified_checkpoints(used: int, allowed: int, progressed: bool) -> None:
    on = run(recoveries_without_progress=used, recovery_floor=20, verified_step=40 if progressed else 20)
    seen = Observation(REPLACED, JobView(JobState.FAILED))
    decision = judge(seen, on, max_recoveries_without_progress=allowed)
    spent = 0 if progressed else used
    assert decision.verb is (Verb.RECOVER if spent < allowed else Verb.FAILED)
    assert (decision.cause is EndCause.BUDGET_SPENT) == (spent >= allowed)


@pytest.mark.parametrize(("minutes", "verb"), [(10, Verb.NAP), (11, Verb.RECOVER)])
def test_a_job_without_a_sign_of_life_is_given_until_its_start_deadline(minutes: int, verb: Verb) -> None:
    seen = Observation(cluster(), JobView(JobState.RUNNING), job_since=NOW - timedelta(minutes=minutes))
    decision = judge(seen, start_minutes=10)
    assert decision.verb is verb
    assert decision.cause is (EndCause.START_DEADLINE if verb is Verb.RECOVER else None)


@pytest.mark.parametrize(
    ("limits", "hours"), [({"wall_hours": 0.5}, 0.0), ({"gpu_hours": 2.0}, 3.0)], ids=["wall hours", "GPU-hours"]
)
def test_a_spent_budget_stops_the_job_and_the_run(limits: dict[str, float], hours: float) -> None:
    on = run(leased_at=NOW - timedelta(hours=1))
    seen = Observation(cluster(), JobView(JobState.RUNNING), progress=progress(), gpu_hours=hours)
    decision = judge(seen, on, **limits)
    assert (decision.verb, decision.cause, decision.stop_job) == (Verb.FAILED, EndCause.BUDGET_SPENT, True)


def test_a_cancelled_job_is_asked_to_stop_after_a_checkpoint_and_is_cancelled_when_it_has() -> None:
    on = run(cancel_requested=True)
    asked = judge(Observation(cluster(), JobView(JobState.RUNNING), progress=progress()), on)
    assert (asked.verb, asked.control) == (Verb.NAP, ControlCommand.STOP_AFTER_CHECKPOINT)
    stopped = Observation(cluster(), JobView(JobState.SUCCEEDED), outcome=outcome(OutcomeCause.STOPPED_ON_REQUEST))
    assert judge(stopped, on).verb is Verb.CANCELLED


@pytest.mark.parametrize(
    "view",
    [
        cluster("i-head", "i-w1", "i-w2"),
        cluster(head_ready=False),
        cluster(current=False),
        cluster(desired_workers=2),
        ClusterView(exists=False),
    ],
    ids=["a worker is missing", "no head", "status is of an older generation", "fewer workers wanted", "no cluster"],
)
def test_a_cluster_is_ready_only_when_every_sign_agrees(view: ClusterView) -> None:
    assert judge(Observation(view, ray=ray()), awaiting=Awaiting.CLUSTER).verb is Verb.HOLD
    assert judge(Observation(cluster(), ray=ray()), awaiting=Awaiting.CLUSTER).verb is Verb.READY


def test_a_pod_of_a_cluster_that_was_deleted_before_keeps_its_successor_waiting_as_long_as_its_node_answers() -> None:
    made = cluster(created_at=NOW)
    own = tuple(replace(p, created_at=NOW) for p in made.pods)
    old = replace(own[1], name="pod-of-before", created_at=NOW - timedelta(minutes=5), instance_id="i-w9")

    def seen(*silent: str) -> Observation:
        return Observation(replace(made, pods=(*own, old), silent_instances=frozenset(silent)), ray=ray())

    waits = judge(seen(), awaiting=Awaiting.CLUSTER)
    assert waits.verb is Verb.HOLD and "pod-of-before" in waits.why
    assert judge(seen("i-w9"), awaiting=Awaiting.CLUSTER).verb is Verb.READY
    assert judge(Observation(replace(made, pods=own), ray=ray()), awaiting=Awaiting.CLUSTER).verb is Verb.READY


@pytest.mark.parametrize("view", [RayView(), RayView({}), ray("i-w1", "i-w2"), ray(gpus=1)])
def test_kubernetes_alone_does_not_make_a_cluster_ready(view: RayView) -> None:
    assert judge(Observation(cluster(), ray=view), awaiting=Awaiting.CLUSTER).verb is Verb.HOLD


def test_a_dead_node_that_ray_still_lists_does_not_stand_in_for_its_replacement() -> None:
    stale = ray("i-w1", "i-w2", "i-w3")  # i-new has joined Kubernetes but not Ray
    assert judge(Observation(REPLACED, ray=stale), awaiting=Awaiting.CLUSTER).verb is Verb.HOLD
    joined = ray("i-w1", "i-w2", "i-w3", "i-new")
    assert judge(Observation(REPLACED, ray=joined), awaiting=Awaiting.CLUSTER).verb is Verb.READY


def test_an_image_that_cannot_be_pulled_is_not_waited_for() -> None:
    pods = cluster().pods
    broken = tuple(
        replace(p, ready=False, instance_id=None, waiting_reason="ImagePullBackOff: not found") for p in pods
    )
    decision = judge(Observation(cluster(pods=broken, ready_workers=0)), awaiting=Awaiting.CLUSTER)
    assert (decision.verb, decision.cause) == (Verb.FAILED, EndCause.BAD_IMAGE)


def test_a_wait_for_nodes_is_watched_closely_then_left_to_signals_then_asked_about() -> None:
    missing = Observation(cluster("i-head", "i-w1", "i-w2"), ray=ray("i-w1", "i-w2"))
    limit = timedelta(minutes=90)
    after = {t: judge(missing, run(waiting_since=NOW - t), Awaiting.CLUSTER) for t in (HOLD_FOR, limit, limit * 2)}
    assert {d.verb for d in after.values()} == {Verb.NAP}
    assert [d.ask for d in after.values()] == [None, None, EndCause.CAPACITY_MISSING]


def asked(**changes: Any) -> Question:
    until = NOW + timedelta(hours=1)
    base = {"cause": EndCause.CAPACITY_MISSING, "text": "Nodes are missing.", "asked_at": NOW, "until": until}
    return Question.model_validate(base | changes)


def test_a_question_is_put_once_and_ends_the_run_only_when_it_is_over_or_answered_with_give_up() -> None:
    missing = Observation(cluster("i-head", "i-w1", "i-w2"), ray=ray("i-w1", "i-w2"))
    late = {"waiting_since": NOW - timedelta(hours=3)}
    open_ = judge(missing, run(question=asked(), **late), Awaiting.CLUSTER)
    assert (open_.verb, open_.ask) == (Verb.NAP, None)
    for ended in (asked(until=NOW), asked(given_up_by="team")):
        over = judge(missing, run(question=ended, **late), Awaiting.CLUSTER)
        assert (over.verb, over.cause) == (Verb.FAILED, EndCause.CAPACITY_MISSING)
    whole = Observation(cluster(), ray=ray("i-w1", "i-w2", "i-w3"))
    assert judge(whole, run(question=asked(until=NOW), **late), Awaiting.CLUSTER).verb is Verb.READY


def test_a_fence_with_an_open_question_waits_for_its_answer_and_is_ready_without_one() -> None:
    over = Observation(cluster(), JobView(JobState.FAILED), ray=replace(ray(), live_actors=0))
    fenced = run(state=RunState.RECOVERING)
    assert judge(over, fenced, Awaiting.FENCE).verb is Verb.READY
    assert judge(over, fenced.model_copy(update={"question": asked()}), Awaiting.FENCE).verb is Verb.NAP
    ended = fenced.model_copy(update={"question": asked(until=NOW)})
    assert judge(over, ended, Awaiting.FENCE).verb is Verb.FAILED


@pytest.mark.parametrize(
    ("job", "actors", "verb", "stop"),
    [
        (JobState.FAILED, 0, Verb.READY, False),
        (JobState.MISSING, 0, Verb.READY, False),
        (JobState.FAILED, 3, Verb.HOLD, True),
        (JobState.FAILED, None, Verb.HOLD, True),
        (JobState.RUNNING, 0, Verb.HOLD, True),
        (JobState.UNREACHABLE, None, Verb.HOLD, True),
    ],
)
def test_a_fence_holds_until_the_job_is_over_and_no_actor_lives(
    job: JobState, actors: int | None, verb: Verb, stop: bool
) -> None:
    seen = Observation(cluster(), JobView(job), ray=ray(actors=actors))
    decision = judge(seen, run(state=RunState.RECOVERING), Awaiting.FENCE)
    assert (decision.verb, decision.stop_job) == (verb, stop)


def test_gpus_are_given_back_only_when_cluster_and_pods_are_gone() -> None:
    leaving = run(state=RunState.TEARDOWN)
    assert judge(Observation(ClusterView(False, pods=cluster().pods)), leaving, Awaiting.FENCE).verb is Verb.HOLD
    assert judge(Observation(ClusterView(False)), leaving, Awaiting.FENCE).verb is Verb.READY


@pytest.mark.parametrize(
    ("holder", "first", "verb"),
    [
        (None, "maze-1", Verb.READY),
        (None, "other", Verb.NAP),
        ("other", "maze-1", Verb.NAP),
        ("maze-1", None, Verb.READY),
    ],
)
def test_a_pool_is_taken_in_turn(holder: str | None, first: str | None, verb: Verb) -> None:
    seen = Observation(ClusterView(False), lease_holder=holder, next_in_line=first)
    assert judge(seen, awaiting=Awaiting.LEASE).verb is verb
