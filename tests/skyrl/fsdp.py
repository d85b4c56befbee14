"""SkyRL's FSDP strategy on a CPU: its own model wrapper, shards, checkpoints and exports, over a tiny Qwen3-VL.

What is replaced needs CUDA: NCCL by gloo, the mesh's device, and the functions that wait for a GPU. No forward pass is run: the
gradients are random numbers, so that an optimizer step fills the adapters and the moments as a training step would.

``python -m tests.skyrl.fsdp FOLDER --ranks 2`` leaves in FOLDER what so many ranks save: ``checkpoint/policy`` and ``export``;
and in ``begun`` and ``stepped`` what a policy exports that begins with that export, before and after a step of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import distributed
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

import tests.skyrl.older_python  # noqa: F401
from tests.skyrl.words import tokenizer
from training_job.trainers.skyrl.beginning import load_adapter

RANK = 8


def _import_strategy() -> ModuleType:
    """SkyRL's module, which imports two functions of flash-attn that only packed batches use. The stand-in goes again:
    transformers would take it for the package."""
    packing = ModuleType("flash_attn.bert_padding")
    packing.pad_input = packing.unpad_input = None  # type: ignore[attr-defined]
    stand_ins = {"flash_attn": ModuleType("flash_attn"), "flash_attn.bert_padding": packing}
    sys.modules.update(stand_ins)
    try:
        from skyrl.backends.skyrl_train.distributed import fsdp_strategy
    finally:
        for name in stand_ins:
            del sys.modules[name]
    return fsdp_strategy


strategies = _import_strategy()


def use_cpu() -> None:
    """In this process, for good."""
    from skyrl.backends.skyrl_train.distributed import fsdp_utils
    from torch.distributed.device_mesh import init_device_mesh

    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    fsdp_utils._sync_non_persistent_buffers = lambda *_: None  # only a forward pass needs them
    strategies.create_device_mesh = lambda world_size, fsdp_size: init_device_mesh(
        "cpu", mesh_shape=(world_size,), mesh_dim_names=["fsdp"]
    )


def vision_language_config() -> Qwen3VLConfig:
    """Two layers of each: small, but with every kind of layer that the real one has."""
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_theta": 10_000.0}
    text: dict[str, Any] = {
        "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "rope_parameters": rope,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16,
        "deepstack_visual_indexes": [0], "patch_size": 4, "num_position_embeddings": 16,
    }  # fmt: skip
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)


def write_base_model(folder: Path) -> Path:
    """A base model as ``model.source`` would name it: weights, configuration and tokenizer."""
    torch.manual_seed(0)
    Qwen3VLForConditionalGeneration(vision_language_config()).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


class Policy:
    """One rank's policy, made and driven by SkyRL's own code; called as SkyRL's worker calls it."""

    def __init__(self, base: Path, exclude_modules: str | None = ".*visual.*", rank: int = RANK) -> None:
        from skyrl.train.config import SkyRLTrainConfig

        lora = {"rank": rank, "alpha": 32, **({"exclude_modules": exclude_modules} if exclude_modules else {})}
        keys = {f"trainer.policy.model.lora.{name}": value for name, value in lora.items()}
        cfg = SkyRLTrainConfig.from_cli_overrides({"trainer.policy.model.path": str(base), **keys}).trainer
        self.strategy = strategies.FSDPStrategy(
            cfg.policy.fsdp_config, cfg.policy.optimizer_config, cfg.policy.model, num_training_steps=10
        )
        self.strategy.setup_distributed()
        wrapped = strategies.HFModelWrapper(
            str(base), bf16=False, lora_rank=cfg.policy.model.lora.rank, lora_alpha=cfg.policy.model.lora.alpha,
            target_modules=cfg.policy.model.lora.target_modules, exclude_modules=cfg.policy.model.lora.exclude_modules,
        )  # fmt: skip
        self.model, self.optimizer, self.scheduler = self.strategy.prepare((wrapped, None, None))
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(base)

    def step(self) -> None:
        """An optimizer step with gradients that no forward pass made."""
        for parameter in self.model.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        self.strategy.optimizer_step(self.optimizer, self.model, self.scheduler)

    def adapters(self) -> dict[str, torch.Tensor]:
        """What is trained, by name."""
        named = self.model.model.named_parameters()
        return {name: one.full_tensor().detach().clone() for name, one in named if one.requires_grad}

    def save(self, folder: Path) -> None:
        self.strategy.save_checkpoint(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, ckpt_dir=str(folder),
            node_local_rank=distributed.get_rank(), tokenizer=self.tokenizer,
        )  # fmt: skip

    def load(self, folder: Path) -> None:
        self.strategy.load_checkpoint(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, ckpt_dir=str(folder),
            load_optimizer_states=True, load_lr_scheduler_states=True,
        )  # fmt: skip

    def export(self, folder: Path) -> None:
        self.strategy.save_hf_model(self.model, str(folder), tokenizer=self.tokenizer)


def join(rank: int, ranks: int, meeting: Path) -> None:
    """Become one of ``ranks`` processes; ``meeting`` is a file that does not exist yet."""
    os.environ.pop("LOCAL_RANK", None)
    use_cpu()
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)


def _one_rank(rank: int, ranks: int, folder: Path) -> None:
    join(rank, ranks, folder / "meeting")
    policy = Policy(folder / "base")
    policy.step()
    policy.save(folder / "checkpoint" / "policy")
    policy.export(folder / "export")
    begun = Policy(folder / "base")
    load_adapter(begun.model.model, folder / "export")
    begun.export(folder / "begun")
    begun.step()
    begun.export(folder / "stepped")
    distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    write_base_model(given.folder / "base")
    torch.set_num_threads(1)
    # A fork: the imports, which cost far more than the work, are done once.
    children = []
    for rank in range(given.ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _one_rank(rank, given.ranks, given.folder)
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
