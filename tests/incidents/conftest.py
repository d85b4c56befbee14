"""The real table and bucket, a played Ray endpoint, and checkpoints that the trainer itself has written."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from nightshift.adapters.kubernetes import EksCluster
from nightshift.adapters.ray_jobs import write_kubeconfig
from nightshift.contract import SharedPaths
from nightshift.contract.spec import LoraSettings, Training
from tests.incidents.endpoint import Endpoint
from tests.incidents.table import Incident
from tests.steps.world import SESSION, World

MODEL = Path(__file__).resolve().parents[1] / "fixtures" / "text_task" / "echo_task" / "model"
STEPS = (10, 40, 110, 120)


@pytest.fixture
def incident(request: pytest.FixtureRequest) -> Incident:
    """The row that a test is about."""
    row: Incident = request.param
    return row


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[boto3.Session]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    # Without the exception moto answers in the endpoint's place.
    with mock_aws(config={"core": {"passthrough": {"urls": [r"https://127\.0\.0\.1.*"]}}}):
        yield SESSION


@pytest.fixture
def world(aws: boto3.Session) -> World:
    return World(aws)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Endpoint]:
    """The endpoint that the real job client finds through its kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", "")  # restored afterwards, whatever write_kubeconfig sets
    with Endpoint() as served:
        (tmp_path / "ca.pem").write_bytes(served.ca)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        write_kubeconfig(EksCluster("eks", served.url, base64.b64encode(served.ca).decode()), "token")
        yield served


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared mount with whole checkpoints of ``STEPS``."""
    import torch

    from training_job.trainers.local.learner import Learner
    from training_job.trainers.local.snapshots import TrainerState, save_snapshot

    torch.set_num_threads(1)
    mount = tmp_path_factory.mktemp("saved")
    learner = Learner(MODEL, LoraSettings(rank=2, alpha=4), Training())
    for step in STEPS:
        save_snapshot(SharedPaths("run", mount), learner, TrainerState(step, 0), MODEL)
    return mount


class Shared:
    """Copies of the saved mount, each with some of its checkpoints and a pointer."""

    def __init__(self, saved: Path, folder: Path) -> None:
        self._saved, self._folder, self._copies = saved, folder, 0

    def holding(self, *steps: int, pointer: str | None) -> SharedPaths:
        self._copies += 1
        mount = self._folder / f"shared-{self._copies}"
        (mount / "runs").mkdir(parents=True)
        paths, source = SharedPaths("run", mount), SharedPaths("run", self._saved)
        for step in steps:
            shutil.copytree(source.checkpoint(step), paths.checkpoint(step))
        if pointer is not None:
            paths.ckpts.mkdir(parents=True, exist_ok=True)
            paths.pointer.write_text(pointer)
        return paths


@pytest.fixture
def shared(saved: Path, tmp_path: Path) -> Shared:
    return Shared(saved, tmp_path)
