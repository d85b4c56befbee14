"""The rules by themselves: what is found, what is left alone, and from which moment on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.core import reconcile as rules
from nightshift.core.observation import OwnedCluster
from nightshift.core.reconcile import (
    ClusterFact,
    ExecutionState,
    ExecutionStatus,
    Fact,
    Finding,
    Lease,
    LeaseFact,
    LineFact,
    OpenRun,
    Repair,
    RunFact,
    findings,
)
from nightshift.core.run import FINAL_STATES, Run, RunState
from tests.builders import NOW, run

SECOND = timedelta(seconds=1)
RUNNING = ExecutionStatus(ExecutionState.RUNNING)
BAD = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.ABORTED)


def one(fact: Fact) -> Finding | None:
    found = findings([fact], NOW)
    return found[0] if found else None


def repair(fact: Fact) -> Repair | None:
    found = one(fact)
    return found.repair if found is not None else None


def ended(state: ExecutionState, ago: timedelta, error: str = "") -> ExecutionStatus:
    return ExecutionStatus(state, NOW - ago, error)


def fact(execution: ExecutionStatus | None = RUNNING, due: timedelta = timedelta(0), **more: Any) -> RunFact:
    """``due`` is how long ago its look was due."""
    about = {name: more.pop(name) for name in ("previous", "has_spec", "signalled_at") if name in more}
    return RunFact(run(**more), NOW - due, execution, **about)


# looks --------------------------------------------------------------------------------------------------------------


def test_a_look_that_is_late_is_woken_and_one_that_is_on_time_is_not() -> None:
    assert repair(fact(due=rules.OVERDUE)) is Repair.WAKE_RUN
    assert one(fact(due=rules.OVERDUE - SECOND)) is None
    assert one(fact(due=-timedelta(minutes=1))) is None


def test_a_look_that_stays_overdue_is_an_alarm_and_one_that_is_merely_late_is_none() -> None:
    stuck, late = one(fact(due=rules.STUCK)), one(fact(due=rules.STUCK - SECOND))
    assert stuck is not None and stuck.alarm and stuck.repair is Repair.WAKE_RUN
    assert late is not None and not late.alarm


def test_a_signal_that_nobody_has_seen_yet_is_not_repeated_at_once_but_the_alarm_stays() -> None:
    fresh, old = NOW - rules.WAKE_AGAIN + SECOND, NOW - rules.WAKE_AGAIN
    assert one(fact(due=rules.OVERDUE, signalled_at=fresh)) is None
    assert repair(fact(due=rules.OVERDUE, signalled_at=old)) is Repair.WAKE_RUN
    stuck = one(fact(due=rules.STUCK, signalled_at=fresh))
    assert stuck is not None and stuck.alarm and stuck.repair is None


# executions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", BAD)
def test_a_run_whose_execution_ended_past_every_catcher_is_ended_with_its_cause(state: ExecutionState) -> None:
    found = one(fact(ended(state, rules.END_GRACE, "States.Runtime: no field x")))
    assert found is not None and found.repair is Repair.FINISH_RUN
    assert (found.status, found.error) == (state.value, "States.Runtime: no field x")


@pytest.mark.parametrize("state", [*BAD, ExecutionState.SUCCEEDED])
def test_the_finisher_has_its_time_first(state: ExecutionState) -> None:
    assert one(fact(ended(state, rules.END_GRACE - SECOND))) is None


def test_an_execution_that_succeeded_before_its_run_was_over_ends_it_with_a_clear_sentence() -> None:
    found = one(fact(ended(ExecutionState.SUCCEEDED, timedelta(minutes=1))))
    assert found is not None and found.repair is Repair.FINISH_RUN
    assert (found.status, found.error) == ("SUCCEEDED", "it ended before the run was over")


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
@pytest.mark.parametrize("execution", [None, RUNNING, ended(ExecutionState.ABORTED, timedelta(days=1))])
def test_a_run_that_is_over_is_left_alone_whatever_its_execution_did(
    state: RunState, execution: ExecutionStatus | None
) -> None:
    assert one(fact(execution, due=timedelta(days=1), state=state)) is None


def test_a_run_that_never_started_is_started_after_a_start_in_flight_had_its_time() -> None:
    new = {"state": RunState.ADMITTED, "attempt": 0}
    assert repair(fact(None, created_at=NOW - rules.START_GRACE, **new)) is Repair.START_EXECUTION
    assert one(fact(None, created_at=NOW - rules.START_GRACE + SECOND, **new)) is None


def test_a_run_without_a_spec_is_left_to_its_request_for_an_hour_and_then_ended_with_an_alarm() -> None:
    new = {"state": RunState.ADMITTED, "attempt": 0, "has_spec": False}
    assert one(fact(None, created_at=NOW - rules.SPEC_GRACE + SECOND, **new)) is None
    found = one(fact(None, created_at=NOW - rules.SPEC_GRACE, **new))
    assert found is not None and found.repair is Repair.FINISH_RUN and found.alarm
    assert "another run id" in found.error


def test_a_successor_that_was_written_and_not_started_is_started_and_no_other_number() -> None:
    found = one(fact(None, k=3, shift_seq=900, history_base=900, previous=ended(BAD[0], timedelta(minutes=1))))
    assert found is not None and (found.repair, found.k) == (Repair.START_EXECUTION, 3)


def test_a_predecessor_that_still_runs_starts_its_successor_itself() -> None:
    young = {"k": 2, "shift_seq": 9, "history_base": 9, "previous": RUNNING}
    assert one(fact(None, due=rules.OVERDUE - SECOND, **young)) is None
    assert repair(fact(None, due=rules.OVERDUE, **young)) is Repair.START_EXECUTION


@pytest.mark.parametrize("begun", [{"k": 1, "state": RunState.RUNNING}, {"k": 2, "shift_seq": 9, "history_base": 8}])
def test_an_execution_that_ran_and_is_forgotten_is_never_started_again(begun: dict[str, Any]) -> None:
    found = one(fact(None, **begun))
    assert found is not None and found.repair is Repair.FINISH_RUN and found.alarm


# RayClusters --------------------------------------------------------------------------------------------------------


def cluster(age: timedelta, of: Run | None) -> ClusterFact:
    return ClusterFact(OwnedCluster("maze-1", "maze-1", NOW - age), of)


def over(ago: timedelta | None, state: RunState = RunState.FAILED) -> Run:
    return run(state=state, ended_at=None if ago is None else NOW - ago)


def test_a_raycluster_of_a_run_that_is_over_is_deleted_after_its_grace() -> None:
    grace = rules.CLUSTER_GRACE
    assert repair(cluster(timedelta(days=1), over(grace))) is Repair.DELETE_CLUSTER
    assert repair(cluster(timedelta(days=1), over(None))) is Repair.DELETE_CLUSTER
    assert one(cluster(timedelta(days=1), over(grace - SECOND))) is None
    assert one(cluster(grace - SECOND, over(timedelta(days=1)))) is None


def test_a_raycluster_of_an_unknown_run_is_an_alarm_first_and_deleted_a_day_later() -> None:
    assert one(cluster(rules.UNKNOWN_ALARM - SECOND, None)) is None
    told, gone = one(cluster(rules.UNKNOWN_ALARM, None)), one(cluster(rules.UNKNOWN_DELETE, None))
    assert told is not None and told.alarm and told.repair is None
    assert gone is not None and gone.alarm and gone.repair is Repair.DELETE_CLUSTER


# leases and lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", [None, *(run(state=s) for s in sorted(FINAL_STATES))])
def test_a_lease_of_a_run_that_is_over_or_unknown_is_given_back(holder: Run | None) -> None:
    lease = Lease("default", "maze-1", NOW)
    found = one(LeaseFact(lease, holder))
    assert found is not None and (found.repair, found.lease) == (Repair.RELEASE_LEASE, lease)


def test_the_first_in_a_free_line_is_told_once_and_only_if_it_still_waits() -> None:
    waiting = run(state=RunState.QUEUED, waiting_since=NOW - rules.LINE_GRACE)
    assert repair(LineFact("default", waiting)) is Repair.WAKE_LINE
    assert one(LineFact("default", waiting, NOW - rules.WAKE_AGAIN + SECOND)) is None
    assert one(LineFact("default", run(state=RunState.QUEUED, waiting_since=NOW))) is None
    assert one(LineFact("default", run(state=RunState.PROVISIONING, waiting_since=NOW - timedelta(days=1)))) is None


# messages -----------------------------------------------------------------------------------------------------------


def test_a_final_message_that_nobody_sent_is_sent_after_its_own_step_had_the_time() -> None:
    assert repair(over(rules.TELL_GRACE)) is Repair.SEND_MESSAGE
    assert one(over(rules.TELL_GRACE - SECOND)) is None
    assert one(run()) is None


# all together -------------------------------------------------------------------------------------------------------

ages = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3))
executions = st.none() | st.builds(
    lambda state, ago: ExecutionStatus(state, None if state is ExecutionState.RUNNING else NOW - ago),
    st.sampled_from(ExecutionState),
    ages,
)
runs = st.builds(
    lambda state, ago, k, base: run(
        state=state,
        k=k,
        shift_seq=base,
        history_base=base,
        created_at=NOW - ago,
        waiting_since=NOW - ago,
        ended_at=NOW - ago if state.is_final else None,
    ),
    st.sampled_from(RunState),
    ages,
    st.integers(1, 3),
    st.integers(0, 3),
)
facts = st.one_of(
    st.builds(
        lambda r, ago, execution, before, spec: RunFact(r, NOW - ago, execution, before, spec),
        runs,
        ages,
        executions,
        executions,
        st.booleans(),
    ),
    st.builds(cluster, ages, st.none() | runs),
    st.builds(lambda holder, ago: LeaseFact(Lease("default", "maze-1", NOW - ago), holder), st.none() | runs, ages),
    st.builds(lambda first: LineFact("default", first), runs),
    runs,
)


@given(facts)
def test_no_open_run_loses_its_raycluster_or_its_lease_and_no_run_that_is_over_is_started_or_ended(some: Fact) -> None:
    found = one(some)
    if found is None:
        return
    about = {RunFact: "run", ClusterFact: "run", LeaseFact: "holder", LineFact: "first"}.get(type(some))
    record = some if isinstance(some, Run) else getattr(some, str(about))
    if record is not None and not record.state.is_final:
        assert found.repair not in (Repair.DELETE_CLUSTER, Repair.RELEASE_LEASE, Repair.SEND_MESSAGE)
    if record is not None and record.state.is_final:
        assert found.repair not in (Repair.START_EXECUTION, Repair.FINISH_RUN, Repair.WAKE_RUN, Repair.WAKE_LINE)
    assert found.repair is not None or found.alarm, "a finding that leads to nothing"


@given(facts)
def test_an_execution_that_runs_is_never_ended_or_started_over(some: Fact) -> None:
    if isinstance(some, RunFact) and some.execution is not None and some.execution.state is ExecutionState.RUNNING:
        assert repair(some) in (None, Repair.WAKE_RUN)


@given(st.lists(facts, max_size=20))
def test_the_oldest_comes_first_and_one_fact_changes_nothing_about_another(some: list[Fact]) -> None:
    found = findings(some, NOW)
    moments: list[datetime] = [f.since for f in found]
    assert moments == sorted(moments)
    assert len(found) == sum(one(f) is not None for f in some)


def test_the_age_of_the_oldest_look_is_zero_without_an_open_run_and_never_negative() -> None:
    def due(ago: float) -> OpenRun:
        return OpenRun(run(), NOW - timedelta(seconds=ago))

    assert rules.oldest_look_age([], NOW) == 0.0
    assert rules.oldest_look_age([due(-60)], NOW) == 0.0
    assert rules.oldest_look_age([due(-60), due(90), due(30)], NOW) == 90.0
