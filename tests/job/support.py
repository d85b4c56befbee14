"""What the job's tests share: a small spec, and attempts run as the Ray job's entrypoint does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from nightshift.contract import Outcome, RunKeys, RunSpec, SharedPaths

REPOSITORY = Path(__file__).resolve().parents[2]
BUCKET = "job-tests"


def small_spec(run_id: str, **training: Any) -> RunSpec:
    """The demo's spec, made small: 6 prompts a step, 12 eval items, no target."""
    raw = yaml.safe_load((REPOSITORY / "examples" / "demo.yaml").read_text())
    raw["run_id"] = run_id
    raw["target"] = None
    raw["task"]["eval"] = {"kind": "seeds", "start": 0, "stop": 12}
    raw["task"]["train"] = {"kind": "seeds", "start": 10_000, "stop": 10_500}
    raw["task"]["holdout"] = {"kind": "seeds", "start": 500_000, "stop": 500_016}
    small = {"total_steps": 4, "train_batch_size": 6, "policy_mini_batch_size": 3, "warmup_steps": 0}
    small |= {"eval_interval": 2, "ckpt_interval": 2, "hf_save_interval": 2, "max_ckpts_to_keep": 2}
    raw["training"] |= small | training
    return RunSpec.model_validate(raw)


@dataclass
class Finished:
    """What a job left. ``outcome`` is None where it wrote none."""

    code: int
    output: str
    outcome: Any


@dataclass(frozen=True)
class RayHead:
    """A running head: its GCS address, and the process below which all others are."""

    address: str
    pid: int


class Runs:
    """Puts specs into the bucket and runs attempts as the Ray job's entrypoint does: in processes of their own."""

    def __init__(self, s3: Any, ray: RayHead, shared: Path) -> None:
        self.s3, self.ray, self.shared = s3, ray, shared
        path = f"{REPOSITORY / 'functions'}:{REPOSITORY}"
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "NIGHTSHIFT_SHARED": str(shared),
            "RAY_ADDRESS": ray.address,
        }

    def rollout_workers(self) -> list[int]:
        """Process ids of the rollout workers that run now."""
        below = psutil.Process(self.ray.pid).children(recursive=True)
        return [one.pid for one in below if any("RolloutWorker" in word for word in one.cmdline())]

    def put_spec(self, spec: RunSpec) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=RunKeys(spec.run_id).spec, Body=spec.model_dump_json().encode())

    def paths(self, run_id: str) -> SharedPaths:
        return SharedPaths(run_id, self.shared)

    def start(self, run_id: str, attempt: int = 1, floor: int = 0, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "training_job", "run", "--bucket", BUCKET, "--run-id", run_id]
        command += ["--attempt", str(attempt), "--floor", str(floor)]
        return subprocess.Popen(
            command,
            env={**self.environment, **environment},
            cwd=REPOSITORY,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str], run_id: str, attempt: int = 1) -> Finished:
        try:
            output, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        content = self.get(RunKeys(run_id).outcome(attempt))
        return Finished(process.returncode, output, Outcome.from_json(content) if content else None)

    def run(self, spec: RunSpec, attempt: int = 1, floor: int = 0, **environment: str) -> Finished:
        self.put_spec(spec)
        return self.finish(self.start(spec.run_id, attempt, floor, **environment), spec.run_id, attempt)

    def verify(self, run_id: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "training_job", "verify", "--bucket", BUCKET, "--run-id", run_id]
        return subprocess.run(
            command, env=self.environment, cwd=REPOSITORY, text=True, capture_output=True, timeout=240, check=False
        )

    def get(self, key: str) -> bytes | None:
        try:
            content: bytes = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            return content
        except self.s3.exceptions.NoSuchKey:
            return None

    def keys(self, run_id: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=RunKeys(run_id).prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first true answer of ``what``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"nothing within {seconds} s")
