"""``python -m training_job verify``: a publication is read back in a fresh process and checked to the last row."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nightshift.contract import EvalSet, EvalSummary, ExitCode, Manifest, RunKeys, RunSpec, SharedPaths
from nightshift.contract.layout import SHARED_ENV, SHARED_MOUNT
from training_job.errors import classify
from training_job.evals import rows_of, rows_to_lines
from training_job.plug import open_items, plan_task
from training_job.policies import closed_replies, lora_of_state, read_config
from training_job.sources import find_model
from training_job.store import ObjectStore, S3Store, digest_of_file
from training_job.trainers.local.batches import eval_episodes
from training_job.trainers.local.examiner import finished_episodes
from training_job.trainers.local.workers import LocalPool, WorkerPlan

_MAX_PROBLEMS = 20


@dataclass
class Verdict:
    """What was checked, and everything that is wrong."""

    objects: int = 0
    adapters: dict[str, int] = field(default_factory=dict)
    solved: int | None = None
    of: int | None = None
    problems: list[str] = field(default_factory=list)

    def as_json(self, run_id: str) -> str:
        """One line; bounded."""
        shown = {**vars(self), "problems": [text[:500] for text in self.problems[:_MAX_PROBLEMS]]}
        return json.dumps({"run_id": run_id, "ok": not self.problems, **shown})


def verify(bucket: str, run_id: str) -> int:
    """Exit code 0 only if checksums are right, each adapter loads with PEFT, and the fixed set evaluates to exactly the
    published rows of the final step. Prints one JSON line."""
    verdict = Verdict()
    code = ExitCode.BAD_DATA
    try:
        with tempfile.TemporaryDirectory(prefix="nightshift-verify-") as folder:
            _verify(S3Store(bucket), S3Store, run_id, Path(folder), verdict)
    except Exception as error:  # noqa: BLE001 - the command's outermost: whatever it is makes the verdict
        known = classify(error)
        code = known.exit_code
        verdict.problems.append(str(known))
    print(verdict.as_json(run_id), flush=True)
    return int(code if verdict.problems else ExitCode.OK)


def _verify(
    store: ObjectStore, open_store: Callable[[str], ObjectStore], run_id: str, folder: Path, verdict: Verdict
) -> None:
    keys = RunKeys(run_id)
    manifest = _read(store, keys.manifest, Manifest.from_json, verdict)
    spec = _read(store, keys.spec, RunSpec.model_validate_json, verdict)
    if manifest is None or spec is None:
        return
    _check_objects(store, keys, manifest, folder / "object", verdict)
    if verdict.problems:
        return
    paths = SharedPaths(run_id, _mount(folder))
    base = find_model_of(spec, paths, open_store)
    for name in manifest.adapters:
        _download(store, keys, manifest, name, folder / "adapters" / name)
        _load_with_peft(base, folder / "adapters" / name, name, verdict)
    verdict.adapters = dict(manifest.adapters)
    if manifest.final is None or "final" not in manifest.adapters:
        verdict.problems.append("the manifest names no final eval or no final adapter")
    elif manifest.adapters["final"] != manifest.final.step:
        verdict.problems.append(f"the final adapter is of step {manifest.adapters['final']}, the final eval is not")
    elif not verdict.problems:
        _check_rows(store, open_store, spec, paths, base, manifest.final, folder / "adapters" / "final", verdict)


def find_model_of(spec: RunSpec, paths: SharedPaths, open_store: Callable[[str], ObjectStore]) -> Path:
    """The base model's folder; the task's code comes first, as it may hold it."""
    plan_task(spec, paths, open_store)
    return find_model(spec.model.source, paths, open_store)


def _mount(folder: Path) -> Path:
    """The shared mount where this computer has one, and else a folder that ends with the check."""
    named = os.environ.get(SHARED_ENV, SHARED_MOUNT)
    return Path(named) if Path(named).is_dir() else folder


def _read(store: ObjectStore, key: str, parse: Callable[[bytes], Any], verdict: Verdict) -> Any:
    content = store.get(key)
    if content is None:
        verdict.problems.append(f"{key} does not exist")
        return None
    try:
        return parse(content)
    except ValidationError as error:
        verdict.problems.append(f"{key} is not what it should be: {error.errors()[0]['msg']}")
        return None


def _check_objects(store: ObjectStore, keys: RunKeys, manifest: Manifest, spare: Path, verdict: Verdict) -> None:
    """One after the other through a spare file: an object may be larger than the memory."""
    stored = store.stored(keys.prefix)
    for name, digest in manifest.objects.items():
        found = stored.get(keys.prefix + name)
        if found is None:
            verdict.problems.append(f"{name} is in the manifest, but does not exist")
        else:
            store.download(keys.prefix + name, spare, found.tag)
            if digest_of_file(spare) != digest:
                verdict.problems.append(f"{name} has other bytes than the manifest says")
        verdict.objects += 1
    spare.unlink(missing_ok=True)


def _download(store: ObjectStore, keys: RunKeys, manifest: Manifest, name: str, folder: Path) -> None:
    """An adapter's files, as the manifest lists them."""
    folder.mkdir(parents=True)
    prefix = keys.adapter(name)
    for key, found in store.stored(prefix).items():
        if key.removeprefix(keys.prefix) in manifest.objects:
            store.download(key, folder / Path(key).name, found.tag)


def _load_with_peft(base: Path, folder: Path, name: str, verdict: Verdict) -> None:
    import torch
    from peft import PeftModel

    from training_job.policies.pretrained import load_policy, lora_weights

    try:
        loaded = lora_weights(PeftModel.from_pretrained(load_policy(base), str(folder)))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        verdict.problems.append(f"the adapter {name} cannot be loaded by PEFT: {type(error).__name__}: {error}")
        return
    saved = lora_of_state(_tensors(folder))
    same = loaded.keys() == saved.keys() and all(
        torch.equal(one, other) for key in saved for one, other in zip(saved[key], loaded[key], strict=True)
    )
    if not same:
        verdict.problems.append(f"the adapter {name} is loaded by PEFT with other weights than it holds")


def _tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def _check_rows(
    store: ObjectStore,
    open_store: Callable[[str], ObjectStore],
    spec: RunSpec,
    paths: SharedPaths,
    base: Path,
    final: EvalSummary,
    adapter: Path,
    verdict: Verdict,
) -> None:
    """Play the fixed set again, in the same shards, with the published adapter."""

    published = store.get(RunKeys(spec.run_id).eval_rows(final.attempt, final.step, EvalSet.FIXED))
    if published is None:
        verdict.problems.append(f"the rows of the final eval, step {final.step}, do not exist")
        return
    plan = plan_task(spec, paths, open_store)
    items = open_items(spec.task.eval, "task.eval", paths, open_store)
    lora = {name: (a.numpy(), b.numpy()) for name, (a, b) in lora_of_state(_tensors(adapter)).items()}
    scale = spec.model.lora.alpha / spec.model.lora.rank
    pool = LocalPool(WorkerPlan(plan, str(base), scale), spec.topology.workers.count)
    played = pool.play(lora, eval_episodes(items), 1.0)
    episodes = finished_episodes(played, items, closed_replies(read_config(base)))
    rows = rows_of(episodes, spec.task.success.min_score)
    verdict.solved, verdict.of = sum(row.success for row in rows), len(rows)
    if rows_to_lines(rows) != published:
        verdict.problems.append(
            f"the final adapter solves {verdict.solved} of {verdict.of} items now, and the rows differ from the "
            f"published {final.solved} of {final.of}"
        )
