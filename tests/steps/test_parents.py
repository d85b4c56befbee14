"""A run that begins from another run's weights: which ones, who may, and what does not fit."""

from __future__ import annotations

import hashlib
from typing import Any

from cli.view import text
from nightshift.contract.job import FileDigest
from nightshift.contract.layout import RunKeys
from nightshift.contract.lineage import ADAPTER_FILES, Ancestor, Lineage
from nightshift.contract.publication import Manifest, Provenance
from nightshift.core.run import Awaiting
from nightshift.steps.intake import Deployment, Intake, request_run
from nightshift.steps.plan import plan_run
from nightshift.steps.publish import publish, verify
from nightshift.steps.view import view_run
from tests.builders import export, progress, spec_json
from tests.steps.test_run import finish_attempt, put_results, recovered
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

PARENT, CHILD = RunKeys("maze-1"), RunKeys("maze-2")
ANN, BOB, OPERATOR = (f"arn:aws:iam::123456789012:user/{name}" for name in ("ann", "bob", "operator"))


def published(world: World, **asked: Any) -> None:
    """maze-1 succeeded: 28 of 64 at step 0, 50 at step 40 and 62, its best, at step 400."""
    running(world, **asked)
    put_results(world, 1, {0: 28})
    finish_attempt(world, attempt=1)
    assert (ended := world.look(Awaiting.ATTEMPT, "token-9")) is not None and ended.decision == "succeeded"
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))


def child(
    world: World, parent: str = "maze-1@40", owner: str = "team", run_id: str = "maze-2", **changes: Any
) -> Intake:
    deployment = Deployment("hp", "ns", operators=(OPERATOR,))
    return request_run(world.ports, deployment, spec_json(run_id=run_id, parent=parent, **changes), owner)


def why(intake: Intake) -> str:
    assert intake.run is None and [error.field for error in intake.errors] == ["parent"]
    return intake.errors[0].problem


def lineage(world: World, keys: RunKeys = CHILD) -> Lineage:
    return Lineage.from_json(world.s3.get_object(Bucket=BUCKET, Key=keys.parent)["Body"].read())


def test_a_parent_is_resolved_to_one_step_of_verified_weights_with_their_digests(world: World) -> None:
    published(world)
    promised = {e.step: e.files for e in world.ports.artifacts.exports("maze-1")}
    for asked, at, solved in (("40", 40, 50), ("best", 400, 62), ("final", 400, 62), ("latest", 400, 62)):
        name = f"maze-{asked}"
        begun = child(world, f"maze-1@{asked}", run_id=name)
        assert begun.created and begun.run is not None and begun.run.parent is not None
        found = lineage(world, RunKeys(name))
        assert found == begun.run.parent == world.run(name).parent
        assert (found.run_id, found.parent, found.asked) == (name, "maze-1", f"maze-1@{asked}")
        assert (found.step, found.attempt, found.solved, found.of) == (at, 1, solved, 64)
        assert found.spec_sha256 == world.run("maze-1").spec_sha256
        assert found.files == {one: promised[at][one] for one in ADAPTER_FILES}
        trail = world.runs.audit_trail(name, 9)
        assert any(f"begins from maze-1 at step {at}" in line.detail for line in trail)


def test_what_a_child_was_resolved_to_stays_whatever_becomes_of_the_parent(world: World) -> None:
    published(world)
    first = child(world, "maze-1@latest").run
    assert first is not None
    for key in (CHILD.parent, CHILD.spec, PARENT.export_record(1, 400), PARENT.spec):
        world.s3.delete_object(Bucket=BUCKET, Key=key)
    again = child(world, "maze-1@latest", owner="somebody else")
    assert again.run is not None and not again.created and again.run.parent == first.parent
    assert lineage(world) == first.parent, "an intake that died half-way is finished by the next identical request"
    assert child(world, "maze-1@40").conflict, "another parent is another request"


def test_a_grandchild_names_the_whole_chain_and_everything_that_is_published_names_it_too(world: World) -> None:
    world.ask(run_id="maze-0")
    oldest, files = RunKeys("maze-0"), dict[str, FileDigest]()
    for name in ADAPTER_FILES:
        world.s3.put_object(Bucket=BUCKET, Key=f"{oldest.export(1, 20)}{name}", Body=b"weights")
        files[name] = FileDigest(sha256=hashlib.sha256(b"weights").hexdigest(), size=7)
    world.put(oldest.export_record(1, 20), export(20, run_id="maze-0", files=files))
    published(world, parent="maze-0@20")

    manifest = Manifest.from_json(world.s3.get_object(Bucket=BUCKET, Key=PARENT.manifest)["Body"].read())
    made_from = Provenance.from_json(world.s3.get_object(Bucket=BUCKET, Key=PARENT.provenance)["Body"].read())
    assert manifest.parent == made_from.parent == lineage(world, PARENT)
    assert "parent.json" in manifest.objects
    for key in (PARENT.report, f"{PARENT.adapter('best')}README.md"):
        assert "maze-0 at step 20" in world.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode(), key

    assert child(world, "maze-1@best").created
    chain = lineage(world).chain
    assert chain == (Ancestor(run_id="maze-1", step=400), Ancestor(run_id="maze-0", step=20))
    shown = view_run(world.ports, "maze-2", BUCKET)
    assert shown is not None and shown.parent is not None and shown.parent.chain == chain
    line = "begins from maze-1 at step 400 (maze-1@best, solved 62 of 64), which began from maze-0 at step 20"
    assert line in text(shown).splitlines()


def test_while_the_parent_runs_only_what_it_has_verified_counts(world: World) -> None:
    recovered(world)  # attempt 1 exported step 20; attempt 2 went on from there
    put_results(world, 1, {40: 50})
    assert "not published, so it has no best adapter" in why(child(world, "maze-1@best"))
    assert "no verified weights of step 40; it has those of 20" in why(child(world, "maze-1@40")), (
        "it was trained again"
    )
    begun = child(world, "maze-1@latest").run
    assert begun is not None and begun.parent is not None
    assert (begun.parent.step, begun.parent.solved) == (20, 40)
    assert child(world, "maze-1@20", run_id="maze-3").created


def test_a_step_that_only_a_checkpoint_has_is_begun_from_without_a_digest(world: World) -> None:
    running(world)
    world.put(PARENT.progress(1), progress(step=21, saved_step=20))
    world.look(Awaiting.ATTEMPT, "token-2")
    assert world.run().verified_step == 20
    begun = child(world, "maze-1@20").run
    assert begun is not None and begun.parent is not None
    assert (begun.parent.attempt, begun.parent.files) == (None, {})


def test_what_cannot_be_begun_from_is_refused_by_its_field_and_planned_as_little(world: World) -> None:
    published(world)
    world.ask(run_id="maze-3")
    small = {"source": "package://training_job/models/maze_sft", "lora": {"rank": 8, "alpha": 16}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parent": "maze-9@20"}, "there is no run maze-9"),
        ({"parent": "maze-2@20"}, "a run is not its own parent"),
        ({"parent": "maze-1@41"}, "it has those of 40, 400"),
        ({"parent": "maze-3@latest"}, "neither exported nor saved anything yet"),
        ({"model": {"source": "hf://owner/other@main"}}, "an adapter fits one base model"),
        ({"model": small}, "rank 32 there and 8 here, alpha 32 there and 16 here"),
    ]
    for changes, told in cases:
        refused = child(world, **changes)
        assert told in why(refused)
        assert world.runs.get("maze-2") is None
        wanted = spec_json(**{"run_id": "maze-2", "parent": "maze-1@40", **changes})
        planned = plan_run(world.ports, world.runs, wanted, "team")
        assert planned.plan is None and list(planned.errors) == list(refused.errors)


def test_another_task_and_another_topology_are_no_reason_to_refuse(world: World) -> None:
    published(world)
    task = {**spec_json()["task"], "eval": {"kind": "seeds", "start": 900, "stop": 964}}
    workers = {"instance_type": "ml.g7e.12xlarge", "count": 2, "gpus": 2}
    begun = child(world, task=task, topology={"workers": workers}, training={"micro_train_batch_size_per_gpu": 2})
    assert begun.created, begun.errors
    planned = plan_run(world.ports, world.runs, spec_json(run_id="maze-4", parent="maze-1@best"), "team").plan
    assert planned is not None and planned.parent is not None and planned.parent.step == 400


def test_an_adapter_that_has_changed_nothing_is_no_parent(world: World) -> None:
    running(world)
    put_results(world, 1, {20: 28})
    there = next(iter(world.ports.artifacts.exports("maze-1")))
    world.put(PARENT.export_record(1, 20), there.model_copy(update={"lora_b_nonzero": 0}))
    assert "it is the base model" in why(child(world, "maze-1@20"))


def test_an_unpublished_run_is_its_owners_and_the_operators_and_a_published_one_everybodys(world: World) -> None:
    running(world, owner=ANN)
    put_results(world, 1, {0: 28, 20: 40})
    assert "belongs to somebody else" in why(child(world, "maze-1@20", owner=BOB))
    assert child(world, "maze-1@20", owner=ANN).created
    assert child(world, "maze-1@20", owner=OPERATOR, run_id="maze-3").created
    finish_attempt(world, attempt=1)
    world.look(Awaiting.ATTEMPT, "token-9")
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    assert child(world, "maze-1@20", owner=BOB, run_id="maze-4").created
