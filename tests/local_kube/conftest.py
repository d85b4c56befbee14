"""A running ``python -m local.kube`` with a small STS beside it that verifies signatures as AWS does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from local.config import REPOSITORY, StackConfig, new_config

END_SECONDS = 10


@pytest.fixture(scope="session")
def support() -> ModuleType:
    """The helpers beside this file (tests are not packages)."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("local_kube_support", Path(__file__).with_name("support.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Stack:
    """One running local.kube. ``sts`` plays the cloud: it knows the credentials and keeps the events it was sent."""

    config: StackConfig
    process: subprocess.Popen[str]
    sts: Any

    def admin(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.config.admin_url}{path}", data=data, timeout=30) as answer:
            return json.load(answer)


@contextlib.contextmanager
def running(folder: Path, support: ModuleType) -> Iterator[Stack]:
    config = new_config(folder)
    path = config.save()
    with support.Sts(config) as sts:
        support.write_access_entries(config)
        log = (folder / "kube.log").open("w")
        env = {**os.environ, "PYTHONPATH": f"functions{os.pathsep}."}
        process = subprocess.Popen(
            [sys.executable, "-m", "local.kube", str(path)],
            cwd=REPOSITORY,
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            assert first == "READY", (folder / "kube.log").read_text()
            yield Stack(config, process, sts)
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


@pytest.fixture
def start_stack() -> Any:
    """For a test that ends the process itself."""
    return running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, support: ModuleType) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("stack"), support) as started:
        yield started
