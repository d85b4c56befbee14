"""SkyRL's eval dumps as the contract's rows and summaries."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nightshift.contract import EvalRow, EvalSet, EvalSummary, RunSpec, wilson_interval
from training_job.clock import now
from training_job.errors import CodeError
from training_job.evals import rows_to_lines
from training_job.trainers.skyrl.datasets import ITEM
from training_job.trainers.skyrl.environment import REWARDS


def read_dump(path: Path, min_score: float) -> tuple[list[EvalRow], float]:
    """(rows, SkyRL's pass_at_1) of ``<data_source>.jsonl``. Raises CodeError with file and line for a row that cannot be
    read, and for an empty dump: an eval with rows left out would look like a better one."""
    rows: list[EvalRow] = []
    passed = 0
    for number, entry in _entries(path):
        try:
            rewards = rewards_of(entry)
            extras = entry["env_extras"]
            score = sum(rewards)
            if not math.isfinite(score):
                raise ValueError(f"its rewards sum up to {score}")
            rows.append(
                EvalRow(
                    item=str(extras[ITEM]),
                    success=score >= min_score,
                    score=score,
                    turns=len(extras.get(REWARDS) or rewards),
                    stop_reason=str(entry.get("stop_reason")),
                )
            )
            passed += last_reward(entry["score"]) > 0
        except (KeyError, TypeError, ValueError) as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise CodeError(f"{path}, line {number}, is no eval row of SkyRL: {what}") from error
    if not rows:
        raise CodeError(f"{path} has no rows")
    return rows, passed / len(rows)


def rewards_of(entry: Mapping[str, Any]) -> list[float]:
    """One reward a turn where the row recorded them; else what SkyRL dumped: a number, or one a token, mostly zeros."""
    recorded = entry["env_extras"].get(REWARDS)
    if recorded:
        return [float(one) for one in recorded]
    score = entry["score"]
    return [float(one) for one in score if one] if isinstance(score, list) else [float(score)]


def last_reward(score: Any) -> float:
    """What SkyRL's pass_at_1 looks at: the number, or the last token's."""
    if isinstance(score, list):
        return float(score[-1]) if score else 0.0
    return float(score)


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise CodeError(f"{path}, line {number}, is not JSON: {error}") from error
            if not isinstance(entry, dict):
                raise CodeError(f"{path}, line {number}, is no object")
            yield number, entry


def summary_of(
    spec: RunSpec, attempt: int, step: int, which: EvalSet, rows: list[EvalRow], pass_at_1: float
) -> EvalSummary:
    """One eval in numbers."""
    solved = sum(row.success for row in rows)
    low, high = wilson_interval(solved, len(rows))
    return EvalSummary(
        run_id=spec.run_id,
        attempt=attempt,
        step=step,
        eval_set=which,
        solved=solved,
        of=len(rows),
        low=low,
        high=high,
        avg_score=sum(row.score for row in rows) / len(rows),
        pass_at_1=pass_at_1,
        rows_sha256=hashlib.sha256(rows_to_lines(rows)).hexdigest(),
        at=now(),
    )
