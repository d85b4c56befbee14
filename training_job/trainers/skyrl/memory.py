"""An estimate of GPU memory per rank, to catch what cannot fit before engines start. An estimate: it leaves out what
fragments, and kernels' own workspaces, and says so by a margin.

Sources: SkyRL's checkpoints hold the base in fp32 (about 35 GB for 8 billion parameters), so its FSDP shards do; adapters
have a gradient and two Adam moments in fp32; colocated engines sleep while the policy trains, and the policy is moved to
the host while they generate. SkyRL 0.3.0 makes the logits of a whole micro batch at once, in bf16 (``HFModelWrapper.forward``);
flash-attn's cross entropy writes their gradient over them, plain torch keeps two more of their size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nightshift.contract import RunSpec
from nightshift.contract.skyrl import max_input_length

GIB: Final = 1024**3
MARGIN: Final = 0.08
"""Of a GPU's memory: CUDA context, NCCL buffers, fragmentation."""

_MAX_CONFIG: Final = 10_000_000
"""Bytes; a longer one is cut off, and so is no JSON."""

GPU_GIB: Final[Mapping[str, float]] = {
    "ml.g5": 22.0, "ml.g6": 22.0, "ml.g6e": 44.0, "ml.g7e": 95.0,
    "ml.p4d": 39.0, "ml.p4de": 79.0, "ml.p5": 79.0, "ml.p5e": 140.0, "ml.p5en": 140.0, "ml.p6-b200": 178.0,
}  # fmt: skip
"""Usable memory of one GPU by instance family."""


@dataclass(frozen=True)
class Shape:
    """What is needed of a model: all parameters, the language model's layers, width and vocabulary, and the width of its
    keys (heads times head size)."""

    parameters: float
    layers: int
    hidden: int
    vocabulary: int
    keys: int


KNOWN: Final[Mapping[str, Shape]] = {
    "qwen3-vl-8b": Shape(8.77e9, layers=36, hidden=4_096, vocabulary=151_936, keys=1_024),
}
"""Shapes of models by name, for who has no config.json at hand. Source: the model's own config.json and safetensors index."""


def shape_of(config: Mapping[str, Any]) -> Shape:
    """From a Hugging Face config.json; a vision-language model keeps its language model under ``text_config``. The number
    of parameters is that of a gated transformer of these sizes, a vision tower included at its own sizes."""
    text = config.get("text_config") or config
    hidden, layers, vocabulary = int(text["hidden_size"]), int(text["num_hidden_layers"]), int(text["vocab_size"])
    heads = int(text.get("num_attention_heads", 1))
    head = int(text.get("head_dim") or hidden // heads)
    keys = int(text.get("num_key_value_heads", heads))
    attention = hidden * head * (2 * heads + 2 * keys)
    mlp = 3 * hidden * int(text.get("intermediate_size", 4 * hidden))
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    tower = config.get("vision_config") or {}
    width = int(tower.get("hidden_size", 0))
    vision = int(tower.get("depth", 0)) * (4 * width * width + 2 * width * int(tower.get("intermediate_size", 0)))
    return Shape(float(layers * (attention + mlp) + embeddings + vision), layers, hidden, vocabulary, keys * head)


def read_shape(model: Path) -> Shape | None:
    """None where there is no config.json, or one of a kind that is not known."""
    try:
        with (model / "config.json").open("rb") as file:
            return shape_of(json.loads(file.read(_MAX_CONFIG)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


@dataclass(frozen=True)
class Estimate:
    """GiB on one GPU, and of one checkpoint. ``problem`` is None where it should fit."""

    gpu: float | None
    engine: float | None
    engine_weights: float
    engine_cache: float
    """Keys and values of one conversation as long as max_model_len: vLLM does not start where that has no room."""
    shards: float
    adapter: float
    activations: float
    logits: float
    checkpoint: float

    @property
    def training(self) -> float:
        return self.shards + self.adapter + self.activations + self.logits

    @property
    def problem(self) -> str | None:
        if self.gpu is None or self.engine is None:
            return None
        usable = self.gpu * (1 - MARGIN)
        if self.training > usable:
            return (
                f"training needs about {self.training:.0f} GiB of {usable:.0f} GiB a GPU: lower "
                "training.micro_train_batch_size_per_gpu, or training.skyrl.max_input_length"
            )
        if self.engine_weights + self.engine_cache >= self.engine:
            return (
                f"the engine has {self.engine:.0f} GiB for its weights ({self.engine_weights:.0f}) and one conversation of "
                f"max_model_len ({self.engine_cache:.1f}): raise training.gpu_memory_utilization or "
                "training.skyrl.tensor_parallel_size, or lower training.skyrl.max_model_len"
            )
        return None


def estimate(spec: RunSpec, shape: Shape) -> Estimate:
    """For the policy's ranks of a spec: one a GPU."""
    training, more, world = spec.training, spec.training.skyrl, spec.topology.gpus
    adapter = 2 * spec.model.lora.rank * shape.hidden * shape.layers * 7  # q, k, v, o, gate, up, down: two halves each
    tokens = training.micro_train_batch_size_per_gpu * (max_input_length(spec) + more.max_generate_length)
    gathered = 2 * 2 * shape.parameters / max(1, shape.layers)  # two layers in bf16: the one in use, and the next
    kept = 2 * tokens * shape.hidden * shape.layers  # one bf16 tensor a layer; the rest is computed again
    logits = 2 * tokens * shape.vocabulary * (1 if more.flash_attn else 3)
    cache = 2 * 2 * shape.layers * shape.keys * more.max_model_len  # keys and values in bf16
    family = spec.topology.workers.instance_type.rsplit(".", 1)[0]
    gpu = GPU_GIB.get(family)
    return Estimate(
        gpu=gpu,
        engine=None if gpu is None else gpu * training.gpu_memory_utilization,
        engine_weights=2 * shape.parameters / more.tensor_parallel_size / GIB,
        engine_cache=cache / more.tensor_parallel_size / GIB,
        shards=4 * shape.parameters / world / GIB,
        adapter=16 * adapter / world / GIB,
        activations=(gathered + kept) / GIB,
        logits=logits / GIB,
        checkpoint=(4 * shape.parameters + 12 * adapter) / GIB,
    )
