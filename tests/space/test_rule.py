"""What may go from /shared: never a live run's things, never the newest verified checkpoint in its time, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract.retention import OVER, Retention
from nightshift.core.reopen import REOPENABLE
from nightshift.core.run import FINAL_STATES, RunState
from training_job.gc.rule import (
    PINS,
    POINTER,
    Fate,
    Leftover,
    Part,
    Periods,
    RunFacts,
    RunFolder,
    StagedModel,
    Survey,
    Trashed,
    Verdict,
    judge,
    judge_trash,
    newest_verified,
)

NOW = datetime(2026, 12, 20, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ("a", "b", "c", "d")
PERIODS = Periods()


def folder(run_id: str, *steps: int, rest: tuple[str, ...] = ("data", "logs", PINS, f"ckpts/{POINTER}")) -> RunFolder:
    checkpoints = [Part(f"runs/{run_id}/ckpts/global_step_{step}", 100, step) for step in steps]
    return RunFolder(run_id, f"runs/{run_id}", (*checkpoints, *(Part(f"runs/{run_id}/{name}", 7) for name in rest)))


def over(run_id: str, days: float, state: str | None = "succeeded", verified: int = 8, **changes: object) -> RunFacts:
    facts = RunFacts(run_id, state, NOW - days * DAY, verified)
    return replace(facts, **changes)  # type: ignore[arg-type]


def gone(verdicts: list[Verdict]) -> set[str]:
    return {one.path for one in verdicts if one.goes}


states = st.sampled_from([None, "running", "queued", "admitted", "not readable", *OVER])
days = st.one_of(st.none(), st.integers(0, 40))
facts = st.builds(
    RunFacts,
    run_id=st.just("?"),
    state=states,
    ended_at=st.one_of(st.none(), st.floats(-2, 60).map(lambda n: NOW - n * DAY)),
    verified_step=st.integers(0, 12),
    parent=st.one_of(st.none(), st.sampled_from(NAMES)),
    model=st.sampled_from(["hf://o/m@main", "s3://b/models/x", "package://p/m"]),
    retention=st.builds(Retention, succeeded_days=days, rest_days=days, failed_days=days, cancelled_days=days),
    unread=st.sampled_from(["", "", "", "no spec"]),
)
worlds = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, facts)).map(
    lambda found: {name: replace(one, run_id=name) for name, one in found.items()}
)
folders = st.lists(
    st.builds(
        lambda name, steps: folder(name, *sorted(steps)),
        st.sampled_from(NAMES),
        st.sets(st.integers(1, 12), max_size=4),
    ),
    unique_by=lambda one: one.run_id,
    max_size=4,
).map(tuple)
models = st.lists(
    st.builds(
        StagedModel,
        path=st.sampled_from(["models/1", "models/2", "models/3"]),
        size=st.just(1_000),
        address=st.sampled_from(["hf://o/m@0123", "s3://b/models/x", "hf://o/other@1"]),
        used_at=st.floats(0, 100).map(lambda n: NOW - n * DAY),
        pinned_by=st.frozensets(st.sampled_from(NAMES), max_size=2),
    ),
    unique_by=lambda one: one.path,
    max_size=3,
).map(tuple)
surveys = st.builds(Survey, folders, models)
periods = st.builds(
    Periods, *(st.integers(0, 40) for _ in range(4)), models=st.integers(0, 90), trash=st.integers(0, 10)
)


def carried_out(survey: Survey, verdicts: list[Verdict]) -> Survey:
    away = gone(verdicts)
    left = [
        replace(one, parts=tuple(part for part in one.parts if part.path not in away))
        for one in survey.folders
        if one.path not in away
    ]
    return Survey(tuple(left), tuple(one for one in survey.models if one.path not in away))


@settings(max_examples=50)
@given(surveys, worlds, periods)
def test_nothing_of_a_run_that_is_not_proven_to_be_over_ever_goes(
    survey: Survey, runs: dict[str, RunFacts], chosen: Periods
) -> None:
    for one in judge(survey, runs, chosen, NOW):
        if one.goes and one.run_id is not None:
            known = runs[one.run_id]
            assert known.state in OVER and known.ended_at is not None and known.ended_at <= NOW and not known.unread


@settings(max_examples=50)
@given(surveys, worlds, periods)
def test_in_its_time_the_newest_verified_checkpoint_stays_and_so_does_what_is_newer(
    survey: Survey, runs: dict[str, RunFacts], chosen: Periods
) -> None:
    away = gone(judge(survey, runs, chosen, NOW))
    for one in survey.folders:
        known = runs.get(one.run_id)
        if known is None or known.ended_at is None or known.state not in OVER:
            continue
        wish = chosen.of(known.retention)
        length = {"succeeded": wish.succeeded, "failed": wish.failed, "cancelled": wish.cancelled}[known.state or ""]
        if known.ended_at + length * DAY <= NOW:
            continue
        assert one.path not in away
        newest = newest_verified([part.step for part in one.parts if part.step], known.verified_step)
        stay = [part.path for part in one.parts if part.step and (newest is None or part.step >= newest)]
        assert not away & {*stay, f"runs/{one.run_id}/{PINS}", f"runs/{one.run_id}/ckpts/{POINTER}"}
        if known.state != "succeeded":
            assert not any(path.startswith(f"{one.path}/") for path in away), "a retry needs all of it"


@settings(max_examples=50)
@given(surveys, worlds, periods)
def test_what_a_live_run_was_begun_from_stays_whole_and_so_does_what_that_was_begun_from(
    survey: Survey, runs: dict[str, RunFacts], chosen: Periods
) -> None:
    away = gone(judge(survey, runs, chosen, NOW))
    for child in runs.values():
        seen, parent = {child.run_id}, child.parent if not child.over else None
        while parent is not None and parent not in seen:
            assert not any(path == f"runs/{parent}" or path.startswith(f"runs/{parent}/") for path in away)
            seen.add(parent)
            parent = runs[parent].parent if parent in runs else None


@settings(max_examples=50)
@given(surveys, worlds, periods)
def test_where_it_is_not_known_what_a_live_run_needs_nothing_goes(
    survey: Survey, runs: dict[str, RunFacts], chosen: Periods
) -> None:
    blind = runs | {"z": RunFacts("z", "queued", unread="S3 has no spec")}
    verdicts = judge(survey, blind, chosen, NOW)
    assert gone(verdicts) == set()
    assert all(one.why for one in verdicts)


@settings(max_examples=50)
@given(surveys, worlds, periods, st.floats(0, 50))
def test_a_second_pass_finds_nothing_more_and_time_alone_brings_nothing_back(
    survey: Survey, runs: dict[str, RunFacts], chosen: Periods, later: float
) -> None:
    first = judge(survey, runs, chosen, NOW)
    assert gone(judge(carried_out(survey, first), runs, chosen, NOW)) == set()
    whole = {path for path in gone(first) if path.count("/") == 1}
    assert whole <= gone(judge(survey, runs, chosen, NOW + later * DAY))


@settings(max_examples=50)
@given(surveys, worlds, periods)
def test_every_byte_is_in_one_verdict(survey: Survey, runs: dict[str, RunFacts], chosen: Periods) -> None:
    verdicts = judge(survey, runs, chosen, NOW)
    assert sum(one.size for one in verdicts) == sum(one.size for one in (*survey.folders, *survey.models))


@settings(max_examples=50)
@given(surveys, worlds, periods)
def test_a_model_that_a_live_run_has_or_may_mean_stays(
    survey: Survey, runs: dict[str, RunFacts], chosen: Periods
) -> None:
    away = gone(judge(survey, runs, chosen, NOW))
    for one in survey.models:
        if one.path in away:
            assert all(run_id in runs and runs[run_id].over for run_id in one.pinned_by)
            assert NOW - one.used_at >= chosen.models * DAY
            for run in runs.values():
                assert run.over or (one.address.split("@")[0] != run.model.split("@")[0])


trash = st.lists(
    st.builds(
        Trashed,
        name=st.uuids().map(str),
        path=st.just("runs/a"),
        size=st.just(1),
        moved_at=st.floats(0, 20).map(lambda n: NOW - n * DAY),
        run_id=st.one_of(st.none(), st.sampled_from(NAMES)),
    ),
    max_size=4,
)


@settings(max_examples=50)
@given(trash, worlds, periods)
def test_of_the_trash_only_what_had_its_time_and_whose_run_is_over_is_deleted(
    lying: list[Trashed], runs: dict[str, RunFacts], chosen: Periods
) -> None:
    needed = {one.parent for one in runs.values() if not one.over}
    for one, fate, why in judge_trash(lying, runs, chosen, NOW):
        known = runs.get(one.run_id) if one.run_id else None
        if fate is Fate.DELETED:
            assert NOW - one.moved_at >= chosen.trash * DAY
            assert one.run_id is None or (known is not None and known.over and one.run_id not in needed)
        if known is not None and known.state is not None and (not known.over or one.run_id in needed):
            assert fate is Fate.PUT_BACK
        assert why


def test_the_states_that_count_as_over_are_the_controllers() -> None:
    assert set(OVER) == {state.value for state in FINAL_STATES - {RunState.REJECTED}}
    assert {state.value for state in REOPENABLE} < set(OVER)


def test_a_success_keeps_its_newest_verified_checkpoint_for_two_weeks_and_the_rest_for_three_days() -> None:
    there = Survey((folder("a", 4, 8, 12),))

    def after(days: float, **changes: object) -> set[str]:
        return gone(judge(there, {"a": over("a", days, **changes)}, PERIODS, NOW))

    beside = {"runs/a/ckpts/global_step_4", "runs/a/data", "runs/a/logs"}
    assert after(2.99) == set()
    assert after(3) == beside and after(13.99) == beside
    assert after(14) == {"runs/a"}
    assert after(3, verified=2) == {"runs/a/data", "runs/a/logs"}, "no verified one is there: each stays"
    assert after(14, retention=Retention(succeeded_days=20)) == beside
    assert after(0, retention=Retention(succeeded_days=0)) == {"runs/a"}
    assert after(29.99, state="failed") == set() and after(30, state="failed") == {"runs/a"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "running"}, "not over: running"), ({"state": None}, "nothing is known"),
        ({"ended_at": None}, "does not say when"), ({"ended_at": NOW + DAY}, "a clock is wrong"),
        ({"unread": "no spec"}, "its spec"),
    ],
)  # fmt: skip
def test_what_is_kept_says_why(changes: dict[str, object], why: str) -> None:
    [one] = judge(Survey((folder("a", 8),)), {"a": over("a", 100, **changes)}, PERIODS, NOW)
    assert not one.goes and why in one.why


def test_a_parent_stays_for_a_live_child_and_for_a_child_that_is_kept_and_goes_with_it() -> None:
    there = Survey((folder("a", 8), folder("b", 8)))
    parent = over("a", 100)
    for child, away in (
        (RunFacts("b", "queued", parent="a"), set()),
        (over("b", 20, "failed", parent="a"), set()),
        (over("b", 31, "failed", parent="a"), {"runs/a", "runs/b"}),
    ):
        assert gone(judge(there, {"a": parent, "b": child}, PERIODS, NOW)) == away
    assert gone(judge(Survey((folder("a", 8),)), {"a": parent, "b": over("b", 1, parent="a")}, PERIODS, NOW)) == {
        "runs/a"
    }


def test_what_a_download_left_behind_goes_when_its_run_cannot_go_on_with_it() -> None:
    def left(days: float, run_id: str | None, **runs: RunFacts) -> bool:
        survey = Survey(leftovers=(Leftover("models/.x", 5, NOW - days * DAY, run_id),))
        return gone(judge(survey, runs, PERIODS, NOW)) != set()

    assert left(4, None) and left(4, "a") and left(4, "a", a=over("a", 1))
    assert not left(2, None) and not left(4, "a", a=RunFacts("a", "running"))
