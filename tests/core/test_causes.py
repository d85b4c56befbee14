"""What an end is called, who is blamed for it, and what follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from nightshift.contract.control import ControlCommand
from nightshift.contract.job import OutcomeCause
from nightshift.core.blame import after_blame
from nightshift.core.causes import POLICIES, Action, EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import ClusterView, JobState, JobView, Observation
from nightshift.core.run import Awaiting, Run
from tests.builders import NOW, attempt, cluster, outcome, progress, run, spec

PREEMPTION = "PreemptionByScheduler: preempting to accommodate a higher priority pod"
TAINT = "DeletionByTaintManager: Taint manager: deleting due to NoExecute taint"


def with_pod(instance: str, **changes: Any) -> ClusterView:
    whole = cluster()
    return replace(whole, pods=tuple(replace(p, **changes) if p.instance_id == instance else p for p in whole.pods))


def judged(view: ClusterView, state: JobState = JobState.FAILED, message: str = "", **more: Any) -> Decision:
    on = more.pop("on", run())
    asked = more.pop("asked", spec())
    seen = Observation(view, JobView(state, message), attempts=(attempt(),), **more)
    return decide(on, asked, Awaiting.ATTEMPT, seen, NOW)


def test_every_policy_is_whole_and_says_how_long_what_follows_may_take() -> None:
    for cause, policy in POLICIES.items():
        assert policy.sentence.endswith(".") and policy.sentence[0].isupper() and len(policy.sentence) <= 300, cause
        assert bool(policy.deadline) == policy.action.goes_on, cause
        if policy.action is Action.ASK:
            assert "budgets.ask_hours" in policy.deadline and "go on" in policy.sentence


# What pods know better


def test_a_worker_whose_pod_was_preempted_is_waited_for_and_no_node_is_blamed() -> None:
    view = with_pod("i-w2", ready=False, ended="Error, exit code 137", exit_code=137, disruption=PREEMPTION)
    decision = judged(view, message="ActorDiedError: its node has died")
    assert (decision.verb, decision.cause, decision.node) == (Verb.RECOVER, EndCause.PREEMPTED, None)
    assert "PreemptionByScheduler" in decision.why and "ActorDiedError" in decision.why


def test_exit_137_without_a_condition_must_not_be_called_a_preemption() -> None:
    decision = judged(with_pod("i-w2", ended="Error, exit code 137", exit_code=137), message="ActorDiedError")
    assert decision.cause is EndCause.WORKER_FAILED


def test_a_taint_of_a_dying_node_must_not_be_called_a_preemption_and_blames_that_node() -> None:
    decision = judged(with_pod("i-w2", ready=False, disruption=TAINT), message="ActorDiedError")
    assert (decision.cause, decision.node) == (EndCause.WORKER_FAILED, "i-w2")


def test_a_pod_that_was_killed_for_its_memory_is_no_mere_dead_worker_and_its_node_is_innocent() -> None:
    view = with_pod("i-w2", ended="OOMKilled, exit code 137", exit_code=137)
    decision = judged(view, outcome=outcome(OutcomeCause.WORKER_LOST, exit_code=75))
    assert (decision.verb, decision.cause, decision.node) == (Verb.RECOVER, EndCause.HOST_OUT_OF_MEMORY, None)


def test_an_end_from_before_the_attempt_must_not_explain_it() -> None:
    oom: dict[str, Any] = {"ended": "OOMKilled, exit code 137", "exit_code": 137}
    old = with_pod("i-w2", ended_at=NOW - timedelta(hours=2), **oom)
    assert judged(old, message="ActorDiedError").cause is EndCause.WORKER_FAILED
    fresh = with_pod("i-w2", ended_at=NOW - timedelta(minutes=2), **oom)
    assert judged(fresh, message="ActorDiedError").cause is EndCause.HOST_OUT_OF_MEMORY


def test_a_head_that_was_preempted_or_ran_out_of_memory_is_no_mere_lost_head() -> None:
    assert judged(cluster(), JobState.MISSING).cause is EndCause.HEAD_LOST
    taken = with_pod("i-head", ready=False, disruption=PREEMPTION)
    assert judged(taken, JobState.MISSING).cause is EndCause.PREEMPTED
    elsewhere = cluster("i-new", "i-w1", "i-w2", "i-w3")
    assert judged(elsewhere, JobState.MISSING).cause is EndCause.HEAD_LOST
    assert judged(elsewhere, JobState.MISSING, on=run(taken_away=("i-head",))).cause is EndCause.PREEMPTED
    killed = with_pod("i-head", ended="OOMKilled, exit code 137")
    assert judged(killed, JobState.MISSING).cause is EndCause.HOST_OUT_OF_MEMORY


def test_an_error_of_the_code_while_an_instance_of_the_run_is_lost_is_that_loss_and_does_not_end_the_run() -> None:
    told = outcome(OutcomeCause.CODE_ERROR, exit_code=70, step=0, message="JSONDecodeError: line 1 column 1")
    gone = cluster("i-head", "i-w1", "i-w3", "i-new")
    for view, cause, node in (
        (gone, EndCause.NODE_LOST, "i-w2"),
        (with_pod("i-w2", ready=False, disruption=TAINT), EndCause.WORKER_FAILED, "i-w2"),
        (replace(cluster(), silent_instances=frozenset({"i-w2"})), EndCause.WORKER_FAILED, "i-w2"),
        (with_pod("i-w2", ready=False, disruption=PREEMPTION), EndCause.PREEMPTED, None),
        (with_pod("i-w2", ended="OOMKilled, exit code 137"), EndCause.HOST_OUT_OF_MEMORY, None),
    ):
        decision = judged(view, outcome=told)
        assert (decision.verb, decision.cause, decision.node) == (Verb.RECOVER, cause, node)
        assert "JSONDecodeError" in decision.why, "what the job said is kept"


def test_an_error_of_the_code_on_whole_nodes_must_not_be_tried_again_before_the_first_new_step() -> None:
    told = outcome(OutcomeCause.CODE_ERROR, exit_code=70, step=0)
    strange = replace(cluster(), silent_instances=frozenset({"i-stranger"}))
    for view in (cluster(), strange, replace(cluster(), unhealthy_instances=frozenset({"i-w2"}))):
        decision = judged(view, outcome=told)
        assert (decision.verb, decision.cause) == (Verb.FAILED, EndCause.CODE_ERROR)


@pytest.mark.parametrize("sure", [OutcomeCause.BAD_CONFIGURATION, OutcomeCause.STORAGE_FULL])
def test_what_the_job_knows_for_sure_must_not_be_explained_away_by_a_pod(sure: OutcomeCause) -> None:
    view = with_pod("i-w2", ended="OOMKilled, exit code 137", disruption=PREEMPTION)
    assert judged(view, outcome=outcome(sure, exit_code=70)).cause == EndCause(sure.value)


def test_a_pod_that_is_being_taken_away_gets_a_checkpoint_asked_for_and_is_remembered_when_it_is_gone() -> None:
    view = with_pod("i-w2", disruption=PREEMPTION)
    alive = judged(view, JobState.RUNNING, progress=progress())
    assert (alive.verb, alive.control) == (Verb.NAP, ControlCommand.CHECKPOINT_NOW)
    gone = cluster("i-head", "i-w1", "i-w3", "i-new")
    assert judged(gone, JobState.RUNNING, on=run(taken_away=("i-w2",))).cause is EndCause.PREEMPTED
    assert judged(gone, JobState.RUNNING).cause is EndCause.NODE_LOST


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Job entrypoint failed: [Rank 1] Watchdog caught collective operation timeout", EndCause.NCCL_FAILURE),
        ("CUDA out of memory. Tried to allocate 2 GiB", EndCause.GPU_OUT_OF_MEMORY),
        ("Job supervisor actor could not be scheduled", EndCause.WORKER_FAILED),
    ],
)
def test_without_a_word_of_the_job_rays_message_names_the_cause(message: str, cause: EndCause) -> None:
    assert judged(cluster(), message=message).cause is cause


# Blame


@pytest.mark.parametrize(
    "said",
    [
        "NCCL error in rank 3 at 10.1.4.17: ncclRemoteError",
        "ActorDiedError: ip: 10.1.4.17\nThe actor died",
        "ActorDiedError on pod-i-w2",
        "ActorDiedError on hyperpod-i-w2.local",
    ],
)
def test_the_node_that_rays_message_names_is_blamed(said: str) -> None:
    assert judged(with_pod("i-w2", ip="10.1.4.17"), message=said).node == "i-w2"


@pytest.mark.parametrize(
    "said",
    [
        "NCCL error at 10.1.4.170",
        "NCCL error at 210.1.4.17",
        "NCCL error of head ip-i-head",
        "NCCL error between 10.1.4.17 and ip-i-w1",
        "CUDA out of memory at 10.1.4.17",
        "ActorDiedError",
    ],
    ids=["longer", "other", "the head", "two of them", "no fault of a node", "nobody"],
)
def test_nothing_must_be_blamed_that_nothing_points_to(said: str) -> None:
    assert judged(with_pod("i-w2", ip="10.1.4.17"), message=said).node is None


def test_an_unhealthy_instance_is_blamed_before_one_that_is_named_and_a_lost_one_before_both() -> None:
    troubled = replace(with_pod("i-w2", ip="10.1.4.17"), unhealthy_instances=frozenset({"i-w1", "i-stranger"}))
    assert judged(troubled, message="ActorDiedError at 10.1.4.17").node == "i-w1"
    gone = cluster("i-head", "i-w1", "i-w2", "i-new", unhealthy_instances=frozenset({"i-w1"}))
    assert judged(gone, message="ActorDiedError").node == "i-w3"


def test_the_second_blame_excludes_and_the_third_has_nothing_more_to_say() -> None:
    blamed, twice = after_blame((), "i-w1")
    assert (blamed, twice) == (("i-w1",), None)
    blamed, twice = after_blame((*blamed, "i-w2"), "i-w1")
    assert (blamed, twice) == (("i-w1", "i-w2", "i-w1"), "i-w1")
    assert after_blame(blamed, "i-w1")[1] is None and after_blame(blamed, None) == (blamed, None)


# Ask, and smaller values


def test_a_full_filesystem_is_asked_about_once_and_the_attempt_is_fenced_meanwhile() -> None:
    full = {"outcome": outcome(OutcomeCause.STORAGE_FULL, exit_code=75)}
    first = judged(cluster(), **full)
    assert (first.verb, first.cause, first.ask) == (Verb.RECOVER, EndCause.STORAGE_FULL, EndCause.STORAGE_FULL)
    spent: dict[str, Any] = {"recoveries_without_progress": 3, "verified_step": 0}
    assert judged(cluster(), on=run(**spent), **full).verb is Verb.RECOVER, "a person decides, not the budget"


def out_of_memory(on: Run, **recovery: Any) -> Decision:
    asked = spec(recovery=recovery)
    return judged(cluster(), outcome=outcome(OutcomeCause.GPU_OUT_OF_MEMORY, exit_code=70), on=on, asked=asked)


def test_out_of_memory_is_tried_once_more_with_smaller_values_where_the_spec_names_them() -> None:
    smaller = {"on_out_of_memory": {"gpu_memory_utilization": 0.3}}
    once = out_of_memory(run(), **smaller)
    assert (once.verb, once.cause, once.smaller) == (Verb.RECOVER, EndCause.GPU_OUT_OF_MEMORY, True)
    again = out_of_memory(run(smaller=True), **smaller)
    assert (again.verb, again.cause, again.smaller) == (Verb.FAILED, EndCause.GPU_OUT_OF_MEMORY, False)
    assert out_of_memory(run()).verb is Verb.FAILED
    spent = out_of_memory(run(recoveries_without_progress=3), **smaller)
    assert spent.verb is Verb.FAILED and spent.cause is EndCause.BUDGET_SPENT
