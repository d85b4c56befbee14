"""A request becomes a spec, or a list that names every error by field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.events import FieldError
from nightshift.contract.spec import RunSpec, Training, batch_size_problems, spec_digest
from nightshift.core.admission import MAX_ERRORS, check_spec, known_ceiling, shown_run_id
from nightshift.core.capacity import GroupCapacity, HyperPodView, capacity_problems
from tests.builders import spec, spec_json
from training_job.tasks.mazes.oracle import solvable


def fields(raw: dict[str, Any]) -> set[str]:
    found = check_spec(raw)
    assert isinstance(found, list)
    assert all(e.problem for e in found)
    return {e.field for e in found}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run_id": "Not Valid"}, "run_id"),
        ({"run_id": "a" * 41}, "run_id"),
        ({"surprise": 1}, "surprise"),
        ({"training": {"learning_rte": 1}}, "training.learning_rte"),
        ({"training": {"train_batch_size": 32, "policy_mini_batch_size": 16}}, "training.policy_mini_batch_size"),
        ({"training": {"train_batch_size": 25}}, "training.policy_mini_batch_size"),
        ({"training": {"max_ckpts_to_keep": 1}}, "training.max_ckpts_to_keep"),
        ({"image": "registry/skyrl:latest"}, "image"),
        ({"target": {"success": 0.95}}, "target.success"),
        ({"version": 2}, "version"),
        ({"model": {"source": "https://elsewhere/model"}}, "model.source"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_an_error_is_named_by_its_field(changes: dict[str, Any], field: str) -> None:
    assert fields(spec_json(**changes)) == {field}


def test_all_errors_are_named_at_once() -> None:
    raw = spec_json(run_id="Not Valid", image="x", surprise=1)
    del raw["task"]["environment"]
    assert fields(raw) == {"run_id", "image", "surprise", "task.environment"}


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"skyrl": {"overrides": {f"trainer.nothing_{n}": 1 for n in range(60)}}}},
        {f"surprise_{n}": 1 for n in range(60)},
        {"task": spec_json()["task"] | {"config": {f"c{n}": {"api_key": "x" * 20} for n in range(60)}}, "pool": ""},
    ],
    ids=["the last checks", "the model's", "secrets"],
)
def test_of_many_errors_as_many_are_named_as_a_message_takes(changes: dict[str, Any]) -> None:
    assert len(fields(spec_json(**changes))) == MAX_ERRORS


TOKEN = "hf_" + "A1b2" * 8


@pytest.mark.parametrize("text", [TOKEN, "x" * 130 + " " + TOKEN + "x" * 300, "0a1b2c3d4e" * 4])
@pytest.mark.parametrize("key", ["trainer.algorithm.use_kl_loss", "trainer.algorithm.loss_reduction"])
def test_the_value_of_an_override_that_is_refused_is_not_repeated(key: str, text: str) -> None:
    found = check_spec(spec_json(training={"skyrl": {"overrides": {key: text}}}))
    assert isinstance(found, list) and f"training.skyrl.overrides.{key}" in {e.field for e in found}
    said = " ".join(e.problem for e in found)
    assert TOKEN[:12] not in said and "0a1b2c3d4e" not in said


def test_whoever_says_why_a_request_is_refused_says_no_secret() -> None:
    raw = spec_json()
    raw["task"]["code"] = {"kind": TOKEN}  # pydantic repeats it
    assert TOKEN not in str(check_spec(raw))
    assert FieldError(field="x", problem=f"{TOKEN} is none of them").problem == "[hidden] is none of them"


def test_a_target_that_an_oracle_can_reach_is_accepted() -> None:
    assert isinstance(check_spec(spec_json(target={"success": 0.95}, training={"max_turns": 20})), RunSpec)
    assert isinstance(check_spec(spec_json(target={"success": 0.78})), RunSpec)


@pytest.mark.parametrize(("turns", "solved"), [(12, 0), (13, 50), (15, 50), (16, 50), (17, 64), (20, 64)])
def test_the_ceiling_of_the_fixed_mazes_is_known(turns: int, solved: int) -> None:
    ceiling = known_ceiling(spec(training={"max_turns": turns}))
    assert ceiling is not None and (ceiling.solved, ceiling.of) == (solved, 64)


@pytest.mark.parametrize(
    ("config", "known"),
    [({"env_id": "maze_2d/easy", "recipe": "sft"}, True), ({"env_id": "maze_2d/hard"}, False), ({"size": 11}, False)],
)
def test_the_ceiling_is_known_for_the_easy_mazes_alone(config: dict[str, Any], known: bool) -> None:
    raw = spec_json()
    raw["task"]["config"] = config
    assert (known_ceiling(RunSpec.model_validate(raw)) is not None) == known


def test_no_ceiling_is_claimed_for_other_data() -> None:
    raw = spec_json()
    raw["task"]["eval"] = {"kind": "seeds", "start": 0, "stop": 65}
    assert known_ceiling(RunSpec.model_validate(raw)) is None


@pytest.mark.parametrize("turns", [12, 13, 16, 17])
def test_the_ceiling_is_what_the_tasks_own_oracle_finds(turns: int) -> None:
    found = sum(solvable({"seed": seed}, turns, {}) for seed in range(64))
    ceiling = known_ceiling(spec(training={"max_turns": turns}))
    assert ceiling is not None and ceiling.solved == found


@pytest.mark.parametrize(("prompts", "mini"), [(24, 12), (24, 24), (48, 24), (30, 15), (18, 18)])
def test_sizes_that_skyrl_accepts_on_six_gpus_are_accepted(prompts: int, mini: int) -> None:
    assert not batch_size_problems(Training(train_batch_size=prompts, policy_mini_batch_size=mini), 6)


@given(
    st.dictionaries(
        st.sampled_from(["run_id", "pool", "image", "task", "training", "x"]), st.from_type(object), max_size=4
    )
)
def test_no_request_crashes_the_check(raw: dict[str, Any]) -> None:
    assert isinstance(check_spec(raw), (RunSpec, list))
    assert len(shown_run_id(raw)) <= 40


def test_equal_requests_have_equal_digests_however_they_were_written() -> None:
    assert spec_digest(spec()) == spec_digest(spec(pool="default", training={"max_turns": 15}))
    assert spec_digest(spec()) != spec_digest(spec(training={"max_turns": 16}))


def hyperpod(status: str = "InService", workers: int = 3, target: int = 3) -> HyperPodView:
    groups = (GroupCapacity("head", "ml.r5d.16xlarge", 1, 1), GroupCapacity("gpu", "ml.g7e.12xlarge", workers, target))
    return HyperPodView("hp", status, groups)


def test_a_node_that_is_being_replaced_counts_by_its_groups_target() -> None:
    assert not capacity_problems(spec().topology, hyperpod(workers=2, target=3))


@pytest.mark.parametrize("view", [hyperpod(workers=2, target=2), hyperpod(status="Failed")])
def test_a_topology_that_can_never_be_placed_is_refused(view: HyperPodView) -> None:
    (problem,) = capacity_problems(spec().topology, view)
    assert "hp" in problem


@pytest.mark.parametrize(
    "source", ["/shared/../etc/passwd", "/shared/models/..", "s3://models/../others", "package://policies/../secrets"]
)
def test_a_model_that_leads_out_of_where_models_are_is_refused_and_a_name_with_two_dots_is_not(source: str) -> None:
    refused = check_spec(spec_json(model={"source": source}))
    assert not isinstance(refused, RunSpec)
    assert [(one.field, "go up" in one.problem) for one in refused] == [("model.source", True)]
    assert isinstance(check_spec(spec_json(model={"source": "/shared/models/a..b"})), RunSpec)
