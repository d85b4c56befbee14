"""HF adapter exports: made, checked by reading them back, and uploaded with digests of their writer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from nightshift.contract import ExportRecord, RunKeys, RunSpec, SharedPaths
from training_job.adapters import ADAPTER_CONFIG, check_export, hold_adapter
from training_job.clock import now
from training_job.files import files_below, sync_tree
from training_job.licence import model_licence
from training_job.store import Uploader, digest_of_file


def write_export(
    paths: SharedPaths, spec: RunSpec, step: int, base: Path, save_adapter: Callable[[Path], object]
) -> Path:
    """``global_step_N/policy`` with the adapter, the base model's config.json and a README; whole or not at all.

    Raises what ``hold_adapter`` does."""
    folder = paths.export(step)
    fresh = folder.with_name(".policy")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_adapter(fresh)
    _point_to_source(fresh / ADAPTER_CONFIG, spec.model.source)
    shutil.copyfile(base / "config.json", fresh / "config.json")
    (fresh / "README.md").write_text(_readme(spec, step, model_licence(base)))
    hold_adapter(fresh, spec.model, base)
    sync_tree(fresh)
    if folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)
    return folder


def _point_to_source(path: Path, source: str) -> None:
    """The trainer's local path means nothing elsewhere: name the base model as the spec does, and one of the hub's as PEFT
    looks for it, by name and revision."""
    config = json.loads(path.read_text())
    name, _, revision = source.removeprefix("hf://").rpartition("@")
    if source.startswith("hf://"):
        config |= {"base_model_name_or_path": name, "revision": revision}
    else:
        config["base_model_name_or_path"] = source
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def adopt_export(paths: SharedPaths, spec: RunSpec, step: int, base: Path) -> Path:
    """An export that SkyRL has written in place: it names the base model as the spec does, and says what it is.

    Raises what ``hold_adapter`` does."""
    folder = paths.export(step)
    _point_to_source(folder / ADAPTER_CONFIG, spec.model.source)
    if not (folder / "config.json").is_file():
        shutil.copyfile(base / "config.json", folder / "config.json")
    (folder / "README.md").write_text(_readme(spec, step, model_licence(base)))
    hold_adapter(folder, spec.model, base)
    return folder


def _readme(spec: RunSpec, step: int, licence: str | None) -> str:
    named = f"license: {json.dumps(licence)}\n" if licence else ""
    return (
        f"---\nbase_model: {spec.model.source}\n{named}library_name: peft\ntags: [lora, grpo, nightshift]\n---\n"
        f"# Adapter of run {spec.run_id}, step {step}\n\n"
        f"LoRA of rank {spec.model.lora.rank} (alpha {spec.model.lora.alpha}) for `{spec.model.source}`, trained with "
        f"GRPO on `{spec.task.environment}` for {step} of {spec.training.total_steps} steps.\n"
        "Eval results lie beside it in the run's `eval/` folder.\n"
    )


def publish_export(uploader: Uploader, spec: RunSpec, attempt: int, step: int, folder: Path) -> ExportRecord:
    """Check an export and queue its files, export.json last.

    Digests are those of the files on the shared mount, never of what S3 gives back: a file of other bytes is not uploaded."""
    nonzero, total = check_export(folder)
    files = {path.relative_to(folder).as_posix(): path for path in files_below(folder)}
    record = ExportRecord(
        run_id=spec.run_id,
        attempt=attempt,
        step=step,
        files={name: digest_of_file(path) for name, path in files.items()},
        lora_b_nonzero=nonzero,
        lora_b_total=total,
        base_licence=model_licence(folder),
        at=now(),
    )
    keys = RunKeys(spec.run_id)
    for name, path in files.items():
        uploader.put_file(keys.export(attempt, step) + name, path, record.files[name])
    uploader.put(keys.export_record(attempt, step), record.to_json().encode())
    return record
