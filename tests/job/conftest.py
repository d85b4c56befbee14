"""Real parts for the job's tests: a Ray head with pretended GPUs, and moto's S3 server in this process."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.job.support import BUCKET, REPOSITORY, RayHead, Runs

AWS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """Endpoint of a fresh S3 with one bucket, ``BUCKET``."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    before = {name: os.environ.get(name) for name in [*AWS, "AWS_ENDPOINT_URL"]}
    os.environ.update(AWS, AWS_ENDPOINT_URL=url)
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield url
    server.stop()
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def s3(s3_url: str) -> Any:
    return boto3.client("s3", endpoint_url=s3_url)


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """A Ray head in a process group of its own, with 6 GPUs that do not exist."""
    folder = Path(tempfile.mkdtemp(prefix="ns-", dir="/tmp"))
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port=0", "--num-cpus=2"]
    command += ["--num-gpus=6", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    command += ["--object-store-memory=100000000"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{REPOSITORY / 'functions'}:{REPOSITORY}"}
    log = (folder / "head.log").open("w")
    head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield RayHead(_address_of(head, folder), head.pid)
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(10)
        for pid in _processes_in(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _address_of(head: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + 60
    address = folder / "ray_current_cluster"
    while time.monotonic() < deadline:
        assert head.poll() is None, (folder / "head.log").read_text()[-2000:]
        if address.exists() and address.read_text().strip():
            return address.read_text().strip()
        time.sleep(0.1)
    raise AssertionError(f"Ray did not start: {(folder / 'head.log').read_text()[-2000:]}")


def _processes_in(folder: Path) -> list[int]:
    """Processes whose command line names the folder: what the head has started and left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in path.read_bytes().decode(errors="replace") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def runs(s3: Any, ray_head: RayHead, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(s3, ray_head, tmp_path_factory.mktemp("shared"))
