"""The story of one run through the death of a node, told once on the real stack and then questioned from outside."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from local.kube.hyperpod import STRANGER
from local.story.history import shift_histories
from local.story.summary import MEMORY_MIB, RUNNING_SECONDS, broken_claims
from nightshift.contract import EvalSet, EvalSummary, Outcome, RunKeys
from tests.story.support import Played, items


def published(played: Played) -> dict[str, bytes]:
    """Key below the run's prefix -> bytes, as the demo left them in its out folder."""
    root = played.out / "bucket" / played.prefix
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_run_is_published_verified_and_told_as_promised(played: Played) -> None:
    assert broken_claims(played.told.manifest, played.told.verified) == []
    baseline, final = played.told.manifest.baseline, played.told.manifest.final
    assert baseline is not None and (baseline.solved, baseline.of) == (28, 64)
    assert final is not None and final.of == 64 and final.solved >= 61
    assert final.step == played.request.total_steps


def test_the_second_attempt_went_on_exactly_where_the_first_had_saved(played: Played) -> None:
    first, second = played.told.manifest.attempts
    keys = RunKeys(played.request.run_id)
    outcome = Outcome.from_json(played.stack.account.read(keys.outcome(2)) or b"")
    assert first.last_saved_step >= 0.4 * played.request.total_steps
    assert first.last_saved_step < played.request.total_steps, "the node died in mid-run"
    assert outcome.guard is not None and outcome.guard.floor == first.last_saved_step
    assert outcome.resumed_step == second.resumed_step == first.last_saved_step
    assert outcome.guard.quarantined == [], "nothing was wrong with the checkpoint, so nothing was moved aside"


def test_the_recovery_was_quick(played: Played) -> None:
    """Twice the demo's bound, for tests share the computer with whatever else runs; the demo holds the bound itself."""
    recovery = played.told.recovery
    assert recovery.to_running is not None and 0 < recovery.to_running <= 2 * RUNNING_SECONDS
    assert recovery.to_first_step is not None and recovery.to_first_step > recovery.to_running


def test_one_recovery_followed_from_all_the_events_about_one_node(played: Played) -> None:
    attempts = items(played.stack, played.request.run_id, "ATTEMPT#")
    assert [int(one["n"]) for one in attempts] == [1, 2], "duplicates caused no third attempt"
    assert attempts[0]["node"] == played.told.killed
    (run,) = (one for one in items(played.stack, played.request.run_id, "RUN") if one["sk"] == "RUN")
    assert run["state"] == "succeeded"
    assert int(run["recoveries_without_progress"]) <= 1


def test_the_stranger_was_no_signal_to_this_run(played: Played) -> None:
    signals = items(played.stack, played.request.run_id, "SIGNAL#")
    assert played.told.killed in {one.get("instance_id") for one in signals}
    assert STRANGER not in {one.get("instance_id") for one in signals}
    assert STRANGER not in json.dumps(items(played.stack, played.request.run_id, "AUDIT#"), default=str)


def test_the_audit_trail_names_the_signal_behind_the_recovery(played: Played) -> None:
    first = played.told.manifest.attempts[0]
    assert first.signal, "the decision to recover was made because of a signal"
    by_timer = first.signal == "timer"  # only where the attempt's long nap happened to end in the same second
    assert (by_timer and played.told.polls.polls) or "outcome" in first.signal or "hyperpod" in first.signal
    assert f"<- {first.signal}" in played.terminal


def test_every_object_is_in_the_manifest_with_its_digest_and_the_manifest_is_the_last(played: Played) -> None:
    objects, listed = published(played), played.told.manifest.objects
    assert set(objects) - set(listed) == {"manifest.json"}
    assert set(listed) - set(objects) == set()
    for key, digest in listed.items():
        assert (hashlib.sha256(objects[key]).hexdigest(), len(objects[key])) == (digest.sha256, digest.size), key
    answer = played.stack.account.client("s3").list_objects_v2(Bucket=played.stack.config.bucket, Prefix=played.prefix)
    newest = max(item["LastModified"] for item in answer["Contents"])
    (manifest,) = (item for item in answer["Contents"] if item["Key"].endswith("manifest.json"))
    assert manifest["LastModified"] == newest


def test_what_was_promised_to_be_published_is_there(played: Played) -> None:
    objects = published(played)
    needed = {"report.html", "curve.png", "provenance.json", "spec.json"}
    needed |= {f"adapters/{name}/adapter_model.safetensors" for name in ("best", "final")}
    needed |= {f"adapters/{name}/adapter_config.json" for name in ("best", "final")}
    needed |= {f"adapters/{name}/README.md" for name in ("best", "final")}
    assert needed - set(objects) == set()
    assert objects["curve.png"].startswith(b"\x89PNG")
    assert objects["adapters/final/adapter_model.safetensors"]


def test_the_published_rows_add_up_to_the_published_summaries(played: Played) -> None:
    objects = published(played)
    summaries = [
        (key, EvalSummary.from_json(body))
        for key, body in objects.items()
        if key.startswith("eval/") and key.endswith(".json")
    ]
    assert {one.eval_set for _, one in summaries} == {EvalSet.FIXED, EvalSet.HOLDOUT}
    for key, one in summaries:
        rows = [json.loads(line) for line in objects[key.removesuffix(".json") + ".jsonl"].splitlines()]
        assert (sum(row["success"] for row in rows), len(rows)) == (one.solved, one.of), key


def test_every_execution_ended_well_and_only_one_parent_was_ever_started(played: Played) -> None:
    account, outputs = played.stack.account, played.stack.outputs
    parents = account.executions(outputs["TrainingRunArn"])
    mine = [one for one in parents if one["name"].startswith(f"{played.request.run_id}-r")]
    assert [(one["name"], one["status"]) for one in mine] == [(f"{played.request.run_id}-r1", "SUCCEEDED")]
    shifts = [one for one in account.executions(outputs["ShiftArn"]) if one["name"].startswith(played.request.run_id)]
    assert {one["status"] for one in shifts} == {"SUCCEEDED"}


def test_a_poll_that_found_nothing_costs_six_events(played: Played) -> None:
    shifts = shift_histories(played.stack.account, played.stack.outputs["ShiftArn"])
    assert {one.awaiting for one in shifts} >= {"lease", "cluster", "attempt", "fence"}
    assert {poll for one in shifts for poll in one.timeout_polls} <= {6}
    assert played.told.polls.looks >= len(shifts) - 1


def test_slack_heard_each_stage_once(played: Played) -> None:
    about = [one.headline for one in played.stack.slack if one.headline.startswith(f"{played.request.run_id} ")]
    said = Counter(line.removeprefix(f"{played.request.run_id} ").partition(":")[0] for line in about)
    # Looks are a minute apart, and this whole run takes little more: both are told where a look saw them before the end.
    for seen in ("before training", "reached its target"):
        assert said.pop(seen, 1) == 1
    once = ["started", "is recovering", "is training again", "finished"]
    assert said == dict.fromkeys(once, 1)
    for text in ("28 of 64", "Attempt 1", "Attempt 2", "GPU-hours", played.told.killed):
        assert text in played.told.slack_text


def test_nothing_of_the_cluster_is_left_and_the_lease_is_free(played: Played) -> None:
    assert played.stack.hyperpod.pods() == []
    assert [node for node in played.stack.hyperpod.nodes() if node["instance_id"] == played.told.killed] == []
    ray = [line for line in played.stack.processes if any(name in line for name in ("raylet", "gcs_server", "ray::"))]
    assert ray == []


def test_the_whole_stack_stayed_within_its_memory(played: Played) -> None:
    assert played.stack.memory.samples > 5
    assert 200 < played.stack.memory.peak_mib <= MEMORY_MIB


def test_lambda_processes_hold_only_the_functions_own_requirements(played: Played) -> None:
    python = played.stack.config.functions_python
    (site,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    forbidden = {"torch", "moto", "transformers"}
    assert {path.name for path in site.iterdir()} & forbidden == set()
    commands = [Path(f"/proc/{line.split()[0]}/cmdline") for line in played.stack.processes]
    running = [path.read_bytes().split(b"\0")[0].decode() for path in commands if path.exists()]
    assert str(python) in running, "warm Lambda processes run in that environment"


@pytest.mark.parametrize("number", [1, 2])
def test_progress_of_every_attempt_is_kept(played: Played, number: int) -> None:
    document = json.loads(published(played)[f"attempts/{number}/progress.json"])
    assert document["attempt"] == number
    assert document["saved_step"] == played.told.manifest.attempts[number - 1].last_saved_step
