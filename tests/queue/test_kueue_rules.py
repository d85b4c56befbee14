"""What Kueue says about a run, and what follows: one condition, one moment at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.job import OutcomeCause
from nightshift.contract.spec import Priority
from nightshift.core.causes import EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import (
    UNKNOWN_CLUSTER,
    ClusterView,
    JobState,
    JobView,
    Observation,
    RayView,
    WorkloadView,
)
from nightshift.core.queueing import (
    QUEUE_DEADLINE,
    Standing,
    admission,
    is_news,
    noted,
    preempted,
    standing,
    workload_view,
)
from nightshift.core.raycluster import PRIORITY_LABEL, QUEUE_LABEL, Placement, raycluster_manifest
from nightshift.core.run import Awaiting, Question, Run, RunState
from tests.builders import NOW, cluster, outcome, progress, ray, run, spec

PLACE = Placement(namespace="ns", service_account="sa", shared_claim="claim")
ADMITTED_AT = NOW - timedelta(hours=2)
ADMITTED = WorkloadView(quota_reserved=True, admitted=True, admitted_at=ADMITTED_AT)
EVICTED = WorkloadView(quota_reserved=True, evicted="Preempted", message="a more important one")
MISSING_QUEUE = WorkloadView(refused="Inadmissible", message="LocalQueue team doesn't exist")
WAITING = WorkloadView(message="insufficient unused quota")
NO_PODS = ClusterView(exists=True, suspended=True, workload=WAITING)


def queued(**changes: Any) -> Run:
    return run(**({"queue": "team", "admitted_at": ADMITTED_AT, "leased_at": ADMITTED_AT} | changes))


def look(seen: Observation, on: Run, awaiting: Awaiting = Awaiting.CLUSTER, **budgets: Any) -> Decision:
    return decide(on, spec(queue="team", budgets=budgets), awaiting, seen, NOW)


def condition(kind: str, status: str, reason: str = "", message: str = "", at: str = "2026-11-30T01:00:00Z") -> Any:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def workload(*conditions: Any, **spec_fields: Any) -> WorkloadView:
    return workload_view({"spec": {"active": True, **spec_fields}, "status": {"conditions": list(conditions)}})


# what Kueue says -------------------------------------------------------------------------------------------------

QUOTA, YES = condition("QuotaReserved", "True", "QuotaReserved"), condition("Admitted", "True", "Admitted")
OVER = condition("Evicted", "False", "QuotaReserved", "Previously: preempted")

SAYINGS = {
    "nothing yet": (workload(), Standing.WAITING),
    "waits": (workload(condition("QuotaReserved", "False", "Pending", "2 more needed")), Standing.WAITING),
    "quota but a check is open": (workload(QUOTA, condition("Admitted", "False")), Standing.WAITING),
    "admitted": (workload(QUOTA, YES), Standing.ADMITTED),
    "admitted again after an eviction": (workload(QUOTA, YES, OVER), Standing.ADMITTED),
    "evicted while pods still run": (workload(QUOTA, YES, condition("Evicted", "True", "Preempted")), Standing.EVICTED),
    "no such queue": (workload(condition("QuotaReserved", "False", "Inadmissible", "no queue")), Standing.REFUSED),
    "larger than the quota": (
        workload(condition("QuotaReserved", "False", "Pending", "request > maximum capacity (6 > 4)")),
        Standing.REFUSED,
    ),
    "deactivated": (workload(condition("Evicted", "True", "DeactivatedDueToRequeuingLimitExceeded")), Standing.REFUSED),
    "switched off": (workload(active=False), Standing.REFUSED),
}


@pytest.mark.parametrize(("said", "stands"), SAYINGS.values(), ids=SAYINGS)
def test_conditions_are_read_as_kueue_means_them(said: WorkloadView, stands: Standing) -> None:
    assert standing(cluster(workload=said)) is stands


def test_the_moment_of_admission_is_kept_and_only_while_it_holds() -> None:
    assert workload(QUOTA, YES).admitted_at == ADMITTED_AT - timedelta(0)
    assert workload(condition("Admitted", "False")).admitted_at is None


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda c: st.lists(c, max_size=3))


@given(JSON, JSON, JSON, st.sampled_from(["QuotaReserved", "Admitted", "Evicted", "Preempted"]))
def test_garbage_in_a_workload_never_raises_and_never_admits(a: Any, b: Any, c: Any, kind: str) -> None:
    for document in (
        {"status": a, "spec": b},
        {"status": {"conditions": a}},
        {
            "status": {
                "conditions": [a, {"type": kind, "status": b, "reason": c, "message": a, "lastTransitionTime": b}]
            }
        },
    ):
        seen = workload_view(document)
        assert not seen.admitted and len(seen.message) <= 300


def test_a_message_is_bounded() -> None:
    assert len(workload(condition("QuotaReserved", "False", "Pending", "x" * 30_000)).message) <= 300


# labels ----------------------------------------------------------------------------------------------------------


def test_the_queue_is_on_the_raycluster_and_on_both_pod_templates_and_it_starts_suspended() -> None:
    made = raycluster_manifest(spec(queue="team"), "me", PLACE)
    templates = [made["spec"]["headGroupSpec"]["template"], made["spec"]["workerGroupSpecs"][0]["template"]]
    assert [o["metadata"]["labels"].get(QUEUE_LABEL) for o in (made, *templates)] == ["team"] * 3
    assert [PRIORITY_LABEL in o["metadata"]["labels"] for o in (made, *templates)] == [False] * 3
    assert made["spec"]["suspend"] is True


def test_an_urgent_run_names_its_priority_class() -> None:
    made = raycluster_manifest(spec(queue="team", priority="urgent"), "me", PLACE)
    assert made["metadata"]["labels"][PRIORITY_LABEL] == "urgent-priority"


def test_without_a_queue_nothing_of_kueue_is_in_the_manifest() -> None:
    made = raycluster_manifest(spec(priority="urgent"), "me", PLACE)
    assert "kueue" not in str(made) and "suspend" not in made["spec"]


def test_a_queue_of_task_governance_fits_into_a_spec_and_a_label() -> None:
    assert spec(queue="hyperpod-ns-a-team-with-a-long-name-localqueue").priority is Priority.NORMAL


# the wait for admission ------------------------------------------------------------------------------------------


def test_a_lease_is_never_waited_for_where_kueue_admits() -> None:
    held = Observation(ClusterView(exists=False), lease_holder="other", next_in_line="another")
    assert look(held, queued(state=RunState.QUEUED), Awaiting.LEASE).verb is Verb.READY
    assert look(held, run(state=RunState.QUEUED), Awaiting.LEASE).verb is Verb.NAP


def test_weeks_in_a_queue_that_moves_are_no_reason_to_ask_and_what_kueue_says_is_shown() -> None:
    waits = queued(waiting_since=NOW - timedelta(days=29))
    decision = look(Observation(NO_PODS), waits, node_wait_minutes=1)
    assert (decision.verb, decision.ask) == (Verb.NAP, None)
    assert "insufficient unused quota" in decision.why and "team" in decision.why


def test_after_thirty_days_somebody_is_asked_once() -> None:
    late = queued(waiting_since=NOW - QUEUE_DEADLINE - timedelta(seconds=1))
    asked = look(Observation(NO_PODS), late)
    assert (asked.verb, asked.ask) == (Verb.NAP, EndCause.QUOTA_MISSING)
    open_question = Question(cause=EndCause.QUOTA_MISSING, text="?", asked_at=NOW, until=NOW + timedelta(hours=1))
    assert look(Observation(NO_PODS), late.model_copy(update={"question": open_question})).ask is None


@pytest.mark.parametrize("workload", [MISSING_QUEUE, None], ids=["refused", "kueue does not know it"])
def test_what_can_never_be_admitted_is_asked_about_after_the_node_wait_and_not_before(workload: WorkloadView) -> None:
    seen = Observation(replace(NO_PODS, workload=workload))
    minutes = timedelta(minutes=90)
    for since, ask in ((minutes, None), (minutes + timedelta(seconds=1), EndCause.QUOTA_MISSING)):
        stuck = queued(waiting_since=NOW - timedelta(days=1), stuck_since=NOW - since)
        decision = look(seen, stuck)
        assert (decision.verb, decision.ask) == (Verb.NAP, ask)
    assert ("90 minutes" in decision.why and "cannot be admitted" in decision.why) or "no Workload" in decision.why


def test_go_on_gives_a_stuck_queue_its_whole_time_again() -> None:
    answered = queued(waiting_since=NOW - timedelta(minutes=1), stuck_since=NOW - timedelta(days=1))
    assert look(Observation(replace(NO_PODS, workload=MISSING_QUEUE)), answered).ask is None


def test_a_question_counts_only_while_what_it_asked_about_lasts() -> None:
    over = Question(
        cause=EndCause.QUOTA_MISSING, text="?", asked_at=NOW - timedelta(days=2), until=NOW - timedelta(days=1)
    )
    asked = queued(question=over, stuck_since=NOW - timedelta(days=3), waiting_since=NOW - timedelta(days=4))
    stuck, moving = (Observation(replace(NO_PODS, workload=w)) for w in (MISSING_QUEUE, WAITING))
    assert look(stuck, asked).verb is Verb.FAILED
    repaired = asked.model_copy(update=noted(asked, moving.cluster, NOW))
    assert repaired.question is None and repaired.stuck_since is None
    assert look(moving, repaired).verb is Verb.NAP
    assert look(moving, asked.model_copy(update={"stuck_since": None})).verb is Verb.NAP, "even before it is noted"
    given_up = over.model_copy(update={"given_up_by": "somebody"})
    refused = asked.model_copy(update={"question": given_up, "stuck_since": None})
    assert look(moving, refused).verb is Verb.FAILED
    assert "question" not in noted(refused, moving.cluster, NOW)


def test_nodes_are_waited_for_from_the_admission_on() -> None:
    at = NOW - timedelta(minutes=89)
    view = cluster(pods=(), ready_workers=0, head_ready=False, workload=replace(ADMITTED, admitted_at=at))
    since = queued(waiting_since=NOW - timedelta(days=20))
    assert look(Observation(view), since).ask is None
    later = replace(view, workload=replace(ADMITTED, admitted_at=NOW - timedelta(minutes=91)))
    assert look(Observation(later), since).ask is EndCause.CAPACITY_MISSING


def test_pods_that_a_policy_refuses_are_named_in_the_question() -> None:
    denied = replace(cluster(pods=(), head_ready=False), workload=ADMITTED, pods_refused="the label is missing")
    decision = look(Observation(denied), queued(waiting_since=NOW - timedelta(hours=3)))
    assert decision.ask is EndCause.CAPACITY_MISSING and "the label is missing" in decision.why


@pytest.mark.parametrize("view", [WAITING, EVICTED, MISSING_QUEUE, None])
def test_a_whole_cluster_is_not_ready_before_kueue_says_so(view: WorkloadView | None) -> None:
    whole = Observation(cluster(workload=view), ray=ray())
    assert look(whole, queued()).verb is not Verb.READY
    assert look(Observation(cluster(workload=ADMITTED), ray=ray()), queued()).verb is Verb.READY
    suspended = Observation(cluster(workload=ADMITTED, suspended=True), ray=ray())
    assert look(suspended, queued()).verb is not Verb.READY


def test_a_cancelled_run_leaves_the_queue() -> None:
    assert look(Observation(NO_PODS), queued(cancel_requested=True)).verb is Verb.CANCELLED


def test_a_raycluster_that_is_gone_is_created_again_for_a_queued_run_too() -> None:
    assert look(Observation(ClusterView(exists=False)), queued()).create_cluster


# preemption ------------------------------------------------------------------------------------------------------

TAKEN = {
    "evicted, pods still there": cluster(workload=EVICTED),
    "evicted, half of the pods gone": cluster("i-head", "i-w1", workload=EVICTED),
    "suspended, no pods": replace(NO_PODS, workload=WAITING),
    "suspended, workloads cannot be read": replace(NO_PODS, workload=None),
    "the RayCluster is gone": ClusterView(exists=False),
    "admitted again between two looks": cluster(
        "i-head2", "i-w4", "i-w5", "i-w6", workload=replace(ADMITTED, admitted_at=NOW - timedelta(minutes=1))
    ),
}


@pytest.mark.parametrize("job", list(JobState))
@pytest.mark.parametrize("view", TAKEN.values(), ids=TAKEN)
def test_preemption_is_recognised_whatever_ray_says(view: ClusterView, job: JobState) -> None:
    decision = look(Observation(view, JobView(job), progress=progress()), queued(), Awaiting.ATTEMPT)
    assert (decision.verb, decision.cause, decision.node) == (Verb.RECOVER, EndCause.PREEMPTED, None)


NOT_TAKEN = {
    "a node died": cluster("i-head", "i-w1", "i-w2", "i-new", workload=ADMITTED),
    "pods are missing, and Kueue is content": cluster(pods=(), workload=ADMITTED),
    "Kubernetes does not answer": UNKNOWN_CLUSTER,
    "workloads cannot be read": cluster(workload=None),
    "all is well": cluster(workload=ADMITTED),
}


@pytest.mark.parametrize("view", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_nothing_else_is_taken_for_preemption(view: ClusterView) -> None:
    assert preempted(queued(), view) is None
    decision = look(Observation(view, JobView(JobState.RUNNING), progress=progress()), queued(), Awaiting.ATTEMPT)
    assert decision.cause is not EndCause.PREEMPTED


@pytest.mark.parametrize("view", TAKEN.values(), ids=TAKEN)
def test_a_run_without_a_queue_is_never_preempted_by_kueue(view: ClusterView) -> None:
    assert preempted(run(), view) is None


def test_a_job_that_had_done_all_of_its_work_when_it_was_preempted_succeeded() -> None:
    seen = Observation(replace(NO_PODS, workload=EVICTED), JobView(JobState.UNREACHABLE), evidence=True)
    assert look(seen, queued(), Awaiting.ATTEMPT).verb is Verb.SUCCEEDED


def test_a_job_that_reports_lost_workers_while_kueue_takes_them_was_preempted() -> None:
    said = outcome(OutcomeCause.WORKER_LOST, exit_code=75)
    seen = Observation(cluster(workload=EVICTED), JobView(JobState.FAILED), outcome=said)
    assert look(seen, queued(), Awaiting.ATTEMPT).cause is EndCause.PREEMPTED


def test_a_configuration_that_the_job_refused_stays_the_cause() -> None:
    said = outcome(OutcomeCause.BAD_CONFIGURATION, exit_code=65)
    seen = Observation(cluster(workload=EVICTED), JobView(JobState.FAILED), outcome=said)
    assert look(seen, queued(), Awaiting.ATTEMPT).cause is EndCause.BAD_CONFIGURATION


def test_preemption_spends_no_recovery_however_often() -> None:
    spent = queued(recoveries_without_progress=3, recovery_floor=20, verified_step=20)
    seen = Observation(NO_PODS, JobView(JobState.UNREACHABLE), progress=progress())
    assert look(seen, spent, Awaiting.ATTEMPT, max_recoveries_without_progress=3).verb is Verb.RECOVER


FENCING = {"state": RunState.RECOVERING, "cause": EndCause.PREEMPTED}


def test_the_fence_needs_no_ray_once_the_suspended_cluster_has_no_pods() -> None:
    unreachable = JobView(JobState.UNREACHABLE)
    assert look(Observation(NO_PODS, unreachable), queued(**FENCING), Awaiting.FENCE).verb is Verb.READY
    dying = Observation(cluster(workload=EVICTED, suspended=True), unreachable)
    assert look(dying, queued(**FENCING), Awaiting.FENCE).verb is not Verb.READY
    unknown = Observation(UNKNOWN_CLUSTER, unreachable)
    assert look(unknown, queued(**FENCING), Awaiting.FENCE).verb is not Verb.READY
    still_ours = Observation(cluster(workload=ADMITTED), unreachable)
    assert look(still_ours, queued(**FENCING), Awaiting.FENCE).verb is not Verb.READY
    anew = Observation(TAKEN["admitted again between two looks"], unreachable)
    assert look(anew, queued(**FENCING), Awaiting.FENCE).verb is Verb.READY
    assert look(anew, run(**FENCING), Awaiting.FENCE).verb is not Verb.READY


# the record ------------------------------------------------------------------------------------------------------


def test_wall_hours_begin_with_the_first_admission_and_stand_still_in_the_queue() -> None:
    whole = cluster(workload=ADMITTED)
    first = admission(run(queue="team"), whole, NOW)
    assert (first["admitted_at"], first["leased_at"]) == (ADMITTED_AT, ADMITTED_AT)
    evicted = queued(recovering_since=ADMITTED_AT + timedelta(minutes=30))
    again = replace(whole, workload=replace(ADMITTED, admitted_at=ADMITTED_AT + timedelta(minutes=100)))
    assert admission(evicted, again, NOW)["leased_at"] == ADMITTED_AT + timedelta(minutes=70)
    same = admission(evicted, whole, NOW)
    assert "leased_at" not in same, "a node that was replaced under the same admission costs its time"
    assert admission(run(), cluster(), NOW) == {}


def test_what_a_run_waits_for_is_news_when_it_changes_and_not_with_every_number() -> None:
    waits = queued(waiting_for="")
    text = noted(waits, NO_PODS, NOW)["waiting_for"]
    other = noted(waits, replace(NO_PODS, workload=replace(WAITING, message="1 more needed")), NOW)["waiting_for"]
    refused = noted(waits, replace(NO_PODS, workload=MISSING_QUEUE), NOW)
    assert is_news("", text) and not is_news(text, other) and is_news(text, refused["waiting_for"])
    assert refused["stuck_since"] == NOW
    assert noted(waits.model_copy(update={"waiting_for": text}), NO_PODS, NOW) == {}, "nothing to write"
    assert noted(run(), NO_PODS, NOW) == {}, "not a matter of Kueue"


def test_the_first_moment_of_being_stuck_is_kept() -> None:
    stuck = queued(stuck_since=NOW - timedelta(minutes=5))
    assert "stuck_since" not in noted(stuck, replace(NO_PODS, workload=MISSING_QUEUE), NOW)


def test_ray_is_asked_for_gpus_only_on_pods_that_are_there() -> None:
    assert RayView({"ip-i-w1": 2}).gpus_of(NO_PODS) == 0
