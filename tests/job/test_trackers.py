"""One tracker run for a run of several attempts, no step twice, and no failure of a tracker that training would feel."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nightshift.contract import RunSpec, SharedPaths
from tests.builders import spec
from training_job.trackers import MAX_FAILURES, MAX_WAITING, Tracked, facts_of, open_tracker
from training_job.trackers.backends import TAG, Mlflow, Wandb


def no_warning(line: str) -> None:
    raise AssertionError(line)


class Kept:
    """A backend in memory, shared by the attempts of a run as a tracker's server is."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.opened = self.closed = 0
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.fails: Callable[[int], bool] = lambda step: False

    def open(self) -> Kept:
        self.open_gate.wait(10)
        self.opened += 1
        return self

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self.fails(step):
            raise ConnectionError("the tracker's server is away")
        self.points.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1


def attempt(backend: Kept, folder: Path, steps: range, warn: Callable[[str], None] = no_warning) -> None:
    """Logs steps as a trainer does: the step's numbers, then its eval at every second one."""
    tracked = Tracked(backend.open, folder / "logged.json", warn)
    for step in steps:
        if step:
            tracked.log({"reward": step / 10}, step)
        if step % 2 == 0:
            tracked.log({"eval/fixed/success": step / 100}, step)
    tracked.close(10)


def test_attempts_continue_one_history_without_a_repeated_step(tmp_path: Path) -> None:
    backend = Kept()
    attempt(backend, tmp_path, range(8))  # then the node dies; the last checkpoint is of step 4
    attempt(backend, tmp_path, range(5, 11))
    rewards = [step for step, metrics in backend.points if "reward" in metrics]
    evals = [step for step, metrics in backend.points if "eval/fixed/success" in metrics]
    assert rewards == list(range(1, 11))
    assert evals == [0, 2, 4, 6, 8, 10]


def test_an_eval_that_the_attempt_before_did_not_come_to_is_logged_though_its_step_was(tmp_path: Path) -> None:
    backend = Kept()
    attempt(backend, tmp_path, range(4))
    dying = Tracked(backend.open, tmp_path / "logged.json", no_warning)
    dying.log({"reward": 0.4}, 4)
    dying.close(10)
    attempt(backend, tmp_path, range(4, 6))
    assert [p for p in backend.points if p[0] == 4] == [(4, {"reward": 0.4}), (4, {"eval/fixed/success": 0.04})]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"train": "x", "eval": 1}'])
def test_a_memory_that_cannot_be_read_costs_repeated_steps_and_no_run(content: str, tmp_path: Path) -> None:
    (tmp_path / "logged.json").write_text(content)
    backend = Kept()
    attempt(backend, tmp_path, range(1, 3))
    assert [step for step, _ in backend.points] == [1, 2, 2]


def test_only_finite_numbers_are_logged(tmp_path: Path) -> None:
    backend = Kept()
    tracked = Tracked(backend.open, tmp_path / "logged.json", no_warning)
    tracked.log({"a": 1, "b": float("nan"), "c": "text", "d": None, "e": [1], "f": float("inf"), "g": True}, 1)
    tracked.close(10)
    assert backend.points == [(1, {"a": 1.0, "g": 1.0})]


def test_a_tracker_that_fails_is_told_once_given_up_and_felt_by_nobody(tmp_path: Path) -> None:
    backend, told = Kept(), list[str]()
    backend.fails = lambda step: True
    attempt(backend, tmp_path, range(50), told.append)
    assert len(told) == 2
    assert "the tracker's server is away; training goes on" in told[0]
    assert f"failed {MAX_FAILURES} times" in told[1]
    assert backend.points == []


def test_a_tracker_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    backend, told = Kept(), list[str]()
    backend.fails = lambda step: step in (3, 5)
    attempt(backend, tmp_path, range(1, 9), told.append)
    assert [step for step, metrics in backend.points if "reward" in metrics] == [1, 2, 4, 6, 7, 8]
    assert len(told) == 1


def test_a_tracker_that_hangs_costs_no_step_and_the_end_waits_for_it_only_so_long(tmp_path: Path) -> None:
    backend, told = Kept(), list[str]()
    backend.open_gate.clear()
    tracked = Tracked(backend.open, tmp_path / "logged.json", told.append)
    began = time.thread_time()
    for step in range(MAX_WAITING + 50):
        tracked.log({"reward": 1.0}, step)
    assert time.thread_time() - began < 1.0
    tracked.close(0.2)
    assert len(told) == 2
    assert "slower than training" in told[0]
    backend.open_gate.set()


# The trackers themselves


def asked(tracker: str, **more: Any) -> RunSpec:
    return spec(run_id="tracked", tracking={"tracker": tracker, "project": "mazes"} | more)


def test_the_console_needs_no_tracker(tmp_path: Path) -> None:
    tracked = open_tracker(asked("console"), SharedPaths("tracked", tmp_path), no_warning)
    tracked.log({"reward": 1.0}, 1)
    tracked.close(1)
    assert list(tmp_path.iterdir()) == []


def test_an_image_without_the_trackers_library_says_so_and_trains(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    told: list[str] = []
    wanted = asked("wandb").model_copy(update={"secrets": {"WANDB_API_KEY": "x"}})
    tracked = open_tracker(wanted, SharedPaths("tracked", tmp_path), told.append)
    tracked.log({"reward": 1.0}, 1)
    tracked.close(10)
    assert told and "ModuleNotFoundError: " in told[0] and "wandb" in told[0]


def test_facts_are_flat_and_hold_no_setting_of_the_task_and_no_secret() -> None:
    wanted = spec(secrets={"HF_TOKEN": "team/hf"})
    wanted = wanted.model_copy(update={"task": wanted.task.model_copy(update={"config": {"private": "yes"}})})
    facts = facts_of(wanted)
    assert facts["training.total_steps"] == 400 and facts["lora.rank"] == "32"
    assert all(isinstance(value, str | int | float | bool) for value in facts.values())
    assert "team/hf" not in str(facts) and "private" not in str(facts)


class FakeWandb:
    """wandb's interface, as far as it is used; the real one needs its server to continue a run."""

    def __init__(self) -> None:
        self.inits: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def Settings(self, **given: Any) -> dict[str, Any]:
        return given

    def init(self, **given: Any) -> FakeWandb:
        self.inits.append(given)
        return self

    def log(self, data: dict[str, float], step: int) -> None:
        self.rows.append((step, data))

    def finish(self) -> None:
        self.finished += 1


def test_wandb_continues_the_run_with_the_nightshift_runs_id(monkeypatch: Any, tmp_path: Path) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        backend = Wandb("mazes", "tracked", tmp_path, {"a": 1})
        backend.log({"reward": 1.0}, 3)
        backend.close()
    for given in fake.inits:
        assert (given["id"], given["resume"], given["project"]) == ("tracked", "allow", "mazes")
        assert given["settings"] == {"console": "off"}
    assert fake.rows == [(3, {"reward": 1.0})] * 2 and fake.finished == 2


class FakeMlflow:
    """MLflow's client, as far as it is used; played against mlflow-skinny 3.17.2 and its file store once, which is too large
    to be installed for this."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.metrics: list[tuple[str, str, float, int]] = []
        self.params: list[tuple[str, str]] = []

    def install(self, monkeypatch: Any) -> None:
        module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
        module.MlflowClient = self.client  # type: ignore[attr-defined]
        entities.Metric = lambda *given: given  # type: ignore[attr-defined]
        entities.Param = lambda *given: given  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mlflow", module)
        monkeypatch.setitem(sys.modules, "mlflow.entities", entities)

    def client(self, tracking_uri: str) -> FakeMlflow:
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if self.runs else None

    def create_experiment(self, name: str) -> str:
        return "7"

    def search_runs(self, experiments: list[str], wanted: str, max_results: int) -> list[Any]:
        found = [n for n, tags in self.runs.items() if any(f"tags.`{k}` = '{v}'" == wanted for k, v in tags.items())]
        return [SimpleNamespace(info=SimpleNamespace(run_id=n)) for n in found[:max_results]]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, Any]) -> Any:
        name = f"run-{len(self.runs)}"
        self.runs[name] = {**tags, "status": "RUNNING"}
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"] = status

    def set_terminated(self, run_id: str) -> None:
        self.runs[run_id]["status"] = "FINISHED"

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1_000, "more than the server takes at once"
        self.metrics += [(run_id, name, value, step) for name, value, _, step in metrics]
        self.params += params


def test_mlflow_finds_the_run_of_the_attempts_before_by_its_tag(monkeypatch: Any, tmp_path: Path) -> None:
    fake = FakeMlflow()
    fake.install(monkeypatch)
    fake.runs["somebody-elses"] = {TAG: "other", "status": "RUNNING"}
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team"
    for step in (1, 2):
        backend = Mlflow(arn, "mazes", "tracked", {"a": 1})
        backend.log({f"m{i}": 1.0 for i in range(1_500)} | {"pass@1": 0.5}, step)
        backend.close()
    assert fake.uris == [arn, arn]
    assert list(fake.runs) == ["somebody-elses", "run-1"]
    assert fake.runs["run-1"] == {TAG: "tracked", "status": "FINISHED"}
    assert fake.params == [("a", "1")], "facts are told once"
    assert {run for run, *_ in fake.metrics} == {"run-1"}
    assert [step for _, name, _, step in fake.metrics if name == "pass_at_1"] == [1, 2]
