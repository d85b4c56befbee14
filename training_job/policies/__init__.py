"""Small policies of the local trainer, found by the ``model_type`` in a base model's config.json.

Each has two forms with the same weights: a plain torch module (``Net``), all that a rollout needs and quick to import,
and a transformers ``PreTrainedModel`` around it, which training, PEFT and everybody outside uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from training_job.policies.net import Net

WEIGHTS_PREFIX: Final = "net."
"""Where the plain module sits inside of the PreTrainedModel."""

_NETS: Final[Mapping[str, str]] = {
    "maze_policy": "training_job.policies.maze:MazeNet",
    "text_policy": "training_job.policies.text:TextNet",
}


class UnknownModel(ValueError):
    """The folder holds no base model that the local trainer knows."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a base model. Raises UnknownModel where it is missing, unreadable or of another kind."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise UnknownModel(f"{folder.name}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") not in _NETS:
        kinds = ", ".join(sorted(_NETS))
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise UnknownModel(f"model_type {kind!r} is none that the local trainer knows ({kinds})")
    replies = config.get("replies")
    if not isinstance(replies, list) or len(replies) < 2 or not all(isinstance(text, str) for text in replies):
        raise UnknownModel("config.json needs `replies`: the closed list of texts that the policy chooses from")
    return config


def new_net(config: Mapping[str, Any]) -> Net:
    """The plain module of a configuration, with fresh weights."""
    module, _, name = _NETS[config["model_type"]].partition(":")
    return cast("Net", getattr(import_module(module), name)(config))


def load_net(folder: Path) -> Net:
    """The plain module with the weights of a base model; imports torch and safetensors only."""
    from safetensors.torch import load_file

    net = new_net(read_config(folder))
    weights = load_file(folder / "model.safetensors")
    net.load_state_dict({name.removeprefix(WEIGHTS_PREFIX): value for name, value in weights.items()})
    return net.eval()


def closed_replies(config: Mapping[str, Any]) -> Sequence[str]:
    """The texts that the policy chooses from; logit i belongs to text i."""
    return tuple(config["replies"])
