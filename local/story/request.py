"""The demo's start request: the example file, with the two values that only this computer knows filled in."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from local.config import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "demo.yaml"
_NO_COMMIT = "0" * 40


@dataclass(frozen=True)
class Request:
    """``spec`` is what is sent; ``notes`` say what the filled-in values are."""

    spec: dict[str, Any]
    notes: list[str]

    @property
    def run_id(self) -> str:
        return str(self.spec["run_id"])

    @property
    def total_steps(self) -> int:
        return int(self.spec["training"]["total_steps"])

    @property
    def eval_interval(self) -> int:
        return int(self.spec["training"]["eval_interval"])


def demo_request(path: Path = EXAMPLE) -> Request:
    """Read the example; raises OSError or yaml.YAMLError where it cannot be read."""
    spec: dict[str, Any] = yaml.safe_load(path.read_text())
    digest = environment_digest()
    sha, code_note = commit()
    spec["image"] = f"{str(spec['image']).partition('@')[0]}@sha256:{digest}"
    spec["task"]["code"]["sha"] = sha
    image_note = f"image digest {digest[:12]}: SHA-256 over the pods' installed packages, for there is no image here"
    return Request(spec, [image_note, code_note])


def environment_digest() -> str:
    """SHA-256 over the sorted ``name==version`` lines of the environment that the pods run in (this one)."""
    names = {f"{one.name.lower()}=={one.version}" for one in metadata.distributions()}
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def commit() -> tuple[str, str]:
    """(SHA of the checked-out commit, note); 40 zeros where this is no git checkout."""
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    try:
        sha = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return _NO_COMMIT, "code: no git checkout here, so the commit is given as 40 zeros"
    return sha, f"code {sha[:12]}: the checked-out commit"
