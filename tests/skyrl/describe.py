"""What a version of SkyRL looks like from here: ``python -m tests.skyrl.describe`` prints it as JSON, for ``diff``.

The version that is described is the one that Python finds: its folder comes first on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import tests.skyrl.older_python  # noqa: F401

RELIED_ON = {
    "skyrl.train.config": ("SkyRLTrainConfig.from_cli_overrides",),
    "skyrl.train.utils.utils": ("validate_cfg", "validate_batch_sizes", "validate_generator_cfg", "initialize_ray"),
    "skyrl.train.utils.callbacks": ("TrainingCallback", "TrainingControl", "CallbackInput"),
    "skyrl.train.utils.trainer_utils": (
        "cleanup_old_checkpoints",
        "dump_per_dataset_eval_results",
        "build_dataloader",
        "validate_consistency_for_latest_checkpoint",
    ),
    "skyrl.train.trainer": tuple(
        f"RayPPOTrainer.{name}"
        for name in ("__init__", "train", "eval", "save_checkpoints", "load_checkpoints", "save_models", "build_models")
    ),
    "skyrl.train.evaluate": ("evaluate",),
    "skyrl.train.entrypoints.main_base": tuple(
        f"BasePPOExp.{name}"
        for name in ("get_train_dataset", "get_eval_dataset", "get_inference_client", "get_trainer", "_setup_trainer")
    ),
    "skyrl.train.generators.skyrl_vlm_generator": ("SkyRLVLMGymGenerator.agent_loop",),
    "skyrl.train.generators.skyrl_gym_generator": ("SkyRLGymGenerator.agent_loop",),
    "skyrl.backends.skyrl_train.inference_servers.remote_inference_client": ("RemoteInferenceClient.detokenize",),
}
"""Module -> what of it the job calls, overrides, or was written after. The FSDP strategy is described by what it writes."""


def sources() -> dict[str, str]:
    """Name -> a digest of its source text, or a sentence about why there is none."""
    found = {}
    for module, names in RELIED_ON.items():
        for name in names:
            try:
                one: Any = importlib.import_module(module)
                for part in name.split("."):
                    one = getattr(one, part)
                text = hashlib.sha256(inspect.getsource(one).encode()).hexdigest()[:12]
            except AttributeError:
                text = "is not there any more"
            except ImportError as error:
                text = f"cannot be imported: {error}"
            found[f"{module.removeprefix('skyrl.')}:{name}"] = text
    return found


def requirements() -> dict[str, str]:
    """Name -> every requirement of that name, with its extra."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("skyrl") or []:
        found.setdefault(re.split(r"[^\w.-]", line, maxsplit=1)[0].lower(), []).append(" ".join(line.split()))
    return {name: "; ".join(sorted(lines)) for name, lines in found.items()}


def layout() -> dict[str, str]:
    """File -> its digits-free shape, of what two ranks save and export; one entry that says why where that failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.skyrl.fsdp", folder, "--ranks", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            return {"nothing was saved": (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]}
        roots = [Path(folder, "checkpoint"), Path(folder, "export")]
        files = sorted(path for root in roots for path in root.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): _shape(path) for path in files}


def _shape(path: Path) -> str:
    """Keys of a JSON object, of an archive and of a safetensors file: what a reader may rely on."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        return " ".join(sorted(content)) if path.name in ("adapter_config.json", "fsdp_config.json") else "json"
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(str(path), "pt") as file:
            return " ".join(sorted(file.keys()))
    if path.suffix == ".pt":
        import zipfile

        return " ".join(sorted({name.split("/")[1].split(".")[0] for name in zipfile.ZipFile(path).namelist()}))
    return "text"


def main() -> None:
    for module in RELIED_ON if "--import-only" in sys.argv else ():
        importlib.import_module(module)
    if "--import-only" in sys.argv:
        return
    from skyrl.train.config import SkyRLTrainConfig

    from tests.skyrl.keys import leaves

    described = {
        "keys": {key: [kind, default] for key, kind, default in leaves(SkyRLTrainConfig)},
        "layout": layout(),
        "requirements": requirements(),
        "sources": sources(),
    }
    print(json.dumps(described))


if __name__ == "__main__":
    main()
