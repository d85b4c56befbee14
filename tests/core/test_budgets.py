"""What a run may spend: recoveries, repeats of one fault, hours and dollars."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.job import OutcomeCause
from nightshift.contract.spec import RunSpec, Topology
from nightshift.core.admission import check_spec
from nightshift.core.budgets import crash_loop, recoveries_after, spend_of, spent_budget
from nightshift.core.causes import POLICIES, Action, EndCause, from_outcome
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import JobState, JobView, Observation
from nightshift.core.prices import OLD, PRICES, hourly, is_old
from nightshift.core.run import Attempt, Awaiting, Run
from tests.builders import NOW, attempt, cluster, outcome, progress, ray, run, spec, spec_json

HOUR = timedelta(hours=1)


def ended(cause: EndCause, *saved: int) -> tuple[Attempt, ...]:
    """Attempts that ended for the cause with these saved steps, and the current one after the last."""
    made = [attempt(n, end_cause=cause, ended_at=NOW, last_saved_step=step) for n, step in enumerate(saved, 1)]
    return (*made, attempt(len(made) + 1, floor=saved[-1] if saved else 0, last_saved_step=saved[-1] if saved else 0))


def failed(cause: OutcomeCause, attempts: tuple[Attempt, ...], on: Run | None = None, **told: Any) -> Decision:
    base = {"step": 25, "resumed_step": 20, "saved_step": 20, "exit_code": 70}
    seen = Observation(cluster(), JobView(JobState.FAILED), outcome=outcome(cause, **(base | told)), attempts=attempts)
    return decide(on or run(verified_step=20), spec(), Awaiting.ATTEMPT, seen, NOW)


# Crash loops


@pytest.mark.parametrize(
    ("cause", "times"),
    [(OutcomeCause.CODE_ERROR, 2), (OutcomeCause.HOST_OUT_OF_MEMORY, 2), (OutcomeCause.NCCL_FAILURE, 3)],
)
def test_the_same_end_at_the_same_step_is_tried_again_only_so_often_and_said_to_be_why(
    cause: OutcomeCause, times: int
) -> None:
    for before in range(times - 1):
        assert failed(cause, ended(from_outcome(cause), *[20] * before)).verb is Verb.RECOVER
    last = failed(cause, ended(from_outcome(cause), *[20] * (times - 1)))
    assert (last.verb, last.cause, last.stop_job) == (Verb.FAILED, from_outcome(cause), True)
    assert "time after saved step 20" in last.why and "as it was" in last.why


@pytest.mark.parametrize("cause", [OutcomeCause.CODE_ERROR, OutcomeCause.NCCL_FAILURE])
def test_the_same_end_elsewhere_and_another_end_here_must_not_count(cause: OutcomeCause) -> None:
    mine = from_outcome(cause)
    assert failed(cause, ended(mine, 0, 5, 10)).verb is Verb.RECOVER
    others = ended(EndCause.NODE_LOST, 20, 20)
    assert failed(cause, others, run(verified_step=20, recovery_floor=10)).verb is Verb.RECOVER


@given(st.sampled_from([c for c in EndCause if POLICIES[c].action in (Action.WAIT, Action.ASK)]), st.integers(0, 50))
def test_waiting_for_nodes_or_for_a_person_is_no_crash_and_spends_no_recovery(cause: EndCause, times: int) -> None:
    on = run(recoveries_without_progress=2)
    assert crash_loop(cause, 0, ended(cause, *[0] * times)) is None
    assert recoveries_after(on, cause) == 2 and recoveries_after(on, EndCause.NODE_LOST) == 3


def test_code_that_fails_before_its_first_new_step_is_given_up_at_once_and_later_it_is_tried_once_more() -> None:
    first = failed(OutcomeCause.CODE_ERROR, (attempt(),), run(), step=0, resumed_step=0, saved_step=0)
    assert (first.verb, first.cause) == (Verb.FAILED, EndCause.CODE_ERROR)
    again = failed(OutcomeCause.CODE_ERROR, ended(EndCause.NODE_LOST, 20), step=20)
    assert again.verb is Verb.FAILED, "it resumed at 20 and got no further"
    assert failed(OutcomeCause.CODE_ERROR, ended(EndCause.NODE_LOST, 20), step=21).verb is Verb.RECOVER


def test_fifty_faults_in_thirty_days_with_progress_between_them_end_nothing() -> None:
    on, attempts = run(leased_at=NOW, created_at=NOW), list[Attempt]()
    limits = spec(budgets={"wall_hours": 24 * 31})
    causes = (OutcomeCause.WORKER_LOST, OutcomeCause.NCCL_FAILURE, OutcomeCause.CODE_ERROR)
    for fault in range(1, 51):
        step, at = 20 * fault, NOW + timedelta(days=30) * fault / 50
        on = on.model_copy(update={"verified_step": step})
        current = attempt(fault, floor=step - 20, last_saved_step=step)
        told = outcome(causes[fault % 3], step=step + 5, resumed_step=step - 20, saved_step=step, exit_code=75)
        seen = Observation(cluster(), JobView(JobState.FAILED), outcome=told, attempts=(*attempts, current))
        decision = decide(on, limits, Awaiting.ATTEMPT, seen, at)
        assert decision.verb is Verb.RECOVER, (fault, decision.why)
        attempts.append(current.model_copy(update={"end_cause": decision.cause, "ended_at": at}))
        changes = {"recoveries_without_progress": recoveries_after(on, decision.cause), "recovery_floor": step}
        on = on.model_copy(update=changes)
        assert on.recoveries_without_progress == 1


# Time and money


def holding(hours: float, **changes: Any) -> Run:
    price = {"dollars_per_hour": 36.0, "prices_as_of": date(2026, 11, 1)}
    return run(leased_at=NOW - hours * HOUR, **(price | changes))


def test_spend_is_of_all_nodes_from_the_lease_to_the_end_and_stands_still_then() -> None:
    assert spend_of(run(leased_at=None, dollars_per_hour=36.0, prices_as_of=date(2026, 11, 1)), NOW).dollars == 0  # type: ignore[union-attr]
    living = spend_of(holding(2.5), NOW)
    assert living is not None and (living.dollars, living.prices_old) == (90.0, False)
    over = spend_of(holding(2.5, ended_at=NOW), NOW + 1_000 * HOUR)
    assert over == living
    assert spend_of(run(leased_at=NOW - HOUR), NOW) is None, "without a price nothing is claimed"


@pytest.mark.parametrize(("hours", "verb"), [(2.0, Verb.NAP), (2.01, Verb.FAILED)])
def test_a_run_ends_when_its_dollars_are_spent_and_not_before(hours: float, verb: Verb) -> None:
    seen = Observation(cluster(), JobView(JobState.RUNNING), progress=progress())
    decision = decide(holding(hours), spec(budgets={"dollars": 72}), Awaiting.ATTEMPT, seen, NOW)
    assert decision.verb is verb
    if verb is Verb.FAILED:
        assert (decision.cause, decision.stop_job) == (EndCause.BUDGET_SPENT, True)
        assert "72 attributed dollars are spent" in decision.why


@pytest.mark.parametrize("awaiting", [Awaiting.CLUSTER, Awaiting.FENCE])
def test_no_budget_is_passed_by_waiting_for_nodes_or_for_a_fence(awaiting: Awaiting) -> None:
    seen = Observation(cluster("i-head", "i-w1"), JobView(JobState.RUNNING), ray=ray("i-w1", actors=2))
    limits = spec(budgets={"wall_hours": 10})
    assert decide(holding(9), limits, awaiting, seen, NOW).verb in (Verb.HOLD, Verb.NAP)
    assert decide(holding(11), limits, awaiting, seen, NOW).cause is EndCause.BUDGET_SPENT
    assert decide(holding(11, queue="team"), limits, awaiting, seen, NOW).verb in (Verb.HOLD, Verb.NAP), (
        "a queue is free"
    )


def test_a_recovery_must_not_pass_a_budget_and_time_in_the_queue_must_not_count() -> None:
    lost = Observation(cluster("i-head", "i-w1", "i-w2", "i-new"), JobView(JobState.FAILED), attempts=(attempt(),))
    over = decide(holding(11), spec(budgets={"wall_hours": 10}), Awaiting.ATTEMPT, lost, NOW)
    assert (over.verb, over.cause) == (Verb.FAILED, EndCause.BUDGET_SPENT) and "node_lost" in over.why
    queued = run(created_at=NOW - 1_000 * HOUR, leased_at=None)
    assert spent_budget(queued, spec(budgets={"wall_hours": 10}), 0.0, NOW) is None


# Prices


def test_every_price_has_its_day_and_source_and_the_default_topology_has_a_price() -> None:
    assert all(p.dollars > 0 and p.as_of.year >= 2025 and len(p.source) > 20 for p in PRICES.values())
    costs = hourly(Topology())
    assert costs is not None
    assert costs.dollars == pytest.approx(PRICES["ml.r5d.16xlarge"].dollars + 3 * PRICES["ml.g7e.12xlarge"].dollars)
    assert costs.as_of == min(PRICES[t].as_of for t in ("ml.r5d.16xlarge", "ml.g7e.12xlarge"))


@pytest.mark.parametrize(("days", "old"), [(90, False), (91, True)])
def test_a_price_is_old_after_ninety_days(days: int, old: bool) -> None:
    day = date(2026, 9, 1)
    assert is_old(day, day + timedelta(days=days)) is old and timedelta(days=90) == OLD


UNPRICED = {"workers": {"instance_type": "ml.p9.48xlarge", "count": 3, "gpus": 2}}


def test_a_limit_in_dollars_without_a_price_is_refused_at_intake_and_only_then() -> None:
    refused = check_spec(spec_json(topology=UNPRICED, budgets={"dollars": 100}))
    assert isinstance(refused, list)
    [error] = refused
    assert error.field == "budgets.dollars" and "ml.p9.48xlarge" in error.problem and "prices.py" in error.problem
    assert isinstance(check_spec(spec_json(topology=UNPRICED)), RunSpec)
    assert isinstance(check_spec(spec_json(budgets={"dollars": 100})), RunSpec)


@pytest.mark.parametrize(
    ("smaller", "field"),
    [
        ({"micro_train_batch_size_per_gpu": 4}, "recovery.on_out_of_memory.micro_train_batch_size_per_gpu"),
        ({"gpu_memory_utilization": 0.6}, "recovery.on_out_of_memory.gpu_memory_utilization"),
        ({"micro_train_batch_size_per_gpu": 3}, "recovery.on_out_of_memory"),
        ({"gpu_memory_utilization": None}, "recovery.on_out_of_memory"),
    ],
)
def test_smaller_values_that_are_not_smaller_or_that_the_trainer_refuses_are_named(
    smaller: dict[str, Any], field: str
) -> None:
    refused = check_spec(spec_json(recovery={"on_out_of_memory": smaller}))
    assert isinstance(refused, list) and [e.field for e in refused] == [field]
    good = {"micro_train_batch_size_per_gpu": 2, "gpu_memory_utilization": 0.4}
    assert isinstance(check_spec(spec_json(recovery={"on_out_of_memory": good})), RunSpec)
