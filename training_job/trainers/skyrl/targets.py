"""Which layers of the model itself would get adapters, before engines start: the names in a spec's rule are those of one
family of models, and another may call its vision tower something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from nightshift.contract.skyrl import adapts
from training_job.errors import BadConfiguration, is_storage_gone

LANGUAGE: Final = "language_model"
"""Part of the name of every layer of the language model, in the vision-language models of transformers."""


def tower_layers(model: Path) -> list[str]:
    """Linear layers that do not belong to the language model, by the names that PEFT compares. Empty for a text model, and for
    one whose layers cannot be told apart. No weights are read.

    Raises BadConfiguration (``model.source``) where transformers does not know the model."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    try:
        (model / "config.json").read_bytes()  # transformers' own error of a mount that is gone has lost its number
        config = AutoConfig.from_pretrained(str(model))
        if getattr(config, "vision_config", None) is None:
            return []
        with torch.device("meta"):
            net: Any = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]  # untyped there
    except (OSError, ValueError, KeyError, ImportError) as error:
        if is_storage_gone(error):
            raise
        said = " ".join(str(error).split())[:300]
        raise BadConfiguration("model.source", f"transformers cannot make this model: {said}") from error
    names = [name for name, layer in net.named_modules() if isinstance(layer, torch.nn.Linear) and name != "lm_head"]
    if not any(LANGUAGE in name.split(".") for name in names):
        return []
    return [name for name in names if LANGUAGE not in name.split(".")]


def refuse_adapted_tower(cfg: Any) -> None:
    """``cfg``: SkyRL's. Raises BadConfiguration where its policy's vision tower would get adapters that the engines leave
    out: rollouts and training would use different weights."""
    engine = cfg.generator.inference_engine.engine_init_kwargs
    if not cfg.generator.vision_language_generator or engine.get("enable_tower_connector_lora") is True:
        return
    lora = cfg.trainer.policy.model.lora
    tower = tower_layers(Path(cfg.trainer.policy.model.path))
    adapted = [name for name in tower if adapts(name, lora.target_modules, lora.exclude_modules)]
    if adapted:
        raise BadConfiguration(
            "model.lora.exclude_modules",
            f"{len(adapted)} layers outside of the language model would get adapters, {adapted[0]} for one, which the engines "
            f"leave out: rollouts and training would differ. Exclude every name without {LANGUAGE}: "
            rf"^(?!.*\b{LANGUAGE}\b).*$",
        )
