"""The three forms of a policy agree, and the shipped checkpoint is what it is said to be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from nightshift.contract import SeedData
from tests.job.support import REPOSITORY
from training_job.plug import SeedItems, TaskPlan
from training_job.policies import UnknownModel, load_player, read_config
from training_job.policies.pretrained import attach_lora, load_policy, lora_weights
from training_job.trainers.local.batches import eval_episodes
from training_job.trainers.local.workers import LocalPool, WorkerPlan

MAZE = REPOSITORY / "training_job" / "models" / "maze_sft"
TEXT = REPOSITORY / "tests" / "fixtures" / "text_task" / "echo_task" / "model"


def _observations(folder: Path) -> list[bytes]:
    rng = np.random.default_rng(0)
    if folder == MAZE:
        return [rng.integers(0, 256, 27 * 27 * 3, dtype=np.uint8).tobytes() for _ in range(20)]
    return [rng.integers(0, 3, 64).astype(np.float32).tobytes() for _ in range(20)]


@pytest.mark.parametrize("folder", [MAZE, TEXT], ids=["maze", "text"])
def test_the_player_and_the_adapted_transformers_model_give_the_same_logits(folder: Path) -> None:
    player, policy = load_player(folder), attach_lora(load_policy(folder), rank=4, alpha=12, seed=3)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if "lora_B" in name:
                value.normal_(generator=torch.Generator().manual_seed(1))
    lora = {layer: (a.numpy(), b.numpy()) for layer, (a, b) in lora_weights(policy).items()}
    inputs = player.batch(_observations(folder))
    base = player.logits(inputs)
    player.use_lora(lora, 12 / 4)
    adapted = player.logits(inputs)
    with torch.no_grad():
        expected = policy(torch.from_numpy(inputs)).numpy()
    scale = np.abs(expected).max()
    assert np.abs(adapted - expected).max() < 1e-4 * scale
    assert np.abs(adapted - base).max() > 1e-2, "the adapter must have changed something"
    player.use_lora({}, 1.0)
    assert np.array_equal(player.logits(inputs), base)


@pytest.mark.parametrize(("max_turns", "solved"), [(20, 28)])
def test_the_shipped_checkpoint_solves_exactly_28_of_the_64_fixed_mazes(max_turns: int, solved: int) -> None:
    task = TaskPlan("training_job.tasks.mazes.env:MazeTextEnv", {}, max_turns)
    pool = LocalPool(WorkerPlan(task, str(MAZE), 2.0), 3)
    played = pool.play({}, eval_episodes(SeedItems(SeedData(kind="seeds", start=0, stop=64))), 1.0)
    assert int((played.scores >= 0.8).sum()) == solved
    assert set(played.stops) == {"stop", "length"}
    assert all((turns == max_turns) or stop == "stop" for turns, stop in zip(played.turns, played.stops, strict=True))


def test_the_text_model_is_what_its_script_makes(tmp_path: Path) -> None:
    script = REPOSITORY / "tests" / "fixtures" / "text_task" / "make_model.py"
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("make_model", script))
    spec.loader.exec_module(module)
    module.make_model(tmp_path)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (TEXT / name).read_bytes()


def test_a_folder_that_holds_no_known_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    with pytest.raises(UnknownModel, match="'qwen3_vl'"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "text_policy"}')
    with pytest.raises(UnknownModel, match="replies"):
        read_config(tmp_path)
