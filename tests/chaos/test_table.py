"""The table, the summary, and the choice of faults."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable

import pytest

from local.chaos.evidence import Evidence, Hit
from local.chaos.faults import FAULTS, chosen
from local.chaos.table import COLUMNS, Row
from local.config import REPOSITORY
from tests.chaos.conftest import NOW, attempt, view

AT = NOW.timestamp()
Make = Callable[..., Evidence]


def row(evidence: Evidence | None, *problems: str) -> Row:
    return Row("x", "a fault", evidence, problems, 41.6, 3.0)


def test_a_row_tells_cause_signal_times_and_loss(evidence: Make) -> None:
    cells = dict(zip(COLUMNS, row(evidence()).cells(), strict=True))
    assert cells == {
        "fault": "a fault", "what was seen": "succeeded in 2 attempts: node_replaced",
        "by which signal": "node_health+outcome", "RUNNING": "9.0", "first new step": "15.0", "steps lost": "1",
        "seconds": "42", "verdict": "ok",
    }  # fmt: skip


def test_several_hits_are_told_by_median_percentile_and_number(evidence: Make) -> None:
    hits = [Hit(n, AT, running=AT + n) for n in range(1, 21)]
    lines = [*(attempt(n, "node_replaced", "outcome") for n in range(1, 21)), attempt(21, "finished", "outcome", 4)]
    cells = dict(zip(COLUMNS, row(evidence(hits=hits, view=view(attempts=lines))).cells(), strict=True))
    assert cells["RUNNING"] == "10.0, p95 19.0, n 20"
    assert cells["what was seen"] == "succeeded in 21 attempts: node_replaced x20"
    assert cells["by which signal"] == "outcome x20"


def test_a_problem_makes_a_bad_verdict_and_stands_in_the_summary(evidence: Make) -> None:
    bad = row(evidence(), "two drivers lived")
    assert bad.cells()[-1] == "NOT OK" and not bad.ok
    document = json.loads(json.dumps(bad.document()))
    assert (document["ok"], document["problems"]) == (False, ["two drivers lived"])
    assert document["to_running"] == [9.0] and document["steps_lost"] == {"1": 1}


def test_a_fault_that_could_not_be_played_has_a_row_all_the_same() -> None:
    assert row(None, "the stack is gone").cells()[1] == "it could not be played"
    assert row(None, "the stack is gone").document()["ok"] is False


def test_names_are_unique_fit_into_a_run_id_and_choose(evidence: Make) -> None:
    names = [one.name for one in FAULTS]
    assert len(set(names)) == len(names) >= 19
    assert all(len(f"chaos-{name}") <= 40 for name in names)
    assert [one.name for one in chosen(["head", "stopped"], fewer=False)] == ["head", "stopped"]
    assert 3 <= len(chosen([], fewer=True)) <= 4 < len(chosen([], fewer=False))
    with pytest.raises(ValueError, match="no fault is named nonsense"):
        chosen(["nonsense"], fewer=False)


def test_the_table_for_the_documents_is_made_from_the_summaries_and_the_last_word_counts(evidence: Make) -> None:
    markdown = runpy.run_path(str(REPOSITORY / "bench/faults.py"))["markdown"]
    about = {"at": "2026-11-01T00:00:00+00:00", "machine": "2 cores", "seconds": 60.0, "seconds_of_others": 30.0}
    bad = {**about, "faults": [row(evidence(), "two drivers lived").document()]}
    good = {**about, "faults": [row(evidence()).document()]}
    lines = markdown([bad, good]).splitlines()
    assert lines[2] == (
        "| a fault | succeeded, 2 attempts; node_replaced | node_health+outcome | 2.0 | 9.0 | 15.0 | 1 | ok |"
    )
    assert "| NOT OK: two drivers lived |" in markdown([bad])
    assert lines[-1] == "2026-11-01, 2 cores: 1.0 minutes, other programs busy with 0.50 cores"
