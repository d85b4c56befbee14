"""The run spec of a GPU proof: ``python bench/gpu/spec.py OUT RUN_ID --model FOLDER [--steps N]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

ZEROS = "0" * 64


def spec(given: argparse.Namespace) -> dict[str, object]:
    """The maze with longer strides on one node, with LoRA on the tiny model; SkyRL's own trainer and engines."""
    gpus, prompts, holdout, every = given.gpus, given.prompts, given.holdout, given.every
    others = {"holdout": {"kind": "seeds", "start": 500_000, "stop": 500_000 + holdout}} if holdout else {}
    return {
        "run_id": given.run_id,
        "image": f"registry/nightshift@sha256:{ZEROS}",
        "task": {
            "code": {"kind": "git", "sha": "0" * 40},
            "environment": "bench.gpu.rooms:RoomTextEnv",
            "train": {"kind": "seeds", "start": 10_000, "stop": 10_000 + prompts * 200},
            "eval": {"kind": "seeds", "start": 0, "stop": 64},
            **others,
            "success": {"min_score": 0.8},
            "oracle": "bench.gpu.rooms:solvable",
        },
        "model": {"source": given.model, "lora": {"rank": 16, "alpha": 32}},
        "topology": {"workers": {"instance_type": "ml.p5en.48xlarge", "count": 1, "gpus": gpus}},
        "training": {
            "trainer": "skyrl",
            "total_steps": given.steps,
            "train_batch_size": prompts,
            "policy_mini_batch_size": prompts // 2,
            "micro_train_batch_size_per_gpu": min(32, 4 * prompts // gpus),
            "micro_forward_batch_size_per_gpu": min(32, 4 * prompts // gpus),
            "n_samples_per_prompt": 8,
            "max_turns": given.turns,
            "learning_rate": 8e-4,
            "warmup_steps": 2,
            "temperature": 1.0,
            "eval_interval": every,
            "ckpt_interval": given.save,
            "hf_save_interval": every,
            "gpu_memory_utilization": 0.25,
            "skyrl": {
                "flash_attn": False,
                "max_prompt_length": 512,
                "max_generate_length": 4,
                "max_input_length": 3_072,
                "max_model_len": 4_096,
                "overrides": {
                    "trainer.gradient_checkpointing": False,
                    "trainer.enable_ray_gpu_monitor": False,
                    "generator.inference_engine.enable_ray_prometheus_stats": False,
                    "generator.inference_engine.max_num_seqs": 128,
                    "generator.inference_engine.engine_init_kwargs.limit_mm_per_prompt.image": 13,
                    "generator.inference_engine.engine_init_kwargs.limit_mm_per_prompt.video": 0,
                },
            },
        },
    }


def asked(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; of the process where none is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("run_id")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--holdout", type=int, default=256)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--save", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--every", type=int, default=10, help="steps between evals, and between exports")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = asked()
    made = spec(given)
    given.out.write_text(json.dumps(made, indent=1))
