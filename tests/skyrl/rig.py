"""SkyRL's real training loop on a CPU: its trainer, its batches, its advantages, its saves and dumps.

Only what needs a GPU is replaced: the engines (a player that knows the maze's shortest plan and errs at times) and the
actor groups (no model: log-probabilities of zero, and small shards in the layout of SkyRL's FSDP strategy).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import skyrl_gym
import torch
from safetensors.torch import save_file
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.train.dataset import PromptDataset
from skyrl.train.utils.tracking import Tracking

from nightshift.contract import RunSpec, SharedPaths
from tests.builders import spec_json
from tests.job.memory import MemoryStore
from training_job.clock import Stopwatch
from training_job.job import Ended, Job, Record, first_progress
from training_job.progress import ProgressReporter
from training_job.store import Uploader
from training_job.tasks.mazes.maze import Action, make_maze, shortest_plan
from training_job.trainers.skyrl.environment import register_environment
from training_job.trainers.skyrl.hooks import EndTraining, HookedTrainer
from training_job.trainers.skyrl.results import Results
from training_job.trainers.skyrl.trainer import Prepared, configuration, prepare

END = 2


class Letters:
    """A tokenizer of bytes; id 2 ends a turn."""

    eos_token_id = END
    pad_token_id = 0
    padding_side = "left"

    def encode(self, text: str) -> list[int]:
        return [3 + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(i - 3 for i in ids if i >= 3).decode(errors="replace")

    def batch_decode(self, many: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [self.decode(ids) for ids in many]

    def apply_chat_template(self, messages: Any, **_: Any) -> list[int]:
        return self.encode(json.dumps(messages))


def said(action: Action) -> str:
    name = "('stop', 'stop')" if action is Action.STOP else f"('move', {int(action)})"
    return f"<observation>o</observation><justification>j</justification><action>{name}</action>"


@dataclass
class Player:
    """In place of SkyRL's generator: plays whole episodes through the registered environment."""

    cfg: Any
    tokenizer: Letters
    errs: Callable[[int, str], float] = lambda step, phase: 0.3
    """(global step, phase) -> chance that a turn is a wrong one."""
    reward_a_token: bool = True
    """SkyRL's generator for pictures gives a list of rewards an episode, others may give one number."""
    fails_at: int | None = None
    """Global step in whose rollouts the engine dies."""
    played: list[tuple[int, str, int]] = field(default_factory=list)

    async def generate(self, batch: Any) -> dict[str, Any]:
        step, phase = batch["batch_metadata"].global_step, batch["batch_metadata"].training_phase
        if phase == "train" and step == self.fails_at:
            raise RuntimeError("the engine died")
        self.played.append((step, phase, len(batch["prompts"])))
        episodes = [
            self._play(env_class, extras, random.Random(f"{step} {phase} {number}"), self.errs(step, phase))
            for number, (env_class, extras) in enumerate(zip(batch["env_classes"], batch["env_extras"], strict=True))
        ]
        columns = {name: [one[name] for one in episodes] for name in episodes[0]}
        return {**columns, "prompt_token_ids": [self.tokenizer.encode("p") for _ in episodes], "rollout_metrics": {}}

    def _play(self, env_class: str, extras: dict[str, Any], luck: random.Random, errs: float) -> dict[str, Any]:
        extras["max_turns"] = self.cfg.generator.max_turns
        env = skyrl_gym.make(env_class, env_config={}, extras=extras)
        env.init([])
        plan, ids, rewards, done = list(shortest_plan(make_maze(extras["seed"]))), list[int](), list[float](), False
        while not done:
            wrong = luck.random() < errs or not plan
            action = Action.STOP if wrong else plan.pop(0)
            output = env.step(said(action))
            tokens = [*self.tokenizer.encode(said(action)), END]
            ids += tokens
            rewards += [0.0] * (len(tokens) - 1) + [float(output["reward"])]
            done = output["done"]
        env.close()
        return {
            "response_ids": ids,
            "rewards": rewards if self.reward_a_token else sum(rewards),
            "loss_masks": [1] * len(ids),
            "rollout_logprobs": [0.0] * len(ids),
            "stop_reasons": "stop",
            "env_metrics": env.get_metrics(),
        }


class Actors:
    """In place of ``WorkerDispatch``: shards in SkyRL's layout for ``world`` ranks."""

    def __init__(self, world: int) -> None:
        self.world, self.updates, self.loaded = world, 0, list[str]()

    def get_lcm_dp_size(self) -> int:
        return self.world

    def dp_size(self, model: str) -> int:
        return self.world

    async def save_weights_for_sampler(self, *_: Any) -> None: ...

    def empty_cache(self, *_: Any) -> None: ...

    def init_weight_sync_state(self, *_: Any) -> None: ...

    def get_node_ids(self) -> list[str]:
        return ["the only one"]

    def forward(self, model: str, data: Any) -> WorkerOutput:
        width = int(data.metadata["response_length"])
        return WorkerOutput(loss_fn_outputs=[{"logprobs": [0.0] * width} for _ in range(len(data))])

    def stage_data(self, model: str, data: Any, boundaries: Any) -> list[Any]:
        return [data[start:end] for start, end in boundaries]

    def forward_from_staged(self, model: str, chunk: Any) -> WorkerOutput:
        return self.forward(model, chunk)

    def forward_backward_from_staged(self, model: str, chunk: Any) -> WorkerOutput:
        self.updates += 1
        return WorkerOutput(metrics={"policy_loss": 0.1})

    def optim_step(self, model: str) -> float:
        return 1.0

    def save_checkpoint(self, model: str, folder: str, tokenizer: Any) -> None:
        policy = Path(folder)
        (policy / "huggingface").mkdir(parents=True, exist_ok=True)
        (policy / "huggingface" / "config.json").write_text("{}")
        (policy / "fsdp_config.json").write_text(json.dumps({"fsdp_strategy": "fsdp", "world_size": self.world}))
        write_adapter(policy / "lora_adapter")
        for rank in range(self.world):
            for part in ("model", "optim", "extra_state"):
                torch.save({"x": torch.ones(64)}, policy / f"{part}_world_size_{self.world}_rank_{rank}.pt")

    def load_checkpoint(self, model: str, folder: str, **_: Any) -> None:
        for rank in range(self.world):
            torch.load(Path(folder) / f"model_world_size_{self.world}_rank_{rank}.pt", weights_only=True)
        self.loaded.append(folder)

    def save_hf_model(self, model: str, folder: str, tokenizer: Any) -> None:
        write_adapter(Path(folder))
        (Path(folder) / "config.json").write_text("{}")


def write_adapter(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{stem}.lora_A.weight": torch.ones(8, 16), f"{stem}.lora_B.weight": torch.ones(16, 8)}
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "/shared/models/local",
        "target_modules": ["q_proj"],
        "r": 8,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def tiny(gpus: int = 2, **training: Any) -> RunSpec:
    """Six steps of four mazes on one node."""
    raw = spec_json(run_id="tiny")
    raw["task"] |= {
        "train": {"kind": "seeds", "start": 10_000, "stop": 10_040},
        "eval": {"kind": "seeds", "start": 0, "stop": 8},
        "holdout": {"kind": "seeds", "start": 500_000, "stop": 500_006},
        "success": {"min_score": 0.8},
    }
    raw["model"] |= {"lora": {"rank": 8}}  # as ``write_adapter`` does
    raw["topology"] = {"workers": {"instance_type": "ml.g7e.12xlarge", "count": 1, "gpus": gpus}}
    numbers = {"total_steps": 6, "train_batch_size": 4, "policy_mini_batch_size": 2, "n_samples_per_prompt": 2}
    numbers |= {"micro_train_batch_size_per_gpu": 1, "micro_forward_batch_size_per_gpu": 1, "max_turns": 20}
    numbers |= {"eval_interval": 2, "ckpt_interval": 2, "hf_save_interval": 2, "max_ckpts_to_keep": 2}
    without_ray = {
        "trainer.enable_ray_gpu_monitor": False,
        "generator.inference_engine.enable_ray_prometheus_stats": False,
    }
    raw["training"] = numbers | {"skyrl": {"overrides": without_ray}} | training
    return RunSpec.model_validate(raw)


class Rig:
    """One attempt of a spec on a CPU, up to where SkyRL's loop begins."""

    def __init__(self, spec: RunSpec, shared: Path, store: MemoryStore, attempt: int = 1, floor: int = 0) -> None:
        self.spec, self.store, self.lines = spec, store, list[str]()
        reporter = ProgressReporter(store, first_progress(spec.run_id, attempt, spec.training.total_steps, floor))
        self.job = Job(
            spec, attempt, floor, SharedPaths(spec.run_id, shared), store, lambda _: store, Uploader(store), reporter,
            Record(), Stopwatch(), self.lines.append,
        )  # fmt: skip
        self.prepared: Prepared = prepare(self.job)
        self.cfg = configuration(self.job, self.prepared)
        self.actors = Actors(spec.topology.gpus)
        self.player = Player(self.cfg, Letters())

    def trainer(self, resumed: int) -> HookedTrainer:
        """SkyRL's trainer with our hooks, beginning where the guard says."""
        register_environment(self.prepared.plan)
        self.results = Results(self.job, self.prepared.inputs.model, resumed)
        holdout = self._dataset([str(self.prepared.holdout)]) if self.prepared.holdout else None
        trainer = HookedTrainer(
            self.results,
            holdout,
            cfg=self.cfg,
            tracker=Tracking("p", "r", "console", self.cfg),
            tokenizer=self.player.tokenizer,
            train_dataset=self._dataset(self.cfg.data.train_data),
            eval_dataset=self._dataset(self.cfg.data.val_data),
            inference_engine_client=Engine(),
            generator=self.player,
        )
        trainer.dispatch = self.actors
        self.trained = trainer
        return trainer

    def train(self, resumed: int = 0) -> Ended | None:
        """The whole loop; how it ended, where it did so before its last step."""
        try:
            asyncio.run(self.trainer(resumed).train())
        except EndTraining as end:
            return end.ended
        finally:
            self.job.uploader.flush(30)
            self.job.reporter.flush(10)
        return None

    def _dataset(self, files: list[str]) -> PromptDataset:
        return PromptDataset(files, self.player.tokenizer, self.cfg.trainer.max_prompt_length, num_workers=1)


class Engine:
    async def sleep(self, *_: Any, **__: Any) -> None: ...

    async def wake_up(self, *_: Any, **__: Any) -> None: ...
