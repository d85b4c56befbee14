"""Whole attempts as the Ray job runs them: real Ray workers, real S3 objects, real files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.numpy import load_file

from nightshift.contract import (
    Control,
    ControlCommand,
    EvalRow,
    EvalSet,
    EvalSummary,
    ExportRecord,
    FileDigest,
    Manifest,
    OutcomeCause,
    Phase,
    Progress,
    RunKeys,
)
from tests.job.support import BUCKET, REPOSITORY, Finished, Runs, small_spec, wait_for
from training_job.policies.pretrained import load_policy

STEPS = 8
MODEL = REPOSITORY / "training_job" / "models" / "maze_sft"


@pytest.fixture(scope="module")
def straight(runs: Runs) -> Finished:
    """One attempt from the first step to the last."""
    finished = runs.run(small_spec("straight", total_steps=STEPS))
    assert finished.code == 0, finished.output
    return finished


@pytest.fixture(scope="module")
def interrupted(runs: Runs) -> tuple[Finished, Finished]:
    """The same run with a worker killed in attempt 1, and attempt 2 in a fresh process."""
    spec = small_spec("interrupted", total_steps=STEPS)
    runs.put_spec(spec)
    process = runs.start(spec.run_id)
    wait_for(lambda: (progress := _progress(runs, spec.run_id, 1)) and progress.saved_step >= 2)
    os.kill(runs.rollout_workers()[0], signal.SIGKILL)
    killed_at = time.monotonic()
    first = runs.finish(process, spec.run_id)
    assert time.monotonic() - killed_at < 30, "a dead worker must end the attempt at once, not after a timeout"
    print(f"killed worker to exit: {time.monotonic() - killed_at:.1f} s")
    assert first.outcome is not None, first.output
    second = runs.finish(runs.start(spec.run_id, 2, first.outcome.saved_step), spec.run_id, 2)
    return first, second


def _progress(runs: Runs, run_id: str, attempt: int) -> Progress | None:
    content = runs.get(RunKeys(run_id).progress(attempt))
    return Progress.from_json(content) if content else None


def _adapter(runs: Runs, run_id: str, attempt: int, step: int) -> bytes:
    content = runs.get(RunKeys(run_id).export(attempt, step) + "adapter_model.safetensors")
    assert content is not None
    return content


# An uninterrupted attempt


def test_a_whole_attempt_ends_finished_with_everything_told(straight: Finished, runs: Runs) -> None:
    outcome = straight.outcome
    assert outcome is not None
    assert (outcome.cause, outcome.exit_code, outcome.step, outcome.saved_step) == (
        OutcomeCause.FINISHED,
        0,
        STEPS,
        STEPS,
    )
    assert (outcome.resumed_step, outcome.guard.resumed_step) == (0, 0)
    progress = _progress(runs, "straight", 1)
    assert progress is not None
    assert (progress.phase, progress.step, progress.saved_step, progress.eta_seconds) == (Phase.DONE, STEPS, STEPS, 0.0)


def test_its_progress_says_how_long_it_was_in_each_phase_and_all_of_its_time_is_in_one(
    straight: Finished, runs: Runs
) -> None:
    progress = _progress(runs, "straight", 1)
    assert progress is not None
    spent = progress.phase_seconds
    phases = {Phase.SETUP, Phase.EVAL, Phase.GENERATE, Phase.TRAIN, Phase.CHECKPOINT, Phase.EXPORT}
    assert phases <= set(spent) and all(seconds > 0 for seconds in spent.values())
    written = runs.s3.head_object(Bucket=BUCKET, Key=RunKeys("straight").spec)["LastModified"]
    assert sum(spent.values()) <= (progress.at - written).total_seconds() + 1, "S3 tells whole seconds"
    assert progress.step_seconds is not None
    assert spent[Phase.GENERATE] + spent[Phase.TRAIN] >= progress.step_seconds > 0


def test_it_says_what_skyrl_says_and_where_its_seconds_went(straight: Finished) -> None:
    for line in (
        f"Total steps: {STEPS}",
        "No checkpoint found, starting training from scratch",
        "Started: 'generate'",
        "Finished: 'step', time cost: ",
        "Successfully saved checkpoint for global_step_2 to: ",
        "Dumped aggregated eval metrics to ",
        "Training done!",
        "setup: import torch",
        "setup: ray.init",
        "setup: baseline",
    ):
        assert line in straight.output
    assert [f"Step {n}: {{'trainer/global_step': {n}" in straight.output for n in range(1, STEPS + 1)] == [True] * STEPS


def test_the_fixed_set_is_evaluated_at_the_interval_and_the_holdout_first_and_last(straight: Finished) -> None:
    steps = {kind: [one.step for one in straight.outcome.evals if one.eval_set is kind] for kind in EvalSet}
    assert steps[EvalSet.FIXED] == [0, 2, 4, 6, 8]
    solved = {one.step: one.solved for one in straight.outcome.evals if one.eval_set is EvalSet.FIXED and one.step}
    best = max(solved, key=lambda step: (solved[step], step))
    assert steps[EvalSet.HOLDOUT] == [0, 8, *([best] if best != 8 else [])], "and once with the best adapter"


def test_rows_and_summaries_in_s3_agree_and_success_is_not_pass_at_1(straight: Finished, runs: Runs) -> None:
    for summary in straight.outcome.evals:
        where = (1, summary.step, summary.eval_set)
        rows_text = runs.get(RunKeys("straight").eval_rows(*where))
        rows = [EvalRow.model_validate_json(line) for line in rows_text.splitlines()]
        assert EvalSummary.from_json(runs.get(RunKeys("straight").eval_summary(*where))) == summary
        assert hashlib.sha256(rows_text).hexdigest() == summary.rows_sha256
        assert (len(rows), sum(row.success for row in rows)) == (summary.of, summary.solved)
        assert all(row.success == (row.score >= 0.8) for row in rows)
        assert summary.low <= summary.success <= summary.high
        assert summary.pass_at_1 == 1.0, "every reply of this policy is well formed, and format alone pays"
    baseline = straight.outcome.evals[0]
    assert baseline.solved < baseline.of


def test_dumps_lie_on_the_shared_mount_with_skyrls_fields(straight: Finished, runs: Runs) -> None:
    folder = runs.paths("straight").eval_dump(STEPS)
    lines = [json.loads(line) for line in (folder / "fixed.jsonl").read_text().splitlines()]
    fields = {"input_prompt", "output_response", "score", "stop_reason", "env_class", "env_extras", "data_source"}
    assert len(lines) == 12 and all(line.keys() == fields for line in lines)
    assert lines[3]["env_extras"] == {"seed": 3, "max_turns": 20} and isinstance(lines[3]["score"], list)
    final = next(e for e in straight.outcome.evals if (e.eval_set, e.step) == (EvalSet.FIXED, STEPS))
    assert sum(sum(line["score"]) >= 0.8 for line in lines) == final.solved
    metrics = [json.loads(line) for line in (folder / "aggregated_results.jsonl").read_text().splitlines()]
    assert metrics[0]["eval/fixed/avg_score"] == final.avg_score and "eval/holdout/pass_at_1" in metrics[1]


def test_checkpoints_are_in_skyrls_layout_and_only_the_newest_are_kept(straight: Finished, runs: Runs) -> None:
    paths = runs.paths("straight")
    assert paths.pointer.read_text() == str(STEPS)
    assert sorted(p.name for p in paths.ckpts.iterdir()) == [
        "global_step_6",
        "global_step_8",
        "latest_ckpt_global_step.txt",
    ]
    folder = paths.checkpoint(STEPS)
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert found - {"policy/lora_adapter/README.md"} == {
        "trainer_state.pt",
        "data.pt",
        "policy/model_world_size_1_rank_0.pt",
        "policy/optim_world_size_1_rank_0.pt",
        "policy/extra_state_world_size_1_rank_0.pt",
        "policy/fsdp_config.json",
        "policy/huggingface/config.json",
        "policy/lora_adapter/adapter_config.json",
        "policy/lora_adapter/adapter_model.safetensors",
    }


def test_exports_are_uploaded_with_digests_and_load_with_peft(straight: Finished, runs: Runs, tmp_path: Any) -> None:
    keys = RunKeys("straight")
    for step in (2, 4, 6, 8):
        record = ExportRecord.from_json(runs.get(keys.export_record(1, step)))
        assert (record.step, record.attempt, record.lora_b_total, record.lora_b_nonzero) == (step, 1, 5, 5)
        assert set(record.files) == {"adapter_config.json", "adapter_model.safetensors", "config.json", "README.md"}
        for name, digest in record.files.items():
            content = runs.get(keys.export(1, step) + name)
            assert FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content)) == digest
            (tmp_path / name).write_bytes(content)
    assert straight.outcome.final_export == record
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "package://training_job/models/maze_sft"
    loaded = PeftModel.from_pretrained(load_policy(MODEL), str(tmp_path))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 10 and all("default" not in key for key in tensors)
    assert loaded.peft_config["default"].r == 16


def test_the_pictures_are_there(straight: Finished, runs: Runs) -> None:
    keys = RunKeys("straight")
    for key in (keys.curve_png, keys.diagnostics(1) + "trace-solved.png"):
        assert (runs.get(key) or b"").startswith(b"\x89PNG"), key


# An interrupted run


def test_a_killed_worker_ends_the_attempt_fast_and_truthfully(interrupted: tuple[Finished, Finished]) -> None:
    first, _ = interrupted
    assert first.code == 75
    assert (first.outcome.cause, first.outcome.exit_code) == (OutcomeCause.WORKER_LOST, 75)
    assert 2 <= first.outcome.saved_step <= first.outcome.step < STEPS
    assert "Training failed at step" in first.output and "Training done!" not in first.output


def test_the_next_attempt_resumes_at_exactly_the_saved_step(interrupted: tuple[Finished, Finished], runs: Runs) -> None:
    first, second = interrupted
    assert second.code == 0, second.output
    assert second.outcome.resumed_step == first.outcome.saved_step == second.outcome.guard.resumed_step
    assert f"Resuming from global_step: {first.outcome.saved_step}" in second.output
    assert not second.outcome.guard.repaired_pointer and second.outcome.guard.quarantined == []
    evaluated = {(one.eval_set, one.step) for one in second.outcome.evals}
    assert (EvalSet.FIXED, 0) not in evaluated and (EvalSet.HOLDOUT, 0) not in evaluated
    assert {(EvalSet.FIXED, STEPS), (EvalSet.HOLDOUT, STEPS)} <= evaluated
    assert RunKeys("interrupted").eval_summary(1, 0, EvalSet.HOLDOUT) in runs.keys("interrupted")


@pytest.mark.usefixtures("straight", "interrupted")
def test_interrupted_training_is_bit_identical_to_uninterrupted_training(runs: Runs) -> None:
    assert _adapter(runs, "interrupted", 2, STEPS) == _adapter(runs, "straight", 1, STEPS)
    assert _adapter(runs, "straight", 1, STEPS) != _adapter(runs, "straight", 1, STEPS - 2)
    for kind in EvalSet:
        ours, theirs = RunKeys("interrupted").eval_rows(2, STEPS, kind), RunKeys("straight").eval_rows(1, STEPS, kind)
        assert runs.get(ours) == runs.get(theirs)
    for part in ("model", "optim", "extra_state"):
        name = f"policy/{part}_world_size_1_rank_0.pt"
        states = [torch.load(runs.paths(r).checkpoint(STEPS) / name) for r in ("interrupted", "straight")]
        assert _flat(states[0]) == _flat(states[1])


def _flat(value: Any) -> Any:
    """Nested state with its tensors as bytes, so that == compares bits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _flat(one) for key, one in value.items()}
    return [_flat(one) for one in value] if isinstance(value, list | tuple) else value


# What the controller asks for, and SIGTERM


def _ask(runs: Runs, run_id: str, command: ControlCommand, seq: int) -> None:
    control = Control(run_id=run_id, seq=seq, command=command, reason="a test asks", at=datetime.now(UTC))
    runs.s3.put_object(Bucket=BUCKET, Key=RunKeys(run_id).control, Body=control.to_json().encode())


def test_a_request_to_stop_is_carried_out_once_after_a_checkpoint(runs: Runs) -> None:
    spec = small_spec("asked", total_steps=400, ckpt_interval=400, eval_interval=400, hf_save_interval=400)
    spec = spec.model_copy(update={"task": spec.task.model_copy(update={"holdout": None})})
    runs.put_spec(spec)
    process = runs.start("asked")
    wait_for(lambda: (progress := _progress(runs, "asked", 1)) and progress.step >= 1)
    _ask(runs, "asked", ControlCommand.CHECKPOINT_NOW, 1)
    wait_for(lambda: (progress := _progress(runs, "asked", 1)) and progress.acknowledged == 1)
    assert _progress(runs, "asked", 1).saved_step >= 1
    _ask(runs, "asked", ControlCommand.STOP_AFTER_CHECKPOINT, 2)
    first = runs.finish(process, "asked")
    assert (first.code, first.outcome.cause) == (0, OutcomeCause.STOPPED_ON_REQUEST)
    assert first.outcome.saved_step == first.outcome.step < 400
    assert _progress(runs, "asked", 1).acknowledged == 2

    process = runs.start("asked", 2, first.outcome.saved_step)
    progress = wait_for(lambda: (p := _progress(runs, "asked", 2)) and p.step > first.outcome.step + 2 and p)
    assert (progress.acknowledged, progress.resumed_step) == (2, first.outcome.saved_step)
    process.send_signal(signal.SIGTERM)
    second = runs.finish(process, "asked", 2)
    assert second.code == 75 and second.outcome is None, "nobody had asked for this end: it has no outcome to tell"
    assert "writes no outcome" in second.output


def test_sigterm_after_a_request_to_stop_is_told_as_that(runs: Runs) -> None:
    spec = small_spec("terminated", total_steps=400, train_batch_size=12, policy_mini_batch_size=12)
    runs.put_spec(spec)
    process = runs.start("terminated")
    wait_for(lambda: _progress(runs, "terminated", 1))
    _ask(runs, "terminated", ControlCommand.STOP_AFTER_CHECKPOINT, 1)
    process.send_signal(signal.SIGTERM)
    finished = runs.finish(process, "terminated")
    assert finished.outcome.cause is OutcomeCause.STOPPED_ON_REQUEST and finished.outcome.step == 0


# What cannot work is refused by field, and early


@pytest.mark.parametrize(
    ("run_id", "change", "field"),
    [
        ("bad-batch", {"training": {"policy_mini_batch_size": 4}}, "training.policy_mini_batch_size"),
        (
            "bad-data",
            {"training": {"train_batch_size": 600, "policy_mini_batch_size": 300}},
            "training.train_batch_size",
        ),
        ("bad-target", {"training": {"max_turns": 15}, "target": {"success": 0.95}}, "target.success"),
        ("bad-model", {"model": {"source": "package://training_job/models/nothing"}}, "model.source"),
        ("bad-package", {"model": {"source": "package://not_installed/model"}}, "model.source"),
        ("bad-parquet", {"task": {"train": {"kind": "parquet", "uri": "/shared/nowhere.parquet"}}}, "task.train"),
        ("bad-trainer", {"training": {"trainer": "skyrl"}}, "training.trainer"),
    ],
)
def test_a_spec_that_cannot_work_is_refused_by_field(
    runs: Runs, run_id: str, change: dict[str, dict[str, Any]], field: str
) -> None:
    raw = small_spec(run_id).model_dump(mode="json")
    for part, fields in change.items():
        raw[part] = (raw[part] or {}) | fields
    finished = runs.run(type(small_spec(run_id)).model_validate(raw), RAY_ADDRESS="127.0.0.1:1")
    assert finished.code == 65, finished.output
    assert finished.outcome.cause is OutcomeCause.BAD_CONFIGURATION
    assert finished.outcome.message.startswith(f"{field}: ")
    assert finished.outcome.saved_step == 0 and finished.outcome.evals == []


def test_without_a_ray_cluster_the_job_ends_as_temporary(runs: Runs) -> None:
    finished = runs.run(small_spec("no-ray"), RAY_ADDRESS="127.0.0.1:1")
    assert (finished.code, finished.outcome.cause) == (75, OutcomeCause.ENGINE_FAILURE), finished.output


def test_an_environment_that_does_not_exist_is_the_specs_error_though_a_worker_finds_it(runs: Runs) -> None:
    spec = small_spec("bad-environment")
    spec = spec.model_copy(update={"task": spec.task.model_copy(update={"environment": "nowhere.env:Env"})})
    finished = runs.run(spec)
    assert finished.code == 65, finished.output
    assert finished.outcome.message.startswith("task.environment: ")


def test_a_run_without_a_spec_and_a_floor_without_checkpoints_are_refused(runs: Runs) -> None:
    missing = runs.finish(runs.start("never-admitted"), "never-admitted")
    assert (missing.code, missing.outcome.cause) == (65, OutcomeCause.BAD_CONFIGURATION)
    lost = runs.run(small_spec("lost"), 2, 4)
    assert (lost.code, lost.outcome.cause) == (65, OutcomeCause.CHECKPOINT_UNUSABLE)
    assert lost.outcome.guard.floor == 4 and "nothing proves" in lost.outcome.message


def test_usage_errors_have_their_own_exit_code(runs: Runs) -> None:
    assert runs.finish(runs.start("straight", 0), "straight", 99).code == 64
    assert runs.finish(runs.start("straight", 1, -1), "straight", 99).code == 64


# Verification


@pytest.fixture
def published(straight: Finished, runs: Runs) -> Manifest:
    """The straight run published: adapters copied, and a manifest of everything."""
    keys = RunKeys("straight")
    for name in straight.outcome.final_export.files:
        content = runs.get(keys.export(1, STEPS) + name)
        runs.s3.put_object(Bucket=BUCKET, Key=keys.adapter("final") + name, Body=content)
    left_out = (keys.manifest, keys.control)
    contents = {key: runs.get(key) for key in runs.keys("straight") if key not in left_out}
    fixed = [one for one in straight.outcome.evals if one.eval_set is EvalSet.FIXED]
    manifest = Manifest(
        run_id="straight",
        state="finished",
        attempts=[],
        baseline=fixed[0],
        final=fixed[-1],
        best=fixed[-1],
        curve=fixed,
        adapters={"final": STEPS},
        gpu_hours=0.1,
        objects={
            key.removeprefix(keys.prefix): FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
            for key, content in contents.items()
        },
        at=datetime.now(UTC),
    )
    runs.s3.put_object(Bucket=BUCKET, Key=keys.manifest, Body=manifest.to_json().encode())
    return manifest


def test_a_publication_is_verified_in_a_fresh_process(published: Manifest, runs: Runs) -> None:
    done = runs.verify("straight")
    verdict = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert verdict == {
        "run_id": "straight",
        "ok": True,
        "objects": len(published.objects),
        "adapters": {"final": STEPS},
        "solved": published.final.solved,
        "of": 12,
        "problems": [],
    }


def test_verification_finds_one_changed_byte_and_a_manifest_that_fits_other_weights(
    published: Manifest, runs: Runs
) -> None:
    keys = RunKeys("straight")
    name = keys.adapter("final") + "adapter_model.safetensors"
    changed = bytearray(runs.get(name))
    changed[-1] ^= 0x40
    runs.s3.put_object(Bucket=BUCKET, Key=name, Body=bytes(changed))
    found = runs.verify("straight")
    assert (
        found.returncode == 65 and "adapters/final/adapter_model.safetensors" in json.loads(found.stdout)["problems"][0]
    )

    # The manifest is made to fit another adapter: only evaluating it again can tell.
    early = runs.get(keys.export(1, 2) + "adapter_model.safetensors")
    runs.s3.put_object(Bucket=BUCKET, Key=name, Body=early)
    digest = FileDigest(sha256=hashlib.sha256(early).hexdigest(), size=len(early))
    objects = published.objects | {name.removeprefix(keys.prefix): digest}
    fitted = published.model_copy(update={"objects": objects})
    runs.s3.put_object(Bucket=BUCKET, Key=keys.manifest, Body=fitted.to_json().encode())
    found = runs.verify("straight")
    assert found.returncode == 65 and "the rows differ" in json.loads(found.stdout)["problems"][0]
