"""docs/your-task.md is a task that works: what stands there in blocks is built, tried and planned as it says."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.contract import RunSpec, SharedPaths
from tests.job.support import BUCKET, REPOSITORY
from training_job.__main__ import main
from training_job.plug import plan_task
from training_job.store import S3Store
from training_job.trial import play, problems_of_turn

PAGE = (REPOSITORY / "docs" / "your-task.md").read_text()
BLOCK = re.compile(r"^`([\w./]+)`\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WHEEL = "guess-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and its wheel."""
    folder = tmp_path_factory.mktemp("your-task")
    for name, text in BLOCK.findall(PAGE):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "guess" / "__init__.py").touch()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", "."]
    assert " ".join(command[1:]).replace("-m pip", "python -m pip") in PAGE
    # This environment has the build's setuptools already, and perhaps no network to fetch it.
    built = subprocess.run(
        [*command, "--no-build-isolation", "-q"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test imports from the wheel is not there for the next one."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [one for one in sys.modules if one.split(".")[0] == "guess"]:
        del sys.modules[name]


def tried(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    command = ["try", "--spec", str(folder / "spec.yaml"), "--code", str(folder / "dist" / WHEEL), *more]
    code = main(command)
    return code, capsys.readouterr().out


def test_the_pages_task_is_tried_with_the_replies_that_it_shows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = tried(folder, capsys, "--replies", str(folder / "replies.txt"))
    assert code == 0, said
    assert "user: I think of a number between 1 and 100." in said and "assistant: I begin low: 20" in said
    assert "user: I see no number in your answer." in said, (
        "after the replies that were given comes what nobody can read"
    )
    assert "8 turns, rewards sum to 0: not solved (task.success.min_score 1)" in said


def test_the_pages_spec_has_nothing_against_it_and_its_oracle_knows_the_ceiling(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder / "dist" / WHEEL))
    assert main(["plan", "--spec", str(folder / "spec.yaml")]) == 0
    assert "64 of 64" in capsys.readouterr().out


def test_the_pages_wheel_is_taken_from_s3_and_an_item_can_be_solved_with_it(
    folder: Path, s3: Any, tmp_path: Path
) -> None:
    content = (folder / "dist" / WHEEL).read_bytes()
    s3.put_object(Bucket=BUCKET, Key=f"wheels/{WHEEL}", Body=content)
    raw = yaml.safe_load((folder / "spec.yaml").read_text())
    raw["task"]["code"] |= {"uri": f"s3://{BUCKET}/wheels/{WHEEL}", "sha256": hashlib.sha256(content).hexdigest()}
    spec = RunSpec.model_validate(raw)
    plan = plan_task(spec, SharedPaths("guess-1", tmp_path), S3Store)
    one = play(plan, {"seed": 7}, [])
    secret = plan.environment_class()(env_config=plan.config, extras={"seed": 7, "max_turns": 8}).secret
    found = play(plan, {"seed": 7}, [str(secret)])
    assert (sum(one.rewards), sum(found.rewards)) == (0.0, 1.0) and one.problems == found.problems == []


BROKEN = {
    "never ends": ("solved or self.turns >= self.max_turns", "False", "goes on after max_turns, 8"),
    "pays no number": ("float(solved)", "None", "reward is None, not a finite number"),
    "says nothing": ("[message(answer)]", "[]", "goes on without an observation"),
    "says no message": ("[message(answer)]", "[answer]", "message 0 of it has no role and content"),
    "begins by chance": ("I think of a number", "{random.random()} I think of a number", "two different beginnings"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_environment_that_does_not_keep_its_side_is_told_by_what_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    right, wrong, told = BROKEN[case]
    text = (folder / "guess" / "env.py").read_text()
    assert right in text
    (tmp_path / "guess").mkdir()
    (tmp_path / "guess" / "__init__.py").touch()
    (tmp_path / "guess" / "env.py").write_text(text.replace(right, wrong))
    code = main(["try", "--spec", str(folder / "spec.yaml"), "--code", str(tmp_path)])
    said = capsys.readouterr().out
    assert code == 65 and told in said, said


def test_an_environment_that_raises_is_told_by_its_last_lines(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "guess").mkdir()
    (tmp_path / "guess" / "env.py").write_text("class GuessEnv:\n    def __init__(self, **_):\n        1 // 0\n")
    assert main(["try", "--spec", str(folder / "spec.yaml"), "--code", str(tmp_path)]) == 70
    assert "NO  ZeroDivisionError" in capsys.readouterr().out


def test_a_turn_that_a_trainer_can_use_has_nothing_against_it() -> None:
    turn = {"observations": [], "reward": 1, "done": True, "metadata": {}}
    assert list(problems_of_turn(turn)) == []
