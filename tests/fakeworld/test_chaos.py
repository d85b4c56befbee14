"""Chaos over whole runs finds nothing in the code as it is, and finds every fault that is planted in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from nightshift.core.causes import EndCause
from tests.fakeworld.chaos import Verdict, play
from tests.fakeworld.mutants import MUTANTS, Mutant

SEEDS = range(200)

MET = {
    EndCause.CODE_ERROR,
    EndCause.GPU_OUT_OF_MEMORY,
    EndCause.HUNG,
    EndCause.NODE_LOST,
    EndCause.NODE_REPLACED,
    EndCause.PREEMPTED,
    EndCause.STORAGE_FULL,
    EndCause.WORKER_FAILED,
}
"""Ends of attempts that so many seeds must meet: a world without faults would violate nothing."""

DONE = {
    "answered: go on",
    "asked a person about storage_full",
    "cancel requested",
    "fence: RayCluster made anew",
    "fence: pods deleted",
    "from here on with smaller values",
    "instance excluded",
    "replacement asked for",
    "waits in the queue",
}
"""Lines of audit trails that they must see."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    logging.disable(logging.CRITICAL)
    return [play(seed) for seed in SEEDS]


def test_no_seed_violates_an_invariant(verdicts: list[Verdict]) -> None:
    assert [f"seed {v.seed}: {v.violation}" for v in verdicts if v.violation is not None] == []


def test_the_seeds_meet_every_kind_of_end_and_of_repair(verdicts: list[Verdict]) -> None:
    assert {state for v in verdicts for state in v.states} == {"succeeded", "failed", "cancelled"}
    assert any(v.attempts >= 3 for v in verdicts)
    items = [item for v in verdicts for item in v.world.table.items.values()]
    assert {a.end_cause for i in items for a in i.attempts.values()} >= MET
    assert {line.what for i in items for line in i.trail} >= DONE
    assert any(i.run.k > 1 for i in items), "a successor went on"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_a_planted_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = next((v for v in map(play, mutant.seeds) if v.violation is not None), None)
    assert found is not None and found.violation is not None, f"no seed of {mutant.within} finds it"
    assert found.violation.name in mutant.found_by, f"seed {found.seed}: {found.violation}"


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = play(7), play(7)
    assert first.world.loop.notes == second.world.loop.notes
    assert first.states == second.states
