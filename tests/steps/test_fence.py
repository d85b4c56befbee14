"""A fence that has to become stronger, step by step, and what is kept before it: over the real table and bucket."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from nightshift.adapters.threads import at_once
from nightshift.contract.layout import RunKeys
from nightshift.contract.redaction import without_secrets
from nightshift.core.errors import TransientError
from nightshift.core.observation import ClusterView, JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps import diagnostics
from nightshift.steps.diagnostics import HURRIED_SECONDS, save_diagnostics
from nightshift.steps.ending import teardown
from tests.builders import NOW, cluster
from tests.steps.test_run import lose_a_node
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

FOLDER = RunKeys("maze-1").diagnostics(1)
FILES = {"driver.log", "infra.log", "stacks.txt", "ray-state.json", "pods.json", "events.json", "nodes.json"}


def aged(view: ClusterView) -> ClusterView:
    born = NOW - timedelta(hours=1)
    return replace(view, created_at=born, pods=tuple(replace(p, created_at=born) for p in view.pods))


def fencing(world: World) -> None:
    """A run whose old job ignores every request to stop."""
    running(world)
    lose_a_node(world)
    world.look(Awaiting.ATTEMPT, "token-2")
    assert world.run().state is RunState.RECOVERING
    world.jobs.states["maze-1-a1"] = JobView(JobState.RUNNING)
    world.jobs.actors = 3
    world.clusters.current = aged(cluster("i-head", "i-w1", "i-w2", "i-new"))
    world.with_remaining(5.0)  # one observation a look


def told(world: World) -> list[str]:
    return [line.what for line in world.runs.audit_trail("maze-1", 50)]


def kept(world: World) -> dict[str, bytes]:
    listed = world.s3.list_objects_v2(Bucket=BUCKET, Prefix=FOLDER).get("Contents", [])
    return {
        o["Key"].removeprefix(FOLDER): world.s3.get_object(Bucket=BUCKET, Key=o["Key"])["Body"].read() for o in listed
    }


def test_a_fence_deletes_pods_then_makes_the_raycluster_anew_then_fails_and_never_skips_a_means(world: World) -> None:
    fencing(world)
    world.look(Awaiting.FENCE, "token-3")
    assert (world.run().fence_level, world.clusters.doomed, world.clusters.deleted) == (0, [], [])

    world.later(181)
    world.look(Awaiting.FENCE, "token-4")
    assert world.run().fence_level == 1
    assert [(len(names), force) for names, force in world.clusters.doomed] == [(4, False)]
    assert world.clusters.deleted == []

    world.later(301)
    created = len(world.clusters.created)
    world.look(Awaiting.FENCE, "token-5")
    assert world.run().fence_level == 2
    assert world.clusters.deleted == ["maze-1"]
    assert world.clusters.doomed[-1][1]
    assert len(world.clusters.created) == created + 1
    assert told(world).count("fence: pods deleted") == told(world).count("fence: RayCluster made anew") == 1

    world.clusters.current = aged(cluster())  # nothing helps
    world.later(301)
    reply = world.look(Awaiting.FENCE, "token-6")
    assert reply is not None
    assert reply.decision == "failed"
    assert "could not be fenced" in world.run().sentence


def test_a_fence_is_ready_as_soon_as_the_old_pods_are_gone_though_the_endpoint_is_still_away(world: World) -> None:
    fencing(world)
    world.jobs.states["maze-1-a1"] = JobView(JobState.UNREACHABLE, "connection refused")
    world.later(181)
    world.look(Awaiting.FENCE, "token-3")
    new = cluster(head_ready=False, ready_workers=0)
    pods = tuple(replace(p, created_at=world.now() + timedelta(seconds=2), ready=False, ip=None) for p in new.pods)
    world.clusters.current = replace(new, pods=pods)
    world.later(5)
    reply = world.look(Awaiting.FENCE, "token-4")
    assert reply is not None
    assert (reply.decision, world.run().state) == ("ready", RunState.PROVISIONING)


def test_a_look_that_dies_between_the_record_and_the_deed_is_followed_by_one_that_does_the_deed(world: World) -> None:
    fencing(world)
    world.later(181)
    honest = world.clusters.delete_pods

    def dies(*_: Any, **__: Any) -> int:
        raise TransientError("maze-1", "the Kubernetes API failed")

    world.clusters.delete_pods = dies  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        world.look(Awaiting.FENCE, "token-3")
    began = world.run().fence_level_at
    assert (world.run().fence_level, world.clusters.doomed) == (1, [])

    world.clusters.delete_pods = honest  # type: ignore[method-assign]
    world.later(10)
    world.look(Awaiting.FENCE, "token-4")
    assert len(world.clusters.doomed) == 1
    assert (world.run().fence_level, world.run().fence_level_at) == (1, began)


def test_a_run_that_ends_while_its_raycluster_is_made_anew_leaves_none_behind(world: World) -> None:
    fencing(world)
    world.runs.update(world.run(), fence_level=1, fence_level_at=world.now())
    world.later(301)
    create = world.clusters.create

    def ended_meanwhile(*args: Any) -> bool:
        world.runs.update(world.run(), verdict=RunState.FAILED, state=RunState.PUBLISHING)
        return create(*args)

    world.clusters.create = ended_meanwhile  # type: ignore[method-assign]
    reply = world.look(Awaiting.FENCE, "token-3")
    assert reply is not None
    assert not world.clusters.current.exists
    assert world.clusters.deleted == ["maze-1", "maze-1"]


def test_a_later_look_in_charge_keeps_an_older_one_from_beginning_a_level(world: World) -> None:
    fencing(world)
    world.later(181)
    view = world.jobs.view

    def overtaken(submission_id: str) -> JobView:
        world.runs.begin_look("maze-1", 1, world.now())
        return view(submission_id)

    world.jobs.view = overtaken  # type: ignore[method-assign]
    world.look(Awaiting.FENCE, "token-3")
    assert (world.run().fence_level, world.clusters.doomed) == (0, [])


def test_everything_that_can_be_had_is_kept_before_the_fence_and_is_left_alone_by_the_teardown(world: World) -> None:
    fencing(world)
    first = kept(world)
    assert set(first) == FILES
    assert first["driver.log"] == b"log of maze-1-a1"
    assert json.loads(first["nodes.json"])

    world.jobs.logs = lambda _: "a later log"  # type: ignore[method-assign]
    world.runs.update(world.run(), verdict=RunState.FAILED, state=RunState.PUBLISHING)
    teardown(world.ports, step("teardown"))
    assert kept(world) == first, "a manifest says by now what these files hold"
    assert not world.clusters.view(world.run().raycluster).exists


def test_a_part_that_cannot_be_had_says_why_costs_no_other_part_and_replaces_nothing_older(world: World) -> None:
    fencing(world)
    for name in FILES - {"driver.log"}:
        world.s3.delete_object(Bucket=BUCKET, Key=f"{FOLDER}{name}")

    def away(*_: Any) -> Any:
        raise TransientError("maze-1", "the Kubernetes API failed")

    world.clusters.event_records = away  # type: ignore[method-assign]
    world.jobs.stacks = away  # type: ignore[method-assign]
    world.jobs.logs = away  # type: ignore[method-assign]
    save_diagnostics(world.ports, world.run(), world.runs.attempts("maze-1")[-1])
    found = kept(world)
    assert set(found) == FILES
    assert "the Kubernetes API failed" in json.loads(found["events.json"])["missing"]
    assert found["stacks.txt"].startswith(b"missing: ")
    assert found["infra.log"] == b"raylet.err: quiet"
    assert found["driver.log"] == b"log of maze-1-a1", "kept from before the fence"


def test_a_slow_part_holds_a_recovery_up_for_the_hurried_seconds_and_breaks_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fencing(world)
    monkeypatch.setattr(diagnostics, "HURRIED_SECONDS", 0.3)
    ports = replace(world.ports, together=at_once, remaining=lambda: 50.0)
    let_go, over = threading.Event(), threading.Event()

    def slow(_: str) -> str:
        let_go.wait(60)
        over.set()
        return "late"

    world.jobs.infra_logs = slow  # type: ignore[method-assign,assignment]

    def breaks(*_: Any) -> Any:
        raise ClientError({"Error": {"Code": "SlowDown", "Message": "slow down"}}, "PutObject")

    world.clusters.pod_records = breaks  # type: ignore[method-assign]
    for name in ("infra.log", "pods.json"):
        world.s3.delete_object(Bucket=BUCKET, Key=f"{FOLDER}{name}")
    save_diagnostics(ports, world.run(), world.runs.attempts("maze-1")[-1], hurried=True)
    assert not over.is_set(), "it was not waited for"
    found = kept(world)
    assert found["infra.log"] == b"missing: it took longer than 1.0 s"
    assert "SlowDown" in json.loads(found["pods.json"])["missing"]
    assert HURRIED_SECONDS <= 3
    let_go.set()
    assert over.wait(60)
    time.sleep(0.3)
    assert kept(world) == found, "what comes too late is dropped: a manifest may say by now what these files hold"


@given(st.text(max_size=300))
def test_text_without_secrets_is_kept_as_it_is_or_shorter_by_what_is_hidden(text: str) -> None:
    once = without_secrets(text)
    assert without_secrets(once) == once


@pytest.mark.parametrize(
    "part",
    ["0f", "eyJ-", "eyJabcdefghijk.", "token ", "-----BEGIN ", "api_key_", "sk-", "bearer ", "secret" + " " * 50],
)
def test_a_log_of_one_long_line_is_read_through(part: str) -> None:
    """A pattern that scans the same text from many starts would need minutes for it, and the look that waits would die."""
    line = part * (64_000 // len(part))
    assert without_secrets(line + "\npassword=not-shown-here").endswith("password=[hidden]")


@pytest.mark.parametrize(
    "secret",
    [
        "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG",
        "key id AKIAIOSFODNN7EXAMPLE",
        "Authorization: Bearer abcdefghijklmnop.qrst",
        "HF_TOKEN: hf_abcdefghijklmnopqrstuvwx",
        '{"wandb_api_key": "0123456789abcdef"}',
    ],
)
def test_what_looks_like_a_credential_is_hidden_and_what_stands_beside_it_is_not(secret: str) -> None:
    said = without_secrets(f"step 12 loss 0.5 tokens_per_second=12345678 {secret} end")
    assert "[hidden]" in said
    assert "step 12 loss 0.5 tokens_per_second=12345678" in said
    assert said.endswith(" end")
    for part in ("wJalrXUtnFEMI", "AKIAIOSFODNN7", "abcdefghijklmnop", "0123456789abcdef"):
        assert part not in said
