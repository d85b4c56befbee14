"""Writing, checking and reading the local trainer's checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nightshift.contract import SharedPaths
from training_job.checkpoints import PARTS, part_file, problems_of_files, write_pointer
from training_job.errors import StorageUnreachable
from training_job.files import sync_tree
from training_job.policies import lora_of_state

if TYPE_CHECKING:
    from training_job.trainers.local.learner import Learner


@dataclass(frozen=True)
class TrainerState:
    """trainer_state.pt: where the run was."""

    global_step: int
    seed: int

    def as_dict(self) -> dict[str, int]:
        return {"global_step": self.global_step, "seed": self.seed}


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in memory."""

    trainer: TrainerState
    parts: Mapping[str, Any]
    """model, optim and extra_state."""

    def lora_arrays(self) -> dict[str, Any]:
        """The adapter as the rollout workers take it."""
        return {name: (a.numpy(), b.numpy()) for name, (a, b) in lora_of_state(self.parts["model"]).items()}


def save_snapshot(paths: SharedPaths, learner: Learner, trainer: TrainerState, base: Path) -> Path:
    """Write a checkpoint, read it back, and only then let the pointer name it; returns its folder.

    The folder is filled under a hidden name and renamed when it is whole: what has the name of a step is a checkpoint.
    Raises StorageUnreachable where what is read back is not what was written: the checkpoint before is still whole.
    """
    step = trainer.global_step
    fresh = paths.ckpts / f".global_step_{step}"
    shutil.rmtree(fresh, ignore_errors=True)
    policy = fresh / "policy"
    policy.mkdir(parents=True)
    torch.save(trainer.as_dict(), fresh / "trainer_state.pt")
    torch.save({"steps_drawn": step, "seed": trainer.seed}, fresh / "data.pt")
    for part, value in learner.state().items():
        torch.save(value, policy / part_file(part))
    (policy / "fsdp_config.json").write_text(json.dumps({"fsdp_strategy": "none", "world_size": 1}))
    (policy / "huggingface").mkdir()
    shutil.copyfile(base / "config.json", policy / "huggingface" / "config.json")
    learner.save_adapter(policy / "lora_adapter")
    sync_tree(fresh)
    problems = problems_of_snapshot(fresh, step)
    if problems:
        raise StorageUnreachable(
            f"the checkpoint of step {step} was read back broken: {'; '.join(problems[:5])}; the next attempt goes on from the "
            "one before. If this repeats, look at the shared filesystem"
        )
    folder = paths.checkpoint(step)
    if folder.exists():  # of an attempt that the guard judged whole, but that did not reach its pointer
        shutil.rmtree(folder)
    fresh.rename(folder)
    write_pointer(paths, step)
    return folder


def problems_of_snapshot(folder: Path, step: int) -> list[str]:
    """The guard's check for this trainer: every file is whole, is of this step, and the adapter is the model's."""
    problems = problems_of_files(folder)
    if problems:
        return problems
    try:
        snapshot = load_snapshot(folder)
        saved = _adapter_of(folder)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - torch and pickle raise many kinds for files that are not what they say
        return [f"cannot be loaded ({type(error).__name__}: {str(error)[:200]})"]
    if snapshot.trainer.global_step != step:
        return [f"trainer_state.pt is of step {snapshot.trainer.global_step}, not {step}"]
    trained = lora_of_state(snapshot.parts["model"])
    same = trained.keys() == saved.keys() and all(
        torch.equal(one, other) for name in trained for one, other in zip(trained[name], saved[name], strict=True)
    )
    return [] if same else ["policy/lora_adapter holds other weights than the model file"]


def _adapter_of(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    from safetensors.torch import load_file

    return lora_of_state(load_file(folder / "policy" / "lora_adapter" / "adapter_model.safetensors"))


def load_snapshot(folder: Path) -> Snapshot:
    """Read a checkpoint. Files may come from a broken mount: nothing but tensors and plain values is unpickled."""
    state = torch.load(folder / "trainer_state.pt", weights_only=True)
    torch.load(folder / "data.pt", weights_only=True)
    parts = {part: torch.load(folder / "policy" / part_file(part), weights_only=True) for part in PARTS}
    return Snapshot(TrainerState(**state), parts)
