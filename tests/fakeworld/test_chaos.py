"""Chaos over whole runs finds nothing in the code as it is, and finds every fault that is planted in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fakeworld.chaos import play
from tests.fakeworld.mutants import MUTANTS, Mutant

SEEDS = range(200)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_seed_violates_an_invariant_and_every_kind_of_end_is_reached() -> None:
    verdicts = [play(seed) for seed in SEEDS]
    assert [f"seed {v.seed}: {v.violation}" for v in verdicts if v.violation is not None] == []
    assert {state for v in verdicts for state in v.states} == {"succeeded", "failed", "cancelled"}
    assert any(v.attempts >= 3 for v in verdicts)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_a_planted_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = next((v for v in map(play, range(mutant.within)) if v.violation is not None), None)
    assert found is not None and found.violation is not None, f"no seed of {mutant.within} finds it"
    assert found.violation.name in mutant.found_by, f"seed {found.seed}: {found.violation}"


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = play(7), play(7)
    assert first.world.loop.notes == second.world.loop.notes
    assert first.states == second.states
