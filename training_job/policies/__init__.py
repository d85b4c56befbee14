"""Small policies of the local trainer, found by the ``model_type`` in a base model's config.json.

Each has three forms with the same weights: a torch module (``nets``), a transformers ``PreTrainedModel`` around it
(``pretrained``), which training, PEFT and everybody outside uses, and a numpy player that rollout workers ask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from training_job.policies.player import Player

T = TypeVar("T")

WEIGHTS_PREFIX: Final = "net."
"""Where the torch module sits inside of the PreTrainedModel."""

_PLAYERS: Final[Mapping[str, str]] = {
    "maze_policy": "training_job.policies.maze:MazePlayer",
    "text_policy": "training_job.policies.text:TextPlayer",
}
_LORA_KEY: Final = re.compile(r"^base_model\.model\.net\.(?P<layer>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight$")


class UnknownModel(ValueError):
    """The folder holds no base model that the local trainer knows."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a base model. Raises UnknownModel where it is missing, unreadable or of another kind."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise UnknownModel(f"{folder.name}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") not in _PLAYERS:
        kinds = ", ".join(sorted(_PLAYERS))
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise UnknownModel(f"model_type {kind!r} is none that the local trainer knows ({kinds})")
    replies = config.get("replies")
    if not isinstance(replies, list) or len(replies) < 2 or not all(isinstance(text, str) for text in replies):
        raise UnknownModel("config.json needs `replies`: the closed list of texts that the policy chooses from")
    return config


def load_player(folder: Path) -> Player:
    """The player with the weights of a base model; imports neither torch nor transformers."""
    from safetensors.numpy import load_file

    config = read_config(folder)
    weights = load_file(folder / "model.safetensors")
    return new_player(config, {name.removeprefix(WEIGHTS_PREFIX): value for name, value in weights.items()})


def new_player(config: Mapping[str, Any], weights: Mapping[str, Any]) -> Player:
    """The player of a configuration; ``weights`` by the torch module's names, float32 arrays."""
    module, _, name = _PLAYERS[config["model_type"]].partition(":")
    return cast("Player", getattr(import_module(module), name)(config, weights))


def closed_replies(config: Mapping[str, Any]) -> Sequence[str]:
    """The texts that the policy chooses from; logit i belongs to text i."""
    return tuple(config["replies"])


def lora_of_state(state: Mapping[str, T]) -> dict[str, tuple[T, T]]:
    """(A, B) by layer, out of a PEFT model's state or of a saved adapter; other entries are left out."""
    found: dict[str, dict[str, T]] = {}
    for key, value in state.items():
        if match := _LORA_KEY.match(key):
            found.setdefault(match["layer"], {})[match["side"]] = value
    return {layer: (sides["A"], sides["B"]) for layer, sides in found.items()}


def adapter_arrays(folder: Path) -> dict[str, tuple[Any, Any]]:
    """A saved adapter as rollout workers take it: (A, B) by layer, float32 arrays."""
    from safetensors.numpy import load_file

    return lora_of_state(load_file(folder / "adapter_model.safetensors"))
