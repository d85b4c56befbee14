"""Eval results: rows and summaries for S3, and SkyRL's dumps on the shared mount. Knows no trainer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.contract import EvalRow, EvalSet, EvalSummary, RunKeys, RunSpec, SharedPaths, wilson_interval
from nightshift.contract.evals import Flip
from nightshift.contract.reading import Unreadable
from training_job.clock import now
from training_job.files import write_atomically
from training_job.store import ObjectStore, Uploader, read


@dataclass(frozen=True)
class Episode:
    """One finished eval episode."""

    item: str
    row: Mapping[str, Any]
    prompt: str
    replies: Sequence[str]
    rewards: Sequence[float]
    """One a reply."""
    stop_reason: str

    @property
    def score(self) -> float:
        return float(sum(self.rewards))


def rows_of(episodes: Sequence[Episode], min_score: float) -> list[EvalRow]:
    """The published rows; success is the task's rule on the sum of the rewards."""
    return [
        EvalRow(
            item=episode.item,
            success=episode.score >= min_score,
            score=episode.score,
            turns=len(episode.replies),
            stop_reason=episode.stop_reason,
        )
        for episode in episodes
    ]


def rows_to_lines(rows: Sequence[EvalRow]) -> bytes:
    """JSON lines: the same rows give the same bytes."""
    return "".join(row.model_dump_json() + "\n" for row in rows).encode()


def pass_at_1(episodes: Sequence[Episode]) -> float:
    """SkyRL's number: share of episodes whose last reward is above 0. A reward for format alone counts."""
    return sum(episode.rewards[-1] > 0 for episode in episodes) / len(episodes)


def summarise(
    run_id: str, attempt: int, step: int, eval_set: EvalSet, episodes: Sequence[Episode], rows: Sequence[EvalRow]
) -> EvalSummary:
    """One eval in numbers, with the 95% Wilson interval of its success."""
    solved = sum(row.success for row in rows)
    low, high = wilson_interval(solved, len(rows))
    return EvalSummary(
        run_id=run_id,
        attempt=attempt,
        step=step,
        eval_set=eval_set,
        solved=solved,
        of=len(rows),
        low=low,
        high=high,
        avg_score=sum(row.score for row in rows) / len(rows),
        pass_at_1=pass_at_1(episodes),
        rows_sha256=hashlib.sha256(rows_to_lines(rows)).hexdigest(),
        at=now(),
    )


def publish_eval(
    uploader: Uploader, summary: EvalSummary, rows: Sequence[EvalRow], flipped: Sequence[Flip] = ()
) -> None:
    """Queue the rows and what flipped in them, then their summary."""
    keys, where = RunKeys(summary.run_id), (summary.attempt, summary.step, summary.eval_set)
    uploader.put(keys.eval_rows(*where), rows_to_lines(rows))
    if summary.previous_step is not None:
        uploader.put(keys.eval_flips(*where), "".join(one.model_dump_json() + "\n" for one in flipped).encode())
    uploader.put(keys.eval_summary(*where), summary.to_json().encode())


def dump_eval(paths: SharedPaths, spec: RunSpec, summary: EvalSummary, episodes: Sequence[Episode]) -> None:
    """``dumped_evals/global_step_N_evals/``: SkyRL's rows in ``<data_source>.jsonl``, and its aggregated metrics.

    ``data_source`` is the eval set's name.
    """
    source = str(summary.eval_set)
    lines = [
        {
            "input_prompt": episode.prompt,
            "output_response": "\n".join(episode.replies),
            "score": list(episode.rewards),
            "stop_reason": episode.stop_reason,
            "env_class": spec.task.environment,
            "env_extras": dict(episode.row) | {"max_turns": spec.training.max_turns},
            "data_source": source,
        }
        for episode in episodes
    ]
    positive = [reward for episode in episodes for reward in episode.rewards if reward > 0]
    metrics = {
        f"eval/{source}/avg_score": summary.avg_score,
        f"eval/{source}/pass_at_1": summary.pass_at_1,
        f"eval/{source}/mean_positive_reward": sum(positive) / len(positive) if positive else 0.0,
        f"eval/{source}/success": summary.success,
    }
    folder = paths.eval_dump(summary.step)
    write_atomically(folder / f"{source}.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    aggregated = folder / "aggregated_results.jsonl"
    before = aggregated.read_text() if aggregated.exists() and summary.eval_set is not EvalSet.FIXED else ""
    write_atomically(aggregated, (before + json.dumps(metrics) + "\n").encode())


def published_summaries(store: ObjectStore, run_id: str) -> list[EvalSummary]:
    """All summaries that any attempt has published, by set, step and attempt. What is no summary, or another one than its
    key says, is passed over."""
    keys, found = RunKeys(run_id), []
    for key in store.listing(keys.evals):
        try:
            one = read(store, EvalSummary, key) if key.endswith(".json") else None
        except Unreadable:
            continue
        if one is not None and one.run_id == run_id and key == keys.eval_summary(one.attempt, one.step, one.eval_set):
            found.append(one)
    return sorted(found, key=lambda s: (s.eval_set, s.step, s.attempt))


def curve_of(summaries: Sequence[EvalSummary]) -> list[EvalSummary]:
    """The fixed set's summaries, one a step, of the newest attempt that evaluated it; rising steps."""
    newest = {summary.step: summary for summary in summaries if summary.eval_set is EvalSet.FIXED}
    return [newest[step] for step in sorted(newest)]
