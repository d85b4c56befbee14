"""Incidents of success: what counts is evidence in the bucket, whatever is said about the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nightshift.contract.job import OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest
from nightshift.core.causes import EndCause
from nightshift.core.observation import ClusterView, JobState, JobView
from nightshift.core.run import Awaiting
from nightshift.steps.publish import publish, verify
from tests.builders import export, outcome
from tests.incidents.table import comes_out_right, must_not
from tests.steps.test_run import put_results, recovered
from tests.steps.test_signals import running
from tests.steps.world import World, step
from training_job.adapters import ADAPTER_WEIGHTS, check_export
from training_job.errors import CheckpointUnusable

KEYS = RunKeys("maze-1")
NOT_REACHED = JobView(JobState.UNREACHABLE, "connection refused")
SUPERVISOR_DIED = JobView(JobState.FAILED, "JOB_SUPERVISOR_ACTOR_DIED")


def decided(world: World, token: str = "token-2") -> str | None:
    reply = world.look(Awaiting.ATTEMPT, token)
    return None if reply is None else reply.decision


def says(world: World, job: JobView, attempt: int = 1) -> None:
    world.later(60)
    world.jobs.states[f"maze-1-a{attempt}"] = job


@comes_out_right(1)
def test_an_unreachable_endpoint_and_a_lost_cluster_do_not_hide_a_success(world: World) -> None:
    running(world)
    put_results(world, 1, {400: 62})
    says(world, NOT_REACHED)
    world.clusters.current = ClusterView(exists=False)
    assert decided(world) == "succeeded"
    assert world.run().cause is EndCause.FINISHED
    assert world.jobs.submits == ["maze-1-a1"], "the job is not run again"


@must_not(1)
def test_an_outage_must_not_make_a_success_of_a_job_that_may_be_writing_still(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 400: 62})
    says(world, NOT_REACHED)
    assert decided(world) is None


@must_not(1)
def test_an_outage_must_not_make_a_success_of_half_the_evidence(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 380: 60})
    says(world, NOT_REACHED)
    world.clusters.current = ClusterView(exists=False)
    assert decided(world) == "recover"
    assert world.run().cause is EndCause.HEAD_LOST


@comes_out_right(2)
def test_a_job_that_ray_calls_failed_after_a_head_swap_succeeded_where_its_final_step_is_there(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 400: 62})
    says(world, SUPERVISOR_DIED)
    assert decided(world) == "succeeded"


@must_not(2)
def test_a_failed_job_must_not_succeed_by_what_an_older_attempt_left(world: World) -> None:
    recovered(world)
    put_results(world, 1, {400: 62})
    says(world, SUPERVISOR_DIED, attempt=2)
    assert decided(world) == "recover"
    assert world.run().cause is EndCause.WORKER_FAILED


@comes_out_right(11)
def test_a_job_that_says_succeeded_at_step_40_of_200_has_not_finished(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 40: 50})
    says(world, JobView(JobState.SUCCEEDED))
    assert decided(world) == "recover"
    assert world.run().cause is EndCause.EVIDENCE_MISSING


@comes_out_right(11)
def test_a_job_that_names_a_target_that_nobody_asked_for_has_not_finished(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 40: 50})
    world.put(KEYS.outcome(1), outcome(OutcomeCause.TARGET_REACHED, step=40, saved_step=40))
    says(world, JobView(JobState.SUCCEEDED))
    assert decided(world) == "recover"
    assert world.run().cause is EndCause.EVIDENCE_MISSING


@must_not(11)
def test_a_run_that_may_stop_at_its_target_must_not_be_sent_on_to_the_last_step(world: World) -> None:
    asked = {"target": {"success": 0.7, "stop": True}}
    running(world, **asked)
    put_results(world, 1, {0: 28, 40: 50})
    world.put(KEYS.outcome(1), outcome(OutcomeCause.TARGET_REACHED, step=40, saved_step=40))
    says(world, JobView(JobState.SUCCEEDED))
    assert decided(world) == "succeeded"


def adapter(folder: Path, tensors: dict[str, Any]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    return folder


def pair(layer: str, b: float, name: str = "") -> dict[str, Any]:
    key = f"base_model.model.{layer}"
    return {f"{key}.lora_A{name}.weight": torch.ones(2, 4), f"{key}.lora_B{name}.weight": torch.full((4, 2), b)}


UNLOADABLE = {
    "an adapter's name in the keys": pair("q", 1.0, ".default"),
    "no tensors": {},
    "half a pair": {"base_model.model.q.lora_A.weight": torch.ones(2, 4)},
    "the other half": pair("q", 1.0) | {"base_model.model.k.lora_B.weight": torch.ones(4, 2)},
    "values that are no numbers": pair("q", float("nan")),
}


@comes_out_right(16)
def test_an_adapter_that_nothing_can_load_is_refused_and_one_of_zeros_is_no_success(
    world: World, tmp_path: Path
) -> None:
    for name, tensors in UNLOADABLE.items():
        with pytest.raises(CheckpointUnusable, match="cannot be published"):
            check_export(adapter(tmp_path / name.replace(" ", "-"), tensors))
    nonzero, total = check_export(adapter(tmp_path / "zeros", pair("q", 0.0) | pair("k", 0.0)))
    assert (nonzero, total) == (0, 2)

    running(world)
    put_results(world, 1, {0: 28, 20: 50, 400: 62})
    for at in (20, 400):
        zeros = {"lora_b_nonzero": nonzero, "lora_b_total": total}
        files = next(e.files for e in world.ports.artifacts.exports("maze-1") if e.step == at)
        world.put(KEYS.export_record(1, at), export(at, files=files, **zeros))
    world.put(KEYS.outcome(1), outcome(OutcomeCause.CODE_ERROR, step=0, exit_code=70))
    assert decided(world) == "failed"
    assert published(world).adapters == {}


@must_not(16)
def test_a_layer_of_zeros_must_not_cost_a_good_adapter_nor_an_early_empty_one_the_run(
    world: World, tmp_path: Path
) -> None:
    assert check_export(adapter(tmp_path / "mixed", pair("q", 0.0) | pair("k", 1.0))) == (1, 2)

    running(world)
    put_results(world, 1, {0: 28, 20: 64, 40: 50, 400: 62})
    early = next(e for e in world.ports.artifacts.exports("maze-1") if e.step == 20)
    world.put(KEYS.export_record(1, 20), early.model_copy(update={"lora_b_nonzero": 0}))
    late = next(e for e in world.ports.artifacts.exports("maze-1") if e.step == 400)
    world.put(KEYS.export_record(1, 400), late.model_copy(update={"lora_b_nonzero": 1, "lora_b_total": 2}))
    says(world, JobView(JobState.SUCCEEDED))
    assert decided(world) == "succeeded"
    assert published(world).adapters == {"best": 400, "final": 400}, "the best eval's adapter holds nothing"


def published(world: World) -> Manifest:
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    body = world.ports.artifacts.manifest("maze-1")
    assert body is not None
    return Manifest.from_json(body)
