"""SkyRL's policy worker, which begins with a given adapter. SkyRL 0.3.0 itself can only begin with a fresh one, or resume a
checkpoint of as many ranks with its optimizer and its step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ADAPTER_NAME = "default"
"""PEFT's, in the names of a model's parameters and not in those of a saved adapter."""


def beginning_with(folder: Path) -> Any:
    """An actor class in place of SkyRL's ``PolicyWorker``: the same, and every rank reads the adapter from the shared mount once
    its model is there. The optimizer has no state by then, so its first step finds the adapter's weights."""
    import ray
    from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase

    class Begun(FSDPPolicyWorkerBase):  # type: ignore[misc]  # its base is untyped
        def init_model(self, model_path: str, num_training_steps: int | None = None) -> None:
            super().init_model(model_path, num_training_steps)
            load_adapter(self.model.model, folder)

    return ray.remote(num_gpus=1)(Begun)


def load_adapter(model: Any, folder: Path) -> int:
    """Write a saved adapter into a PEFT model whose parameters may be sharded (DTensor); how many tensors were written.

    Raises ValueError where the adapter's layers or shapes are not the model's: nothing was written then."""
    import torch
    from safetensors.torch import load_file
    from torch.distributed.tensor import DTensor, distribute_tensor

    saved = load_file(Path(folder) / "adapter_model.safetensors")
    adapted = {
        name.replace(f".{ADAPTER_NAME}.", "."): one for name, one in model.named_parameters() if ".lora_" in name
    }
    other = sorted(saved.keys() ^ adapted.keys())
    other += [name for name in saved.keys() & adapted.keys() if saved[name].shape != adapted[name].shape]
    if other or not saved:
        raise ValueError(f"the adapter in {folder} has other layers than the model: {', '.join(other[:3]) or 'none'}")
    with torch.no_grad():
        for name, one in adapted.items():
            value = saved[name].to(device=one.device, dtype=one.dtype)
            if isinstance(one, DTensor):
                # Every rank has read the same file: nothing needs to be sent.
                value = distribute_tensor(value, one.device_mesh, one.placements, src_data_rank=None)
            one.copy_(value)
    return len(adapted)
