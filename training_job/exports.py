"""HF adapter exports: made, checked by reading them back, and uploaded with digests of their writer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nightshift.contract import ExportRecord, RunKeys, RunSpec, SharedPaths
from training_job.clock import now
from training_job.errors import CheckpointUnusable
from training_job.files import files_below, sync_tree
from training_job.store import Uploader, digest_of

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_CONFIG: Final = "adapter_config.json"


def write_export(
    paths: SharedPaths, spec: RunSpec, step: int, base: Path, save_adapter: Callable[[Path], object]
) -> Path:
    """``global_step_N/policy`` with the adapter, the base model's config.json and a README; whole or not at all."""
    folder = paths.export(step)
    fresh = folder.with_name(".policy")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_adapter(fresh)
    _point_to_source(fresh / ADAPTER_CONFIG, spec.model.source)
    shutil.copyfile(base / "config.json", fresh / "config.json")
    (fresh / "README.md").write_text(_readme(spec, step))
    sync_tree(fresh)
    if folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)
    return folder


def _point_to_source(path: Path, source: str) -> None:
    """The trainer's local path means nothing elsewhere: name the base model as the spec does."""
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = source
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def adopt_export(paths: SharedPaths, spec: RunSpec, step: int, base: Path) -> Path:
    """An export that SkyRL has written in place: it names the base model as the spec does, and says what it is."""
    folder = paths.export(step)
    _point_to_source(folder / ADAPTER_CONFIG, spec.model.source)
    if not (folder / "config.json").is_file():
        shutil.copyfile(base / "config.json", folder / "config.json")
    (folder / "README.md").write_text(_readme(spec, step))
    return folder


def _readme(spec: RunSpec, step: int) -> str:
    return (
        f"---\nbase_model: {spec.model.source}\nlibrary_name: peft\ntags: [lora, grpo, nightshift]\n---\n"
        f"# Adapter of run {spec.run_id}, step {step}\n\n"
        f"LoRA of rank {spec.model.lora.rank} (alpha {spec.model.lora.alpha}) for `{spec.model.source}`, trained with "
        f"GRPO on `{spec.task.environment}` for {step} of {spec.training.total_steps} steps.\n"
        "Eval results lie beside it in the run's `eval/` folder.\n"
    )


def check_export(folder: Path) -> tuple[int, int]:
    """(non-zero lora_B tensors, all lora_B tensors) of an export that PEFT and Ray Serve can load.

    Raises CheckpointUnusable for keys with an adapter's name in them, missing halves, types other than floats, or
    values that are not finite.
    """
    import torch
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(folder / ADAPTER_WEIGHTS)
    a_keys = {key for key in tensors if key.endswith(".lora_A.weight")}
    b_keys = {key for key in tensors if key.endswith(".lora_B.weight")}
    problems = [f"unexpected key {key}" for key in sorted(tensors.keys() - a_keys - b_keys)]
    problems += [f"{key} lacks its lora_B" for key in sorted(a_keys) if key.replace("lora_A", "lora_B") not in b_keys]
    problems += [f"{key} lacks its lora_A" for key in sorted(b_keys) if key.replace("lora_B", "lora_A") not in a_keys]
    problems += [] if a_keys else ["no tensors"]
    problems += [f"{key} is {t.dtype}" for key, t in tensors.items() if not t.is_floating_point()]
    problems += [f"{key} has values that are not finite" for key, t in tensors.items() if not torch.isfinite(t).all()]
    if problems:
        raise CheckpointUnusable(f"the export {folder} cannot be published: {'; '.join(problems[:5])}")
    return sum(bool(tensors[key].any()) for key in b_keys), len(b_keys)


def publish_export(uploader: Uploader, spec: RunSpec, attempt: int, step: int, folder: Path) -> ExportRecord:
    """Check an export and queue its files, export.json last."""
    nonzero, total = check_export(folder)
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_below(folder)}
    record = ExportRecord(
        run_id=spec.run_id,
        attempt=attempt,
        step=step,
        files={name: digest_of(content) for name, content in contents.items()},
        lora_b_nonzero=nonzero,
        lora_b_total=total,
        at=now(),
    )
    keys = RunKeys(spec.run_id)
    for name, content in contents.items():
        uploader.put(keys.export(attempt, step) + name, content)
    uploader.put(keys.export_record(attempt, step), record.to_json().encode())
    return record
