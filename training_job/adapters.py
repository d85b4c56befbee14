"""What must hold of a LoRA adapter before it is published: PEFT, vLLM and Ray Serve load it, and it is what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nightshift.contract.spec import BaseModelSettings, LoraSettings
from training_job.errors import BadConfiguration, CheckpointUnusable

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_CONFIG: Final = "adapter_config.json"
_PREFIX: Final = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_TOWER: Final = re.compile(r"(^|\.)(visual|vision_tower|vision_model)(\.|$)")
_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")
_READS_HIDDEN: Final = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
_WRITES_HIDDEN: Final = frozenset({"o_proj", "down_proj"})
"""Layers of a gated transformer whose input, or output, is as wide as the model."""

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Shapes of a module's A, (rank, inputs), and B, (outputs, rank)."""


def check_export(folder: Path) -> tuple[int, int]:
    """(non-zero lora_B tensors, all lora_B tensors) of an adapter's weights, looked at by themselves.

    Raises CheckpointUnusable for keys with an adapter's name in them, missing halves, halves that do not fit each other,
    types other than one kind of float, or values that are not finite.
    """
    import torch
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(folder / ADAPTER_WEIGHTS)
    a_keys = {key for key in tensors if key.endswith(_A)}
    b_keys = {key for key in tensors if key.endswith(_B)}
    problems = [f"unexpected key {key}" for key in sorted(tensors.keys() - a_keys - b_keys)]
    problems += [f"{key} lacks its lora_B" for key in sorted(a_keys) if key.replace(_A, _B) not in b_keys]
    problems += [f"{key} lacks its lora_A" for key in sorted(b_keys) if key.replace(_B, _A) not in a_keys]
    problems += [] if a_keys else ["no tensors"]
    problems += [f"{key} is {t.dtype}" for key, t in tensors.items() if not t.is_floating_point()]
    if len(kinds := sorted({str(t.dtype) for t in tensors.values()})) > 1:
        problems.append(f"tensors of more than one type: {', '.join(kinds)}")
    problems += [f"{key} has values that are not finite" for key, t in tensors.items() if not torch.isfinite(t).all()]
    problems += list(_ranks_within(_pairs({key: tuple(t.shape) for key, t in tensors.items()})))
    _refuse(folder, problems)
    return sum(bool(tensors[key].any()) for key in b_keys), len(b_keys)


def hold_adapter(folder: Path, model: BaseModelSettings, base: Path) -> None:
    """Hold an adapter against its adapter_config.json, the spec, and its base model's config.json.

    Raises CheckpointUnusable where it is not what the spec asks for, and BadConfiguration (``model.source``) where it is one of
    another base model."""
    pairs = _pairs(_shapes(folder / ADAPTER_WEIGHTS))
    config, architecture = _read(folder / ADAPTER_CONFIG), _read(base / "config.json")
    misfits = list(misfits_of(pairs, architecture))
    if misfits:
        raise BadConfiguration(
            "model.source", f"{model.source} is not the base model of this adapter: {'; '.join(misfits[:3])}"
        )
    _refuse(folder, [*_against_config(pairs, config, model.lora), *_against_spec(pairs, model.lora, architecture)])


def _refuse(folder: Path, problems: list[str]) -> None:
    if problems:
        raise CheckpointUnusable(f"the export {folder} cannot be published: {'; '.join(problems[:5])}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise CheckpointUnusable(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointUnusable(f"{path} is no JSON object")
    return found


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """From the header alone."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _pairs(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Pair]:
    """Module -> shapes, of those that have both halves; PEFT's prefix is left out of their names."""
    names = [key.removesuffix(_A) for key in shapes if key.endswith(_A) and key.replace(_A, _B) in shapes]
    return {name.removeprefix(_PREFIX): (shapes[name + _A], shapes[name + _B]) for name in names}


def _ranks_within(pairs: Mapping[str, Pair]) -> Iterator[str]:
    for module, (a, b) in pairs.items():
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            yield f"{module}: A {a} and B {b} do not fit each other"


def _against_config(pairs: Mapping[str, Pair], config: Mapping[str, Any], lora: LoraSettings) -> Iterator[str]:
    rank, alpha = config.get("r"), config.get("lora_alpha", lora.alpha)
    if (rank, alpha) != (lora.rank, lora.alpha):
        yield f"{ADAPTER_CONFIG} says rank {rank} and alpha {alpha}, the spec {lora.rank} and {lora.alpha}"
    ranks = {rank, *(config.get("rank_pattern") or {}).values()}
    for module, (a, _) in pairs.items():
        if a[0] not in ranks:
            yield f"{module} has rank {a[0]}, {ADAPTER_CONFIG} says {rank}"
    yield from _modules_refused(pairs, config.get("target_modules"), config.get("exclude_modules"), ADAPTER_CONFIG)


def _against_spec(pairs: Mapping[str, Pair], lora: LoraSettings, architecture: Mapping[str, Any]) -> Iterator[str]:
    yield from _modules_refused(pairs, "all-linear", lora.exclude_modules, "model.lora of the spec")
    if lora.exclude_modules is not None and architecture.get("vision_config"):
        for module in pairs:
            if _TOWER.search(module):
                yield (
                    f"{module} is of the vision tower, whose adapters vLLM ignores while it trains: name the tower in "
                    "model.lora.exclude_modules, or set that to null to train it all the same"
                )


def _modules_refused(pairs: Mapping[str, Pair], target: Any, exclude: Any, whose: str) -> Iterator[str]:
    """By PEFT's own rule of what a pattern or a list of names allows."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    wanted = r".*" if target in (None, "all-linear") else target
    rule = LoraConfig(target_modules=wanted, exclude_modules=exclude)
    for module in pairs:
        if not check_target_module_exists(rule, module):
            yield f"{module} is no module that {whose} allows"


def misfits_of(pairs: Mapping[str, Pair], architecture: Mapping[str, Any]) -> Iterator[str]:
    """Where an adapter's shapes are not those of a model with this config.json. Only layers whose names tell their shapes are
    compared, and only with sizes that the configuration names; a vision tower has sizes of its own."""
    text = architecture.get("text_config") or architecture
    hidden, layers = text.get("hidden_size"), text.get("num_hidden_layers")
    for module, (a, b) in pairs.items():
        name = module.rsplit(".", 1)[-1]
        if _TOWER.search(module):
            continue
        width = a[1] if name in _READS_HIDDEN else b[0] if name in _WRITES_HIDDEN else None
        if hidden is not None and width is not None and width != hidden:
            yield f"{module} is made for a hidden_size of {width}, and its config.json says {hidden}"
        if layers is not None and (at := _LAYER.search(f".{module}")) and int(at[1]) >= layers:
            yield f"{module} is of layer {at[1]}, and its config.json says {layers} layers"
