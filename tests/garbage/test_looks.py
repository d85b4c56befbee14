"""Bad objects under the eyes of real looks and steps: named, believed never, and no reason to break."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from nightshift.adapters.artifacts import MAX_MANIFEST, S3Artifacts
from nightshift.contract.evals import EvalSet
from nightshift.contract.layout import RunKeys
from nightshift.contract.reading import MAX_DOCUMENT
from nightshift.core.causes import EndCause
from nightshift.core.errors import PermanentError, PublicationError
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import abandon, notify, release, teardown
from nightshift.steps.judge import judge
from nightshift.steps.publish import publish, verify
from nightshift.steps.requests import Fault
from tests.builders import NOW, export, outcome, progress, summary
from tests.garbage.conftest import lay
from tests.garbage.strategies import stored
from tests.steps.test_run import put_results
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")
PROGRESS, OUTCOME, SUMMARY, EXPORT = (
    KEYS.progress(1),
    KEYS.outcome(1),
    KEYS.eval_summary(1, 400, EvalSet.FIXED),
    KEYS.export_record(1, 400),
)
FAILED = JobView(JobState.FAILED, "Ray says that it failed")


def _with(document: Any, **changes: Any) -> str:
    return json.dumps(json.loads(document.to_json()) | changes)


BAD_REPORTS: dict[str, Callable[[Any], Any]] = {
    "garbage": lambda d: b"\x00\xff\xfe not JSON",
    "empty": lambda d: b"",
    "truncated": lambda d: d.to_json()[:-20],
    "a list": lambda d: f"[{d.to_json()}]",
    "huge": lambda d: d.to_json() + " " * MAX_DOCUMENT,
    "deep": lambda d: "[" * 50_000,
    "of another run": lambda d: _with(d, run_id="maze-2"),
    "of an older attempt": lambda d: _with(d, attempt=9),
    "of a newer version": lambda d: _with(d, version=2),
    "of an unknown phase or cause": lambda d: _with(d, phase="dreaming", cause="solar_flare"),
    "without a time zone": lambda d: _with(d, at="2026-11-30T03:00:00"),
    "from the future": lambda d: _with(d, at=(NOW + timedelta(days=90)).isoformat()),
    "beyond the run's last step": lambda d: _with(d, saved_step=401),
    "with a number that no table takes": lambda d: _with(d, step=10**60),
    "with an infinite number": lambda d: d.to_json().replace('"step": ', '"step": 1e999, "was": '),
}


@pytest.mark.parametrize("bad", BAD_REPORTS)
def test_a_bad_progress_is_named_and_as_good_as_missing(world: World, refuses: Callable[[str], None], bad: str) -> None:
    running(world)
    before = world.run()
    lay(world, PROGRESS, BAD_REPORTS[bad](progress(saved_step=40, step=44)))
    assert world.look(Awaiting.ATTEMPT, "token-2") is None, "the look naps: the job runs on"
    refuses(PROGRESS)
    after = world.run()
    assert (after.step, after.verified_step, after.eta_seconds) == (
        before.step,
        before.verified_step,
        before.eta_seconds,
    )
    assert after.state is RunState.RUNNING


def test_a_job_that_hangs_behind_a_bad_progress_is_found_by_its_log(world: World) -> None:
    running(world)
    lay(world, PROGRESS, b"garbage")
    for minute in range(10):
        assert world.look(Awaiting.ATTEMPT, f"token-{minute}") is None
        world.later(60)
    reply = world.look(Awaiting.ATTEMPT, "token-last")
    assert reply is not None and reply.decision == "recover"
    assert world.run().cause is EndCause.HUNG


def test_a_job_whose_log_goes_on_behind_a_bad_progress_is_left_alone(world: World) -> None:
    running(world)
    lay(world, PROGRESS, b"garbage")
    lines = iter(range(100))
    world.jobs.logs = lambda _: f"line {next(lines)}"  # type: ignore[method-assign]
    for minute in range(25):
        assert world.look(Awaiting.ATTEMPT, f"token-{minute}") is None
        world.later(60)
    assert world.run().state is RunState.RUNNING


@pytest.mark.parametrize("bad", BAD_REPORTS)
def test_a_bad_outcome_ends_no_job_and_gives_no_cause(world: World, refuses: Callable[[str], None], bad: str) -> None:
    running(world)
    lay(world, OUTCOME, BAD_REPORTS[bad](outcome()))
    assert world.look(Awaiting.ATTEMPT, "token-2") is None
    world.jobs.states["maze-1-a1"] = FAILED
    reply = world.look(Awaiting.ATTEMPT, "token-3")
    refuses(OUTCOME)
    assert reply is not None and reply.decision == "recover"
    assert world.run().cause is EndCause.WORKER_FAILED, "Ray's word, since the job's own cannot be believed"
    told = [line for line in world.runs.audit_trail("maze-1") if line.what == "not believed: attempts/1/outcome.json"]
    assert told and told[0].actor == "reader" and told[0].detail


BAD_EVIDENCE: dict[str, tuple[str, Any]] = {
    "garbage for an eval": (SUMMARY, b"\x80"),
    "an eval of another run": (SUMMARY, _with(summary(400, 62), run_id="maze-2")),
    "an eval of another attempt": (SUMMARY, _with(summary(400, 62), attempt=2)),
    "an eval of another step": (SUMMARY, _with(summary(390, 62))),
    "an eval of another set": (SUMMARY, _with(summary(400, 62), eval_set="holdout")),
    "an eval of a newer version": (SUMMARY, _with(summary(400, 62), version=2)),
    "an eval that is no number": (SUMMARY, summary(400, 62).to_json().replace('"low": ', '"low": NaN, "was": ')),
    "an eval with more solved than there are": (SUMMARY, _with(summary(400, 62), solved=65)),
    "garbage for an export": (EXPORT, b"{"),
    "an export of another run": (EXPORT, _with(export(400), run_id="maze-2")),
    "an export of another attempt": (EXPORT, _with(export(400), attempt=2)),
    "an export of another step": (EXPORT, _with(export(380))),
    "an export without files": (EXPORT, _with(export(400), files={})),
    "an export whose files are not there": (EXPORT, export(400).to_json().replace("adapter_config", "elsewhere")),
    "an export that leads out of its folder": (
        EXPORT,
        export(400).to_json().replace("adapter_", "../step-400/adapter_"),
    ),
    "an export of a huge record": (EXPORT, export(400).to_json() + " " * MAX_DOCUMENT),
}


@pytest.mark.parametrize("bad", BAD_EVIDENCE)
def test_bad_evidence_is_named_and_makes_no_success(world: World, refuses: Callable[[str], None], bad: str) -> None:
    running(world)
    put_results(world, 1, {400: 62})
    key, body = BAD_EVIDENCE[bad]
    lay(world, key, body)
    world.jobs.states["maze-1-a1"] = JobView(JobState.SUCCEEDED)
    world.put(OUTCOME, outcome())
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    refuses(key)
    assert reply is not None and reply.decision == "recover"
    assert world.run().cause is EndCause.EVIDENCE_MISSING
    trail = [line.what for line in world.runs.audit_trail("maze-1")]
    assert f"not believed: {key.removeprefix(KEYS.prefix)}" in trail


def test_the_same_evidence_untouched_is_a_success(world: World) -> None:
    running(world)
    put_results(world, 1, {400: 62})
    world.jobs.states["maze-1-a1"] = JobView(JobState.SUCCEEDED)
    world.put(OUTCOME, outcome())
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "succeeded"
    assert world.ports.artifacts.not_believed() == []


@pytest.mark.parametrize("key", [PROGRESS, OUTCOME, SUMMARY, EXPORT])
def test_no_bytes_at_a_key_break_a_look(world: World, key: str) -> None:
    """Whatever it decides, it decides: a look that raises is repeated, and would break again each time."""
    running(world)
    put_results(world, 1, {400: 62})
    spec, valid = world.ports.artifacts.spec("maze-1"), {
        PROGRESS: progress(),
        OUTCOME: outcome(evals=[summary(400, 62)], final_export=export(400)),
        SUMMARY: summary(400, 62),
        EXPORT: export(400),
    }[key]  # fmt: skip
    world.jobs.states["maze-1-a1"] = FAILED if key in (SUMMARY, EXPORT) else JobView(JobState.RUNNING)

    @settings(max_examples=15, deadline=None)
    @given(stored(json.loads(valid.to_json())))
    def judged(body: bytes) -> None:
        lay(world, key, body)
        found = judge(world.ports, world.run(), spec, Awaiting.ATTEMPT)
        assert found.run.verified_step <= found.run.total_steps
        assert found.attempt == world.runs.attempts("maze-1")[-1]

    judged()


BAD_SPECS: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda whole: b"\xff\x00",
    "truncated": lambda whole: whole[:100],
    "huge": lambda whole: whole + b" " * MAX_DOCUMENT,
    "of another run": lambda whole: whole.replace(b"maze-1", b"maze-2"),
    "of a newer version": lambda whole: whole.replace(b'"version": 1', b'"version": 2'),
    "with a field that is unknown here": lambda whole: whole.replace(b'"version": 1', b'"version": 1, "mood": "good"'),
}


@pytest.mark.parametrize("bad", BAD_SPECS)
def test_a_spec_that_cannot_be_used_ends_its_run_by_name_and_with_a_message(world: World, bad: str) -> None:
    running(world)
    whole = world.s3.get_object(Bucket=BUCKET, Key=KEYS.spec)["Body"].read()
    lay(world, KEYS.spec, BAD_SPECS[bad](whole))
    with pytest.raises(
        PermanentError, match=r"run maze-1: s3://artifacts/runs/maze-1/spec\.json cannot be used: it"
    ) as end:
        world.look(Awaiting.ATTEMPT, "token-2")
    if bad in ("of a newer version", "with a field that is unknown here"):
        assert "newer" in str(end.value)
    fault = Fault.model_validate({"Error": "PermanentError", "Cause": json.dumps({"errorMessage": str(end.value)})})
    abandon(world.ports, step("abandon", error=fault))
    teardown(world.ports, step("teardown"))
    release(world.ports, step("release"))
    notify(world.ports, step("notify"))
    assert world.run().state is RunState.FAILED and "spec.json cannot be used" in world.run().sentence
    assert world.stages.events[-1].key == "final" and "spec.json" in world.stages.events[-1].sentence
    assert world.runs.lease_holder("default") is None


@pytest.mark.parametrize("body", [b"\xff", b"{}", b'{"version": 2}', b"[]"])
def test_a_manifest_that_cannot_be_read_back_is_no_publication(world: World, body: bytes) -> None:
    running(world)
    put_results(world, 1, {400: 62})
    world.jobs.states["maze-1-a1"] = JobView(JobState.SUCCEEDED)
    world.look(Awaiting.ATTEMPT, "token-2")
    publish(world.ports, step("publish"))
    lay(world, KEYS.manifest, body)
    with pytest.raises(PublicationError, match=r"runs/maze-1/manifest\.json cannot be used: it"):
        verify(world.ports, step("verify"))
    assert not world.run().published


class Huge:
    """An S3 client with one huge object, whose body is not to be read."""

    def __init__(self, size: int) -> None:
        self.size, self.closed = size, False

    def get_object(self, **_: Any) -> dict[str, Any]:
        return {"ContentLength": self.size, "Body": self}

    def read(self, *_: Any) -> bytes:
        raise AssertionError("a huge object is read")

    def close(self) -> None:
        self.closed = True


def test_of_a_huge_object_nothing_is_read() -> None:
    for client, read in (
        (Huge(MAX_DOCUMENT + 1), lambda a: a.progress("maze-1", 1)),
        (Huge(MAX_MANIFEST + 1), lambda a: a.manifest("maze-1")),
    ):
        artifacts = S3Artifacts(client, BUCKET)
        assert read(artifacts) is None and client.closed
        (noted,) = artifacts.not_believed()
        assert f"{client.size} bytes are more than" in noted.why
