"""The guard and then SkyRL's own load, over checkpoints that SkyRL's own trainer and FSDP strategy wrote.

One rank in this process, with gloo: shards of more ranks are in ``test_ranks.py``. What does not run on a CPU is the training
between the saves; an optimizer step with made-up gradients stands in for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from safetensors.torch import load_file
from skyrl.backends.skyrl_train.distributed.fsdp_utils import collect_lora_params
from torch import distributed

from nightshift.contract import SharedPaths
from tests.skyrl.fsdp import Policy, join
from tests.skyrl.rig import Actors, MemoryStore, Rig, tiny
from training_job.guard import repair

STEPS = (2, 4, 6)


class RealActors(Actors):
    """SkyRL's strategy saves and loads; each save is preceded by a step, so that no two are alike."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(world=1)
        self.policy = policy

    def save_checkpoint(self, model: str, folder: str, tokenizer: Any) -> None:
        self.policy.step()
        self.policy.save(Path(folder))

    def load_checkpoint(self, model: str, folder: str, **_: Any) -> None:
        self.policy.load(Path(folder))


@dataclass(frozen=True)
class Saved:
    """What SkyRL left of three saves, and the adapters at each."""

    root: Path
    trainer: Any
    policy: Policy
    adapters: dict[int, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Saved]:
    root = tmp_path_factory.mktemp("saved")
    join(0, 1, root / "meeting")
    rig = Rig(tiny(max_ckpts_to_keep=10, gpus=1), root / "shared", MemoryStore())
    policy = Policy(base)
    rig.actors = RealActors(policy)
    trainer = rig.trainer(resumed=0)
    adapters = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skyrl.train.trainer.run_on_each_node", lambda nodes, call, *given: call(*given))
        for step in STEPS:
            trainer.global_step = step
            trainer.save_checkpoints()
            adapters[step] = policy.adapters()
    yield Saved(root / "shared", trainer, policy, adapters)
    distributed.destroy_process_group()


def fresh(saved: Saved, into: Path) -> SharedPaths:
    """A copy of the run for a test to break."""
    shutil.copytree(saved.root, into)
    paths = SharedPaths("tiny", into)
    saved.trainer.cfg.trainer.ckpt_path = str(paths.ckpts)
    return paths


def load(saved: Saved) -> int:
    """SkyRL's own ``resume_mode=latest``; what it loaded is what was saved at that step."""
    step, _ = saved.trainer.load_checkpoints()
    if step:
        for name, value in saved.policy.adapters().items():
            assert torch.equal(value, saved.adapters[step][name]), name
    return int(step)


def test_a_save_is_whole_and_its_adapters_are_trained(saved: Saved, tmp_path: Path) -> None:
    paths = fresh(saved, tmp_path / "shared")
    report = repair(paths, floor=6, attempt=2)
    assert (report.resumed_step, report.quarantined, report.repaired_pointer) == (6, [], False)
    assert load(saved) == 6
    first, last = saved.adapters[2], saved.adapters[6]
    assert all(not torch.equal(first[name], last[name]) for name in first), "the steps in between changed nothing"


def test_what_the_engines_are_given_is_what_is_exported(saved: Saved, tmp_path: Path) -> None:
    """By SkyRL's own collecting for its engines; the loading itself needs them."""
    saved.policy.export(tmp_path / "export")
    exported = load_file(tmp_path / "export/adapter_model.safetensors")
    given_to_engines = collect_lora_params(saved.policy.model.model)
    assert exported.keys() == given_to_engines.keys()
    assert all(exported[name].equal(given_to_engines[name]) for name in exported)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def partly(folder: Path, like: Path) -> None:
    """What a save leaves that was killed before the last shard and the trainer's state."""
    shutil.copytree(like, folder)
    (folder / "trainer_state.pt").unlink()
    cut(folder / "policy" / "optim_world_size_1_rank_0.pt")


@dataclass(frozen=True)
class Row:
    """A state on disk. ``alone``: what SkyRL does with it; ``guarded``: where the guard makes it resume."""

    happens: Callable[[SharedPaths], object]
    alone: type[Exception] | tuple[type[Exception], ...] | int
    guarded: int


TORN = (RuntimeError, OSError)
"""What torch raises for an archive without its end, by how much of it is left."""

ROWS = {
    "no pointer": Row(lambda p: p.pointer.unlink(), 0, 6),
    "empty pointer": Row(lambda p: p.pointer.write_text(""), ValueError, 6),
    "a pointer of words": Row(lambda p: p.pointer.write_text("latest"), ValueError, 6),
    "a torn newer folder, one interval ahead": Row(lambda p: partly(p.checkpoint(8), p.checkpoint(6)), 6, 6),
    "a torn newer folder, further ahead": Row(lambda p: partly(p.checkpoint(20), p.checkpoint(6)), ValueError, 6),
    "a pointer older than whole folders": Row(lambda p: p.pointer.write_text("2"), ValueError, 6),
    "a pointer to a folder that is not there": Row(lambda p: p.pointer.write_text("8"), FileNotFoundError, 6),
    "a pointer to a torn folder": Row(lambda p: (p.checkpoint(6) / "trainer_state.pt").unlink(), FileNotFoundError, 4),
    "a torn trainer state": Row(lambda p: cut(p.checkpoint(6) / "trainer_state.pt"), TORN, 4),
    "no data state": Row(lambda p: (p.checkpoint(6) / "data.pt").unlink(), 6, 4),
    "a torn model shard": Row(lambda p: cut(p.checkpoint(6) / "policy/model_world_size_1_rank_0.pt"), TORN, 4),
    "a torn optimizer shard": Row(lambda p: cut(p.checkpoint(6) / "policy/optim_world_size_1_rank_0.pt"), TORN, 4),
    "no optimizer shard": Row(lambda p: (p.checkpoint(6) / "policy/optim_world_size_1_rank_0.pt").unlink(), 6, 4),
    "no policy folder": Row(lambda p: shutil.rmtree(p.checkpoint(6) / "policy"), FileNotFoundError, 4),
    "nothing whole": Row(lambda p: [cut(p.checkpoint(step) / "trainer_state.pt") for step in STEPS], TORN, 0),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_after_the_guard_skyrl_resumes_at_exactly_its_step_whatever_it_would_have_done(
    saved: Saved, row: Row, tmp_path: Path
) -> None:
    paths = fresh(saved, tmp_path / "shared")
    row.happens(paths)
    if isinstance(row.alone, int):
        assert saved.trainer.load_checkpoints()[0] == row.alone
    else:
        with pytest.raises(row.alone):
            saved.trainer.load_checkpoints()
    assert repair(paths, floor=6, attempt=2).resumed_step == row.guarded
    assert load(saved) == row.guarded


DAMAGE: dict[str, Callable[[bytes, float], bytes | None]] = {
    "gone": lambda content, where: None,
    "empty": lambda content, where: b"",
    "cut": lambda content, where: content[: int(len(content) * where)],
    "zeros from there on": lambda content, where: (
        content[: int(len(content) * where)] + bytes(len(content) - int(len(content) * where))
    ),
    "one byte": lambda content, where: (
        content[: (at := int((len(content) - 1) * where))] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
        if content
        else b""
    ),
}
"""(content, place from 0 to 1) -> content after it; None for a file that is gone."""


@budget(
    max_examples=40, deadline=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.data())
def test_whatever_happens_to_files_the_guards_step_loads(
    saved: Saved, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    paths = fresh(saved, tmp_path_factory.mktemp("broken") / "shared")
    files = sorted(path for path in paths.ckpts.rglob("*") if path.is_file())
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(files).filter(Path.exists))
        kind, where = data.draw(st.sampled_from(sorted(DAMAGE))), data.draw(st.floats(0, 1))
        after = DAMAGE[kind](path.read_bytes(), where)
        path.write_bytes(after) if after is not None else path.unlink()
    step = repair(paths, floor=6, attempt=2).resumed_step
    # What SkyRL reads of a whole checkpoint is checked to its last byte, so what it loads there is what it saved.
    assert load(saved) == step
    shutil.rmtree(paths.mount)
