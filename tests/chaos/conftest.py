"""A run that came out right, for the judges to find nothing wrong with; each test plants one wrong thing into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.chaos.evidence import Evidence, Hit
from local.chaos.processes import Driver
from nightshift.contract import Phase, Progress
from nightshift.contract.api import RunView
from nightshift.contract.publication import AttemptLine

NOW = datetime(2026, 11, 1, tzinfo=UTC)
RUN = "chaos-x"


def progress(attempt: int, step: int, saved: int, resumed: int | None) -> Progress:
    return Progress(
        run_id=RUN, attempt=attempt, phase=Phase.TRAIN, step=step, total_steps=16, saved_step=saved,
        resumed_step=resumed, at=NOW,
    )  # fmt: skip


def attempt(n: int, cause: str, signal: str, resumed: int | None = None) -> AttemptLine:
    return AttemptLine(
        n=n, started_at=NOW, ended_at=NOW + timedelta(seconds=2), end_cause=cause, signal=signal, resumed_step=resumed
    )


def view(**changes: Any) -> RunView:
    lines = [attempt(1, "node_replaced", "hyperpod_node_health+outcome"), attempt(2, "finished", "outcome", resumed=4)]
    good: dict[str, Any] = {
        "run_id": RUN, "state": "succeeded", "owner": "o", "pool": "p", "created_at": NOW, "attempt": 2, "step": 16,
        "verified_step": 16, "total_steps": 16, "attempts": lines, "audit": [], "prefix": "s3://b/runs/chaos-x/",
    }  # fmt: skip
    return RunView(**{**good, **changes})


def good() -> Evidence:
    at = NOW.timestamp()
    return Evidence(
        run_id=RUN,
        ckpt_interval=2,
        view=view(),
        progress={1: progress(1, 5, 4, None), 2: progress(2, 16, 16, 4)},
        drivers=[Driver(RUN, 1, 11, at - 30, at + 1), Driver(RUN, 2, 12, at + 9, at + 40)],
        hits=[Hit(1, at, decided=at + 2, running=at + 9, first_step=at + 15)],
        manifest_state="succeeded",
        finals=[f"{RUN} finished: all is well"],
        executions={f"{RUN}-r1": "SUCCEEDED"},
        struck=[3],
    )


@pytest.fixture
def evidence() -> Callable[..., Evidence]:
    """The good run with some fields changed."""
    return lambda **changes: replace(good(), **changes)
