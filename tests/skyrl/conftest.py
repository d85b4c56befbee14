"""Contract tests against the real SkyRL package, in an environment of its own: ``make test-skyrl``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

collect_ignore_glob = [] if find_spec("skyrl") else ["*"]

if not collect_ignore_glob:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tests.skyrl.older_python  # noqa: F401


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen3-VL."""
    from tests.skyrl.fsdp import write_base_model

    return write_base_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks of SkyRL's FSDP strategy save: ``base``, ``checkpoint/policy`` and ``export``."""
    folder = tmp_path_factory.mktemp("two-ranks")
    command = [sys.executable, "-m", "tests.skyrl.fsdp", str(folder), "--ranks", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'functions'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return folder
