"""A task that this project knows nothing of: a wheel, an environment of its own, a text-only model."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.contract import EvalSet, OutcomeCause, RunSpec, SharedPaths
from tests.fixtures.text_task.build_wheel import build_wheel
from tests.job.support import BUCKET, REPOSITORY, Runs
from training_job.errors import BadConfiguration
from training_job.plug import stage_code
from training_job.store import S3Store

FOLDER = REPOSITORY / "tests" / "fixtures" / "text_task"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_wheel(FOLDER, tmp_path_factory.mktemp("wheel")).read_bytes()


def _spec(run_id: str, wheel: bytes, **training: Any) -> RunSpec:
    raw = yaml.safe_load((FOLDER / "spec.yaml").read_text())
    raw["run_id"] = run_id
    raw["task"]["code"] |= {"uri": f"s3://{BUCKET}/wheels/{run_id}.whl", "sha256": hashlib.sha256(wheel).hexdigest()}
    raw["training"] |= training
    return RunSpec.model_validate(raw)


def test_the_same_files_give_the_same_wheel_which_python_can_import(wheel: bytes, tmp_path: Path) -> None:
    path = build_wheel(FOLDER, tmp_path)
    assert path.read_bytes() == wheel
    assert zipfile.ZipFile(path).testzip() is None
    code = "import echo_task.env as e; print(e.solvable({'seed': 0}, 1, {'words': ['red']}))"
    answer = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(path)}, capture_output=True, text=True)
    assert answer.stdout.strip() == "True", answer.stderr


def test_a_text_task_in_a_wheel_is_learned_by_the_unchanged_trainer(runs: Runs, s3: Any, wheel: bytes) -> None:
    spec = _spec("echo", wheel)
    s3.put_object(Bucket=BUCKET, Key="wheels/echo.whl", Body=wheel)
    finished = runs.run(spec)
    assert finished.code == 0, finished.output
    assert finished.outcome is not None and finished.outcome.cause is OutcomeCause.FINISHED
    fixed = {one.step: one.solved for one in finished.outcome.evals if one.eval_set is EvalSet.FIXED}
    assert sorted(fixed) == [0, 4, 8, 12]
    assert fixed[0] <= 12 and fixed[12] == 16, fixed
    assert {one.eval_set for one in finished.outcome.evals} == {EvalSet.FIXED}, "there is no hold-out in this spec"
    assert "echo_task" not in sys.modules, "the wheel must have been imported by the job's processes alone"


def test_other_bytes_than_the_spec_names_are_refused_before_anything_starts(runs: Runs, s3: Any, wheel: bytes) -> None:
    spec = _spec("echo-swapped", wheel)
    s3.put_object(Bucket=BUCKET, Key="wheels/echo-swapped.whl", Body=wheel + b"\0")
    finished = runs.run(spec)
    assert finished.code == 65 and finished.outcome is not None
    assert finished.outcome.cause is OutcomeCause.BAD_CONFIGURATION
    assert finished.outcome.message.startswith("task.code.sha256: ")
    assert not (runs.paths("echo-swapped").root / "task").exists()


def _wheel_with(name: str, tmp_path: Path) -> bytes:
    path = tmp_path / "odd.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"x")
    return path.read_bytes()


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "native.so"])
def test_a_wheel_that_leads_outside_or_is_not_pure_is_refused(s3: Any, tmp_path: Path, name: str) -> None:
    odd = _wheel_with(name, tmp_path)
    spec = _spec("odd", odd)
    s3.put_object(Bucket=BUCKET, Key="wheels/odd.whl", Body=odd)
    paths = SharedPaths("odd", tmp_path / "shared")
    with pytest.raises(BadConfiguration, match=r"task\.code\.uri"):
        stage_code(spec.task.code, paths, S3Store)
    assert not any(path.is_file() for path in paths.root.rglob("*")) and not (tmp_path / "outside.py").exists()
