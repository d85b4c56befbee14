"""The policy, its optimizer and the updates of one step. Slow to import (transformers, peft)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn

from nightshift.contract.spec import LoraSettings, Training
from training_job.policies import new_player, read_config
from training_job.policies.player import Player
from training_job.policies.pretrained import attach_lora, load_policy, lora_weights
from training_job.trainers.local.episodes import Played
from training_job.trainers.local.grpo import clipped_loss, group_advantages, reply_log_probs, teaching_choices

MAX_GRAD_NORM: Final = 1.0
_UPDATE_DICE: Final = 1
"""Keeps the order of updates apart from other random choices of the same step."""


class Learner:
    """Everything that training changes. Uses one thread: two differ in the last bits."""

    def __init__(self, base: Path, lora: LoraSettings, training: Training) -> None:
        torch.set_num_threads(1)
        self.training = training
        self.policy: PeftModel = attach_lora(load_policy(base), lora.rank, lora.alpha, training.seed)
        self.player: Player = new_player(read_config(base), {})
        """Turns observations into inputs; it has no weights."""

        self.trainable = [p for p in self.policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.trainable, lr=training.learning_rate)

    def lora_arrays(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """The adapter as the rollout workers take it."""
        return {name: (a.numpy(), b.numpy()) for name, (a, b) in lora_weights(self.policy).items()}

    def update(self, step: int, played: Played) -> dict[str, float]:
        """The optimizer updates of step ``step`` (from 1) on its batch; returns what SkyRL would log.

        Old log-probabilities are computed here, before the first update. The loss is the mean over all sampled replies
        (SkyRL's ``token_mean_legacy``, a reply counting as a token), scaled to each mini-batch.
        """
        settings = self.training
        group = settings.n_samples_per_prompt
        advantages = group_advantages(played.scores, group)
        choices = teaching_choices(played, advantages, group)
        metrics = {
            "reward/avg_raw_reward": float(played.scores.mean()),
            "generate/avg_turns": float(played.turns.mean()),
            "policy/mixed_groups": float((advantages.reshape(-1, group) != 0).any(axis=1).mean()),
        }
        if len(choices) == 0:
            return metrics
        everything = np.arange(len(choices))
        with torch.no_grad():
            old = reply_log_probs(self.policy, self.player.batch, played, choices, everything, settings.temperature)
        self._set_learning_rate(step)
        scale = settings.train_batch_size // settings.policy_mini_batch_size / float(played.turns.sum())
        losses, norms = [], []
        for rows in self._mini_batches(step, choices.prompt):
            new = reply_log_probs(self.policy, self.player.batch, played, choices, rows, settings.temperature)
            picked = torch.from_numpy(rows)
            loss = scale * clipped_loss(new, old[picked], choices.advantage[picked], settings.clip)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # untyped there
            norms.append(float(nn.utils.clip_grad_norm_(self.trainable, MAX_GRAD_NORM)))
            self.optimizer.step()
            losses.append(loss.item())
        return metrics | {"policy/final_loss": losses[-1], "policy/raw_grad_norm": float(np.mean(norms))}

    def _set_learning_rate(self, step: int) -> None:
        warm = min(1.0, step / max(1, self.training.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.training.learning_rate * warm

    def _mini_batches(self, step: int, prompt: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Rows of the choices of each mini-batch of prompts, in an order that the step's dice decide."""
        settings = self.training
        order = np.random.default_rng([settings.seed, step, _UPDATE_DICE]).permutation(settings.train_batch_size)
        for prompts in order.reshape(-1, settings.policy_mini_batch_size):
            rows = np.flatnonzero(np.isin(prompt, prompts))
            if len(rows):
                yield rows

    def state(self) -> dict[str, Any]:
        """What a bit-identical continuation needs, in SkyRL's three parts."""
        return {
            "model": self.policy.state_dict(),
            "optim": self.optimizer.state_dict(),
            "extra_state": {"torch_rng": torch.get_rng_state()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Raises RuntimeError or ValueError for a state of another model."""
        self.policy.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optim"])
        torch.set_rng_state(state["extra_state"]["torch_rng"])

    def load_adapter(self, folder: Path) -> None:
        """Begin with a saved adapter, with an optimizer that knows nothing of it. Raises ValueError for one of another form."""
        found: Any = set_peft_model_state_dict(self.policy, load_file(folder / "adapter_model.safetensors"))
        missing = [name for name in found.missing_keys if ".lora_" in name]
        if missing or found.unexpected_keys:
            raise ValueError(f"the adapter's layers are not the policy's: {[*missing, *found.unexpected_keys][:3]}")

    def save_adapter(self, folder: Path) -> None:
        """adapter_config.json and adapter_model.safetensors, as PEFT writes them."""
        self.policy.save_pretrained(str(folder), save_embedding_layers=False)
