"""What a run is said to cost, and what was different about an attempt, wherever people read it."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from cli.view import text
from nightshift.contract.api import RunView
from nightshift.contract.events import Stage
from nightshift.contract.job import OutcomeCause
from nightshift.contract.publication import Spend
from nightshift.contract.spec import SmallerValues
from nightshift.core.causes import EndCause
from nightshift.report.html import render_report
from nightshift.report.slack import blocks
from nightshift.report.words import CAUSES, dollars
from tests.report.support import NOW, attempt, event, manifest, provenance

OLD = Spend(dollars=1_234.5, dollars_per_hour=36.6, prices_as_of=date(2026, 1, 2), prices_old=True)
FRESH = OLD.model_copy(update={"prices_old": False})
LINES = [
    attempt(1, end_cause="gpu_out_of_memory", last_saved_step=20, message="CUDA <out> of memory"),
    attempt(
        2, end_cause="finished", smaller=True, guard="the guard moved aside global_step_40.a2 <x>", resumed_step=20
    ),
]


def seen_in_report(**changes: Any) -> str:
    return render_report(manifest(attempts=LINES, **changes), provenance())


def seen_in_slack(**changes: Any) -> str:
    return json.dumps(blocks(event(Stage.FINISHED, attempts=LINES, **changes)), ensure_ascii=False)


def seen_in_status(**changes: Any) -> str:
    view = RunView(
        run_id="r", state="succeeded", owner="me", pool="default", created_at=NOW, attempt=2, step=1, verified_step=1,
        total_steps=2, attempts=LINES, audit=[], prefix="s3://b/", **changes,
    )  # fmt: skip
    return text(view)


@pytest.mark.parametrize("seen", [seen_in_report, seen_in_slack, seen_in_status])
def test_costs_are_called_attributed_with_the_day_of_their_prices_and_old_ones_are_called_old(seen: Any) -> None:
    told = seen(spend=OLD)
    for word in ("$1,234.50", "attributed", "2026-01-02", "older than 90 days"):
        assert word in told, word
    assert "older than 90 days" not in seen(spend=FRESH)
    assert "attributed" not in seen() and "$" not in seen().replace("</style>", "").split("<body>")[-1]


@pytest.mark.parametrize("seen", [seen_in_report, seen_in_slack, seen_in_status])
def test_smaller_values_and_the_guards_work_are_told_of_their_attempt(seen: Any) -> None:
    told = seen()
    assert told.count("with smaller values") == 1
    assert "the guard moved aside global_step_40.a2" in told


def test_the_report_names_the_smaller_values_and_escapes_what_came_from_outside() -> None:
    told = seen_in_report(smaller=SmallerValues(gpu_memory_utilization=0.3, micro_train_batch_size_per_gpu=2))
    assert "training.gpu_memory_utilization 0.3" in told and "training.micro_train_batch_size_per_gpu 2" in told
    assert "<x>" not in told and "<out>" not in told
    assert "Smaller values" not in seen_in_report()


@pytest.mark.parametrize(("value", "words"), [(0.0, "$0.00"), (9_999.994, "$9,999.99"), (10_000.4, "$10,000")])
def test_dollars(value: float, words: str) -> None:
    assert dollars(value) == words


def test_every_cause_has_its_words() -> None:
    assert {cause.value for cause in (*EndCause, *OutcomeCause)} <= CAUSES.keys()
