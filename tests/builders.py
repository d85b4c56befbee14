"""Small valid objects for tests; each test changes what it is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from nightshift.contract.evals import EvalSet, EvalSummary, wilson_interval
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, OutcomeCause, Phase, Progress
from nightshift.contract.spec import RunSpec
from nightshift.core.observation import ClusterView, PodView, RayView
from nightshift.core.run import Attempt, Run, RunState

NOW = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
DIGEST = "0" * 64
IMAGE = f"registry/skyrl@sha256:{DIGEST}"


def spec_json(**changes: Any) -> dict[str, Any]:
    """A start request's spec as JSON: the maze task on the default topology."""
    raw: dict[str, Any] = {
        "run_id": "maze-1",
        "image": IMAGE,
        "task": {
            "code": {"kind": "git", "sha": "0" * 40},
            "environment": "training_job.tasks.mazes.env:MazeTextEnv",
            "train": {"kind": "seeds", "start": 10_000, "stop": 20_000},
            "eval": {"kind": "seeds", "start": 0, "stop": 64},
        },
        "model": {"source": "package://training_job/models/maze_sft"},
    }
    return raw | changes


def spec(**changes: Any) -> RunSpec:
    return RunSpec.model_validate(spec_json(**changes))


def run(**changes: Any) -> Run:
    base = {
        "run_id": "maze-1",
        "k": 1,
        "state": RunState.RUNNING,
        "owner": "team",
        "pool": "default",
        "spec_sha256": DIGEST,
        "image": IMAGE,
        "hyperpod_cluster": "hp",
        "namespace": "ns",
        "raycluster": "maze-1",
        "created_at": NOW - timedelta(hours=1),
        "total_steps": 400,
        "attempt": 1,
        "waiting_since": NOW,
        "instances": ("i-head", "i-w1", "i-w2", "i-w3"),
    }
    return Run.model_validate(base | changes)


def attempt(n: int = 1, **changes: Any) -> Attempt:
    base = {"n": n, "submission_id": f"maze-1-a{n}", "started_at": NOW - timedelta(minutes=30), "gpus": 6}
    return Attempt.model_validate(base | changes)


def cluster(*instances: str, **changes: Any) -> ClusterView:
    """A healthy RayCluster on the given instances; the first hosts the head."""
    names = instances or ("i-head", "i-w1", "i-w2", "i-w3")
    pods = tuple(
        PodView(f"pod-{i}", is_head=k == 0, ready=True, instance_id=i, ip=f"ip-{i}") for k, i in enumerate(names)
    )
    workers = len(pods) - 1
    base: dict[str, Any] = {
        "exists": True,
        "head_ready": True,
        "ready_workers": workers,
        "desired_workers": 3,
        "current": True,
        "pods": pods,
    }
    return ClusterView(**(base | changes))


def ray(*instances: str, gpus: int = 2, actors: int | None = 0) -> RayView:
    """Ray as it lists the workers of ``cluster()``; the head has no GPUs."""
    return RayView({f"ip-{i}": gpus for i in instances or ("i-w1", "i-w2", "i-w3")}, actors)


def progress(**changes: Any) -> Progress:
    base = {
        "run_id": "maze-1",
        "attempt": 1,
        "phase": Phase.TRAIN,
        "step": 25,
        "total_steps": 400,
        "saved_step": 20,
        "at": NOW,
    }
    return Progress.model_validate(base | changes)


def outcome(cause: OutcomeCause = OutcomeCause.FINISHED, **changes: Any) -> Outcome:
    base = {
        "run_id": "maze-1",
        "attempt": 1,
        "cause": cause,
        "message": "as it was",
        "step": 400,
        "total_steps": 400,
        "saved_step": 400,
        "exit_code": 0,
        "at": NOW,
    }
    return Outcome.model_validate(base | changes)


def summary(step: int, solved: int, attempt: int = 1, eval_set: EvalSet = EvalSet.FIXED, of: int = 64) -> EvalSummary:
    low, high = wilson_interval(solved, of)
    return EvalSummary(
        run_id="maze-1",
        attempt=attempt,
        step=step,
        eval_set=eval_set,
        solved=solved,
        of=of,
        low=low,
        high=high,
        avg_score=solved / of,
        pass_at_1=solved / of,
        rows_sha256=DIGEST,
        at=NOW,
    )


def export(step: int, attempt: int = 1, **changes: Any) -> ExportRecord:
    base = {
        "run_id": "maze-1",
        "attempt": attempt,
        "step": step,
        "files": {"adapter_config.json": FileDigest(sha256=DIGEST, size=1)},
        "lora_b_nonzero": 5,
        "lora_b_total": 5,
        "at": NOW,
    }
    return ExportRecord.model_validate(base | changes)
