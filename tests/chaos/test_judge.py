"""The judge finds what is wrong, and finds nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from local.chaos.evidence import Evidence, Expected, Hit, percentile
from local.chaos.judge import broken_promises
from local.chaos.processes import Driver, driver_of, overlaps
from tests.chaos.conftest import NOW, RUN, attempt, progress, view

AT = NOW.timestamp()
LOST = Expected(causes=frozenset({"node_replaced"}), signals=frozenset({"hyperpod_node_health"}), decided_within=90)
Make = Callable[..., Evidence]


def test_a_run_that_came_out_right_breaks_no_promise(evidence: Make) -> None:
    assert broken_promises(evidence(), LOST) == []


PLANTED: list[tuple[str, dict[str, Any], str]] = [
    ("a run that failed", {"view": view(state="failed")}, "the run is failed, not succeeded"),
    ("no run", {"view": None}, "not known to the API"),
    ("two last messages", {"finals": [f"{RUN} finished: a", f"{RUN} finished: a"]}, "Slack was told the end 2 times"),
    ("no last message", {"finals": []}, "Slack was told the end 0 times"),
    ("a last message that says otherwise", {"finals": [f"{RUN} failed: no"]}, "Slack was told"),
    ("no manifest", {"manifest_state": None}, "the manifest says None"),
    ("an execution that still runs", {"executions": {f"{RUN}-r1-s2": "RUNNING"}}, "executions still run"),
    ("an attempt too many", {"view": view(attempts=[*view().attempts, attempt(3, "finished", "outcome", 16)])}, "3 attempts"),
    (
        "another cause",
        {"view": view(attempts=[attempt(1, "code_error", "hyperpod_node_health"), view().attempts[1]])},
        "attempt 1 ended as code_error",
    ),
    (
        "another signal",
        {"view": view(attempts=[attempt(1, "node_replaced", "timer"), view().attempts[1]])},
        "attempt 1 was ended by timer",
    ),
    (
        "two living drivers",
        {"drivers": [Driver(RUN, 1, 11, AT - 30, AT + 9.5), Driver(RUN, 2, 12, AT + 9, AT + 40)]},
        "attempts 1 and 2 both had a living driver for 0.50 s",
    ),
    (
        "an attempt that was submitted twice",
        {"drivers": [Driver(RUN, 1, 11, AT, AT), Driver(RUN, 1, 13, AT + 5, AT + 6), Driver(RUN, 2, 12, AT + 9, AT + 40)]},
        "attempt 1 was started more than once",
    ),
    (
        "a driver that the record does not know",
        {"drivers": [Driver(RUN, 1, 11, AT - 9, AT), Driver(RUN, 2, 12, AT + 9, AT + 40), Driver(RUN, 3, 13, AT + 50, AT + 51)]},
        "a driver of attempt 3 ran",
    ),
    (
        "steps lost beyond the interval",
        {"progress": {1: progress(1, 7, 4, None), 2: progress(2, 16, 16, 4)}},
        "3 steps of attempt 1 were lost, and 2 are allowed",
    ),
    (
        "a resume below the floor",
        {
            "progress": {1: progress(1, 4, 4, None), 2: progress(2, 16, 16, 2)},
            "view": view(attempts=[view().attempts[0], attempt(2, "finished", "outcome", 2)]),
        },
        "attempt 2 resumed at 2, below step 4 that was saved and reported",
    ),
    (
        "a record that tells another resume than the job",
        {"progress": {1: progress(1, 5, 4, None), 2: progress(2, 16, 16, 5)}},
        "the record says that attempt 2 resumed at 4; the job said 5",
    ),
    ("an end before the end", {"progress": {1: progress(1, 5, 4, None), 2: progress(2, 14, 14, 4)}}, "step 14 of 16"),
    ("a late judgement", {"hits": [Hit(1, AT, decided=AT + 91, running=AT + 99)]}, "judged 91.0 s after the fault"),
    ("no judgement", {"hits": [Hit(1, AT)]}, "judged never after the fault"),
    ("pods", {"pods": ["x-head"]}, "pods left over: x-head"),
    ("a RayCluster", {"rayclusters": ["x"]}, "RayClusters left over: x"),
    ("a lease", {"lease_holders": ["x"]}, "holders of a lease left over: x"),
    ("processes", {"processes": ["orphan: raylet"]}, "processes of pods left over: orphan: raylet"),
    ("a fault that did not strike", {"struck": [3, 0]}, "fault 2 of the plan never struck"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), [one[1:] for one in PLANTED], ids=[one[0] for one in PLANTED])
def test_each_planted_wrong_result_is_found_and_nothing_else_is(
    evidence: Make, changes: dict[str, Any], said: str
) -> None:
    found = broken_promises(evidence(**changes), LOST)
    assert len(found) >= 1 and any(said in one for one in found), found
    assert len(found) <= 3, "one wrong thing is not told in many ways"


def test_a_checkpoint_that_the_fault_broke_may_cost_one_interval_more_and_one_only(evidence: Make) -> None:
    rolled_back = {1: progress(1, 6, 4, None), 2: progress(2, 16, 16, 2)}
    lines = [view().attempts[0], attempt(2, "finished", "outcome", 2)]
    seen = evidence(progress=rolled_back, view=view(attempts=lines))
    assert broken_promises(seen, replace(LOST, rollbacks=1)) == []
    assert len(broken_promises(seen, LOST)) == 2
    too_far = evidence(progress={1: progress(1, 9, 8, None), 2: progress(2, 16, 16, 2)}, view=view(attempts=lines))
    assert any("7 steps" in one for one in broken_promises(too_far, replace(LOST, rollbacks=1)))


def test_a_bound_at_the_95th_percentile_forgives_one_of_twenty_and_not_two(evidence: Make) -> None:
    bound = Expected(running_p95=10)
    quick = [Hit(1, AT, running=AT + 9)] * 19
    assert broken_promises(evidence(hits=[*quick, Hit(1, AT, running=AT + 30)]), bound) == []
    two = broken_promises(evidence(hits=[*quick[1:], *[Hit(1, AT, running=AT + 30)] * 2]), bound)
    assert two == ["RUNNING 30.0 s after the fault at the 95th percentile, and 10 s are allowed"]
    never = broken_promises(evidence(hits=[*quick, Hit(1, AT)]), bound)
    assert never == ["1 hits were never followed by a running attempt"]


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(n) for n in range(1, 21)]
    assert (percentile(values, 0.95), percentile(values, 0.5), percentile([7.0], 0.95)) == (19.0, 10.0, 7.0)
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_drivers_of_one_attempt_or_of_two_runs_or_one_after_the_other_do_not_overlap() -> None:
    after = [Driver("a", 1, 1, 0.0, 5.0), Driver("a", 2, 2, 5.1, 9.0)]
    assert overlaps([*after, Driver("b", 1, 3, 1.0, 9.0)]) == []
    assert [(one.older, one.newer) for one in overlaps([*after, Driver("a", 3, 3, 8.0, 9.0)])] == [(2, 3)]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/x/bin/python -m training_job run --bucket b --run-id r --attempt 2 --floor 4", ("r", 2)),
        ("/bin/sh -c python -m training_job run --bucket b --run-id r --attempt 2 --floor 4", None),
        ("python -m training_job verify --bucket b --run-id r", None),
        ("python -m training_job run --run-id r --attempt", None),
        ("ray::JobSupervisor", None),
        ("", None),
    ],
)
def test_a_driver_is_the_job_s_own_python_process_and_nothing_around_it(
    command: str, found: tuple[str, int] | None
) -> None:
    assert driver_of(command) == found
