"""``python -m training_job plan``: what a tired person reads, and the exit status that a script sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.contract import RunSpec
from tests.builders import spec_json
from training_job.plan import main, plan
from training_job.trainers.skyrl.memory import GIB, KNOWN, estimate, read_shape, shape_of

ARTICLE = Path(__file__).resolve().parents[2] / "examples/article.yaml"
QWEN3_VL_8B = {
    "text_config": {
        "hidden_size": 4_096, "num_hidden_layers": 36, "vocab_size": 151_936, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12_288,
    },
    "vision_config": {"depth": 27, "hidden_size": 1_152, "intermediate_size": 4_304},
    "tie_word_embeddings": False,
}  # fmt: skip


def told(path: Path, **given: Any) -> tuple[int, str]:
    lines: list[str] = []
    code = main(path, given.get("train_rows"), given.get("model"), lines.append)
    return code, "\n".join(lines)


def write(folder: Path, raw: dict[str, Any]) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_the_articles_run_is_checked_in_every_part_and_its_verdict_is_the_last_line() -> None:
    code, text = told(ARTICLE, model="qwen3-vl-8b")
    assert (code, text.splitlines()[-1]) == (0, "nothing speaks against this run")
    assert "50 of 64 eval items (78.12%) can be solved within 15 turns" in text
    assert "480 items, 20 steps an epoch, 20 epochs" in text
    assert '\n  trainer.resume_mode="latest"\n' in text
    assert "  NO" not in text
    assert "  ?" not in text, "everything can be known of it"


def test_each_problem_is_one_line_with_its_field_and_the_last_line_counts_them(tmp_path: Path) -> None:
    raw = spec_json(
        training={
            "train_batch_size": 32, "policy_mini_batch_size": 16, "gpu_memory_utilization": 0.2,
            "skyrl": {"overrides": {"trainer.ckpt_path": "/elsewhere"}},
        },
        model={"source": "hf://a/b@main", "lora": {"rank": 12, "exclude_modules": None}},
        target={"success": 0.95},
    )  # fmt: skip
    raw["task"] |= {"oracle": "training_job.tasks.mazes.oracle:solvable"}
    raw["topology"] = {"workers": {"instance_type": "ml.g6.12xlarge", "count": 3, "gpus": 2}}
    code, text = told(write(tmp_path, raw), model="qwen3-vl-8b")
    assert code == 65
    problems = [line for line in text.splitlines() if line.startswith("  NO")]
    fields = ["training.policy_mini_batch_size", "model.lora.rank", "model.lora.exclude_modules", "trainer.ckpt_path"]
    for said in (*fields, "the target asks for 95.00%", "lower training.micro_train_batch_size_per_gpu"):
        assert sum(said in line for line in problems) == 1, said
    assert text.splitlines()[-1].startswith(f"NO: {len(problems)} things speak against this run")


def test_what_cannot_be_known_here_is_said_to_be_unknown_and_not_to_be_well(tmp_path: Path) -> None:
    raw = spec_json(model={"source": "hf://a/b@main"})
    raw["task"] |= {"train": {"kind": "parquet", "uri": "s3://bucket/train.parquet"}, "oracle": "no.such:oracle"}
    code, text = told(write(tmp_path, raw))
    assert code == 0
    unknown = [line.split()[1] for line in text.splitlines() if line.startswith("  ?")]
    assert unknown == ["training", "ceiling", "GPU"]
    assert "no SkyRL command line yet" in text
    _, text = told(write(tmp_path, raw), train_rows=481)
    assert "481 items, 20 steps an epoch" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": "latest"}, "image: 'latest' is not a repository with the image's digest: name@sha256:"),
        ({"training": {"max_turn": 5}}, "training.max_turn: there is no such field; perhaps max_turns"),
        ({"model": {"source": "qwen"}}, "model.source: 'qwen' is not hf://owner/name@revision"),
        ({"training": {"temperature": 0}}, "training.temperature: Input should be greater than 0, not '0'"),
    ],
)
def test_a_spec_that_is_none_is_told_field_by_field_with_what_would_be_right(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    code, text = told(write(tmp_path, spec_json(**changes)))
    assert code == 65
    [line] = [one for one in text.splitlines()[1:] if one]
    assert line.strip().startswith(said)


@pytest.mark.parametrize("content", [None, "{a: [", "- a\n- b\n", "\x00"])
def test_a_file_that_is_no_spec_at_all_is_one_line(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    if content is not None:
        path.write_text(content)
    code, text = told(path)
    assert (code, len(text.splitlines())) == (65, 1)
    assert text.startswith("NO  ")


def test_the_estimate_agrees_with_what_is_known_of_eight_billion_parameters() -> None:
    """facts: a checkpoint of about 35 GB; it runs on 6 GPUs of 96 GB with 45% for the engines, and not on 24 GB."""
    spec = RunSpec.model_validate(yaml.safe_load(ARTICLE.read_text()))
    counted, known = shape_of(QWEN3_VL_8B), KNOWN["qwen3-vl-8b"]
    assert counted.parameters == pytest.approx(known.parameters, rel=0.03)
    assert (counted.layers, counted.hidden, counted.vocabulary, counted.keys) == (36, 4_096, 151_936, 1_024)
    one = estimate(spec, known)
    assert one.checkpoint * GIB == pytest.approx(35e9, rel=0.05)
    assert one.problem is None
    small = spec.model_copy(update={"topology": spec.topology.model_copy(update={"workers": _g6(spec)})})
    assert "lower training.micro_train_batch_size_per_gpu" in str(estimate(small, known).problem)
    starved = spec.training.model_copy(update={"gpu_memory_utilization": 0.2})
    assert "raise training.gpu_memory_utilization" in str(
        estimate(spec.model_copy(update={"training": starved}), known).problem
    )


def _g6(spec: RunSpec) -> Any:
    return spec.topology.workers.model_copy(update={"instance_type": "ml.g6.12xlarge"})


@pytest.mark.parametrize("content", ["{}", "[]", "not json", json.dumps({"hidden_size": "wide"})])
def test_a_model_of_an_unknown_kind_has_no_estimate(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert read_shape(tmp_path) is None
    code, text = told(ARTICLE, model=str(tmp_path))
    assert (code, len(text.splitlines())) == (65, 1)


def test_the_smallest_specs_plan_names_no_trainer_but_its_own() -> None:
    found = plan(RunSpec.model_validate(spec_json(training={"trainer": "local"})))
    assert not found.problems
    assert not [line for line in found.lines if "trainer." in line]
