"""The request of a short run: small steps on two workers, so that the third node of the pool is a spare."""

from __future__ import annotations

from typing import Any

from local.chaos.sabotage import PATH
from local.story.request import Request, demo_request

CKPT_INTERVAL = 2
WORKERS = 2


def short_request(run_id: str, steps: int, sabotaged: bool = False) -> Request:
    """``sabotaged``: the task's oracle is asked, which is how ``sabotage`` comes into the driver."""
    demo = demo_request()
    spec: dict[str, Any] = demo.spec
    spec["run_id"] = run_id
    spec["topology"]["workers"]["count"] = WORKERS
    task = {name: value for name, value in spec["task"].items() if name not in ("holdout", "trace_renderer")}
    spec["task"] = {**task, "eval": {"kind": "seeds", "start": 0, "stop": 8}}
    spec["training"] |= {
        "total_steps": steps,
        "train_batch_size": 16,
        "policy_mini_batch_size": 8,
        "n_samples_per_prompt": 4,
        "eval_interval": 8,
        "ckpt_interval": CKPT_INTERVAL,
        "hf_save_interval": 8,
    }
    del spec["target"]
    if sabotaged:
        spec["task"]["oracle"] = PATH
        spec["target"] = {"success": 0.01, "stop": False}
    return Request(spec, demo.notes)
