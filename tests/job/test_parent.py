"""A run that begins with another run's adapter: on the local trainer in real processes, and what its job refuses."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nightshift.contract import EvalSet, Lineage, OutcomeCause, RunKeys, SharedPaths
from nightshift.contract.job import FileDigest
from nightshift.contract.lineage import ADAPTER_FILES
from nightshift.contract.spec import LoraSettings, RunSpec
from tests.job.memory import MemoryStore
from tests.job.support import BUCKET, REPOSITORY, Finished, Runs, small_spec
from training_job.checkpoints import adapter_of
from training_job.clock import now
from training_job.errors import BadConfiguration
from training_job.parent import parent_adapter
from training_job.policies import adapter_arrays
from training_job.store import digest_of
from training_job.trainers.local.learner import Learner

MODEL = REPOSITORY / "training_job" / "models" / "maze_sft"
SOURCE = "package://training_job/models/maze_sft"
STEP = 2
EXPORT = RunKeys("elder").export(1, STEP)


def lineage(child: RunSpec, files: dict[str, FileDigest], **changes: Any) -> Lineage:
    known: dict[str, Any] = {
        "run_id": child.run_id, "parent": "elder", "asked": child.parent, "step": STEP, "attempt": 1, "files": files,
        "spec_sha256": "0" * 64, "model": SOURCE, "solved": 5, "of": 12, "at": now(),
    }  # fmt: skip
    return Lineage(**(known | changes))


# In real processes


@pytest.fixture(scope="module")
def elder(runs: Runs) -> Finished:
    finished = runs.run(small_spec("elder", total_steps=STEP, learning_rate=3e-3))
    assert finished.code == 0, finished.output
    return finished


def one_eval(finished: Finished, step: int, which: EvalSet) -> Any:
    return next(e for e in finished.outcome.evals if (e.step, e.eval_set) == (step, which))


def test_a_child_is_where_its_parent_was_and_goes_on_from_its_own_checkpoints(elder: Finished, runs: Runs) -> None:
    promised = elder.outcome.final_export.files
    spec = small_spec("child", total_steps=STEP, seed=7).model_copy(update={"parent": f"elder@{STEP}"})
    told = lineage(spec, {name: promised[name] for name in ADAPTER_FILES})
    runs.s3.put_object(Bucket=BUCKET, Key=RunKeys("child").parent, Body=told.to_json().encode())
    first = runs.run(spec)
    assert first.code == 0, first.output
    assert f"Beginning with the adapter of elder at step {STEP}, which solved 5 of 12" in first.output
    assert first.outcome.resumed_step == 0, "a child begins at its own step 0"
    for which in EvalSet:
        then, baseline = one_eval(elder, STEP, which), one_eval(first, 0, which)
        assert (baseline.solved, baseline.of, baseline.rows_sha256) == (then.solved, then.of, then.rows_sha256)
    assert one_eval(first, 0, EvalSet.FIXED).rows_sha256 != one_eval(elder, 0, EvalSet.FIXED).rows_sha256
    assert first.outcome.final_export.files["adapter_model.safetensors"] != promised["adapter_model.safetensors"]

    # Nothing of the parent is left, nor of what was kept of it: the next attempt needs neither.
    shutil.rmtree(runs.paths("elder").root)
    shutil.rmtree(runs.paths("child").parent)
    for key in [*runs.keys("elder"), RunKeys("child").parent]:
        runs.s3.delete_object(Bucket=BUCKET, Key=key)
    second = runs.finish(runs.start("child", 2, STEP), "child", 2)
    assert (second.code, second.outcome.resumed_step) == (0, STEP), second.output
    assert "Beginning with" not in second.output


# What is taken, and what is refused


@dataclass
class FakeJob:
    """As much of a job as beginning needs."""

    spec: RunSpec
    store: MemoryStore
    paths: SharedPaths
    record: Any
    lines: list[str]

    def say(self, line: str) -> None:
        self.lines.append(line)


@dataclass
class Found:
    model: str | None = SOURCE


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained adapter's files."""
    spec, folder = small_spec("elder"), tmp_path_factory.mktemp("adapter")
    learner = Learner(MODEL, spec.model.lora, spec.training)
    with torch.no_grad():
        for number, one in enumerate(learner.trainable):
            one.add_(0.01 * (number + 1))
    learner.save_adapter(folder)
    return folder


@pytest.fixture
def job(tmp_path: Path, adapter: Path) -> Any:
    """Of a child whose parent exported ``adapter`` at step 2; nothing lies on the shared mount."""
    spec = small_spec("child").model_copy(update={"parent": "elder@2"})
    store, files = MemoryStore(), {}
    for name in ADAPTER_FILES:
        content = (adapter / name).read_bytes()
        files[name] = digest_of(content)
        store.put(f"{EXPORT}{name}", content)
    store.put(RunKeys("child").parent, lineage(spec, files).to_json().encode())
    return FakeJob(spec, store, SharedPaths("child", tmp_path), Found(), [])


def told(job: Any, **changes: Any) -> None:
    found = Lineage.from_json(job.store.get(RunKeys("child").parent))
    job.store.put(RunKeys("child").parent, found.model_copy(update=changes).to_json().encode())


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in ADAPTER_FILES)


def test_the_export_in_s3_is_kept_in_the_childs_own_folder_and_not_asked_for_again(job: Any, adapter: Path) -> None:
    folder = parent_adapter(job, MODEL)
    assert folder == job.paths.parent and same(folder, adapter)
    for name in ADAPTER_FILES:
        job.store.put(f"{EXPORT}{name}", b"something else")
    assert parent_adapter(job, MODEL) == folder and same(folder, adapter)


def test_the_checkpoint_on_the_shared_mount_is_taken_where_it_holds_what_was_exported(job: Any, adapter: Path) -> None:
    shutil.copytree(adapter, adapter_of(SharedPaths("elder", job.paths.mount), STEP))
    for name in ADAPTER_FILES:
        job.store.put(f"{EXPORT}{name}", b"something else")
    assert (folder := parent_adapter(job, MODEL)) is not None and same(folder, adapter)
    assert "global_step_2/policy/lora_adapter" in job.lines[0]


def test_a_checkpoint_that_holds_other_weights_is_passed_by(job: Any, adapter: Path) -> None:
    """A retry of the parent may have trained the step again since."""
    other = adapter_of(SharedPaths("elder", job.paths.mount), STEP)
    shutil.copytree(adapter, other)
    weights = {name: value + 1 for name, value in load_file(adapter / "adapter_model.safetensors").items()}
    save_file(weights, other / "adapter_model.safetensors")
    assert (folder := parent_adapter(job, MODEL)) is not None and same(folder, adapter)


def test_a_step_without_an_export_is_its_checkpoints_and_stays_what_the_first_attempt_found(
    job: Any, adapter: Path
) -> None:
    told(job, attempt=None, files={})
    with pytest.raises(
        BadConfiguration, match="step 2 of elder was not exported, and its checkpoint is of no use any more"
    ):
        parent_adapter(job, MODEL)
    shutil.copytree(adapter, adapter_of(SharedPaths("elder", job.paths.mount), STEP))
    assert (folder := parent_adapter(job, MODEL)) is not None and same(folder, adapter)
    shutil.rmtree(job.paths.mount / "runs" / "elder")
    assert parent_adapter(job, MODEL) == folder


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda j: j.store.objects.pop(RunKeys("child").parent), "parent.json does not exist"),
        (lambda j: told(j, run_id="other"), "parent.json is of run other"),
        (lambda j: [j.store.put(f"{EXPORT}{n}", b"x") for n in ADAPTER_FILES], "other bytes than elder exported"),
        (lambda j: j.store.objects.pop(f"{EXPORT}adapter_model.safetensors"), "is gone: name another step"),
    ],
)  # fmt: skip
def test_weights_that_are_gone_or_not_what_was_promised_are_refused_by_the_specs_field(
    job: Any, spoil: Any, problem: str
) -> None:
    spoil(job)
    with pytest.raises(BadConfiguration, match=f"(?s)parent.*{problem}") as refused:
        parent_adapter(job, MODEL)
    assert refused.value.outcome is OutcomeCause.BAD_CONFIGURATION


def test_a_branch_that_has_moved_on_since_the_parent_is_refused_and_its_commit_named(job: Any) -> None:
    told(job, model=f"hf://owner/name@{'a' * 40}")
    job.record.model = f"hf://owner/name@{'b' * 40}"
    with pytest.raises(BadConfiguration, match=rf"elder adapts hf://owner/name@{'a' * 40}.*name the commit there"):
        parent_adapter(job, MODEL)


def test_an_adapter_of_another_form_is_refused_before_anything_is_started(job: Any) -> None:
    lora = job.spec.model.lora.model_copy(update={"rank": job.spec.model.lora.rank * 2})
    job.spec = job.spec.model_copy(update={"model": job.spec.model.model_copy(update={"lora": lora})})
    with pytest.raises(BadConfiguration, match=r"cannot be begun with: .*says rank"):
        parent_adapter(job, MODEL)


def test_a_run_without_a_parent_asks_for_none(job: Any) -> None:
    job.spec, job.store = job.spec.model_copy(update={"parent": None}), None
    assert parent_adapter(job, MODEL) is None


def test_the_learner_has_the_adapters_weights_and_an_optimizer_that_knows_nothing_of_them(adapter: Path) -> None:
    spec = small_spec("child", seed=3)
    learner = Learner(MODEL, spec.model.lora, spec.training)
    before, wanted = learner.lora_arrays(), adapter_arrays(adapter)
    learner.load_adapter(adapter)
    for layer, (a, b) in learner.lora_arrays().items():
        assert np.array_equal(a, wanted[layer][0]) and np.array_equal(b, wanted[layer][1])
        assert not np.array_equal(b, before[layer][1])
    assert learner.optimizer.state_dict()["state"] == {}
    other = Learner(MODEL, LoraSettings(rank=2, alpha=4), spec.training)
    with pytest.raises((ValueError, RuntimeError)):
        other.load_adapter(adapter)
