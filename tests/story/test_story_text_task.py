"""Another task, which the project's code knows nothing of, through the unchanged controller: text only, from a wheel."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.config import REPOSITORY
from local.stack import Stack
from local.story.request import environment_digest
from local.story.watch import FINAL_STATES, read_view
from nightshift.contract import EvalSet, Manifest, RunKeys
from nightshift.contract.api import RunView
from tests.fixtures.text_task.build_wheel import build_wheel
from tests.story.support import Played, eventually, items

FOLDER = REPOSITORY / "tests" / "fixtures" / "text_task"
RUN_ID = "echo"
WHEEL_KEY = "wheels/echo_task-1.0-py3-none-any.whl"


def spec_of(stack: Stack, wheel: bytes) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((FOLDER / "spec.yaml").read_text())
    spec["run_id"] = RUN_ID
    spec["image"] = f"{spec['image'].partition('@')[0]}@sha256:{environment_digest()}"
    spec["task"]["code"]["uri"] = f"s3://{stack.config.bucket}/{WHEEL_KEY}"
    spec["task"]["code"]["sha256"] = hashlib.sha256(wheel).hexdigest()
    return spec


@pytest.fixture(scope="module")
def ended(played: Played, tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """The run, asked for through the HTTP API, at its end."""
    stack = played.stack
    wheel = build_wheel(FOLDER, tmp_path_factory.mktemp("wheel")).read_bytes()
    stack.account.write(WHEEL_KEY, wheel)
    status, answer = stack.account.api("POST", "/runs", {"version": 1, "spec": spec_of(stack, wheel)})
    assert (status, answer["created"]) == (201, True), answer

    def over() -> bool:
        stack.supervisor.check()
        view = read_view(stack.account, RUN_ID)
        return view is not None and view.state in FINAL_STATES

    assert eventually(over, 240), read_view(stack.account, RUN_ID)
    view = read_view(stack.account, RUN_ID)
    assert view is not None
    return view


def test_it_is_trained_in_one_attempt_and_learns(played: Played, ended: RunView) -> None:
    assert (ended.state, ended.attempt) == ("succeeded", 1), ended.sentence
    manifest = Manifest.from_json(played.stack.account.read(RunKeys(RUN_ID).manifest) or b"")
    assert manifest.baseline is not None and manifest.final is not None
    assert manifest.final.solved > manifest.baseline.solved
    assert manifest.final.eval_set is EvalSet.FIXED and manifest.final.of == 16


def test_its_publication_reads_back_in_a_fresh_process(played: Played, ended: RunView) -> None:
    config, supervisor = played.stack.config, played.stack.supervisor
    argv = [str(config.pod_python), "-m", "training_job", "verify", "--bucket", config.bucket, "--run-id", RUN_ID]
    task = supervisor.start_task("verify-echo", argv, {**config.aws_env, "OMP_NUM_THREADS": "1"})
    code, out = supervisor.finish(task, 120)
    assert (code, json.loads(out.splitlines()[-1])["ok"]) == (0, True), out + task.tail()


def test_the_controller_holds_no_word_about_the_task() -> None:
    sources = (REPOSITORY / "functions" / "nightshift").rglob("*.py")
    assert [path.name for path in sources if "echo_task" in path.read_text()] == []


def test_its_end_leaves_no_pod_and_no_lease(played: Played, ended: RunView) -> None:
    assert eventually(lambda: played.stack.hyperpod.pods() == [])
    leases = [one for one in played.stack.account.items(played.stack.outputs["TableName"]) if one["sk"]["S"] == "LEASE"]
    assert leases == []
    assert [one["n"] for one in items(played.stack, RUN_ID, "ATTEMPT#")] == [1]


def test_the_project_does_not_ship_the_wheel() -> None:
    assert list(Path(REPOSITORY / "training_job").rglob("echo_task*")) == []
