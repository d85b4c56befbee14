"""The guard over real checkpoints: each row of what SkyRL does with such folders, and what must happen instead."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nightshift.contract import GuardReport, OutcomeCause, SharedPaths
from nightshift.contract.spec import LoraSettings, Training
from tests.job.support import REPOSITORY
from training_job.checkpoints import part_file
from training_job.errors import BadConfiguration, CheckpointUnusable, StorageUnreachable
from training_job.guard import guard
from training_job.records import RECORD
from training_job.trainers.local.learner import Learner
from training_job.trainers.local.snapshots import TrainerState, problems_of_snapshot, save_snapshot

MODEL = REPOSITORY / "tests" / "fixtures" / "text_task" / "echo_task" / "model"
STEPS = (4, 8, 12, 40)
Damage = Callable[[SharedPaths], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared mount with whole checkpoints of ``STEPS``, written by the trainer itself."""
    mount = tmp_path_factory.mktemp("saved")
    learner = Learner(MODEL, LoraSettings(rank=2, alpha=4), Training())
    for step in STEPS:
        save_snapshot(SharedPaths("run", mount), learner, TrainerState(step, 0), MODEL)
    return mount


@pytest.fixture
def paths(saved: Path, tmp_path: Path) -> SharedPaths:
    """A copy with steps 4, 8 and 12, and a pointer that names 12."""
    shutil.copytree(saved, tmp_path / "shared")
    paths = SharedPaths("run", tmp_path / "shared")
    shutil.rmtree(paths.checkpoint(40))
    paths.pointer.write_text("12")
    return paths


def _contents(paths: SharedPaths) -> list[bytes]:
    """What all files hold, wherever they are; the pointer and the guard's own records left out."""
    found = [p for p in paths.root.rglob("*") if p.is_file() and not p.name.startswith(("latest_ckpt", RECORD))]
    return sorted(p.read_bytes() for p in found)


def _guard(paths: SharedPaths, floor: int = 0, rollback: int = 4, attempt: int = 2) -> GuardReport:
    return guard(paths, floor, rollback, attempt, problems_of_snapshot)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _pointer(text: str) -> Damage:
    return lambda paths: paths.pointer.write_text(text)


def _newest(*parts: str) -> Callable[[SharedPaths], Path]:
    return lambda paths: paths.checkpoint(12).joinpath(*parts)


MODEL_FILE, OPTIM_FILE = part_file("model"), part_file("optim")
ADAPTER = ("policy", "lora_adapter", "adapter_model.safetensors")

POINTERS: dict[str, tuple[Damage, int | None]] = {
    "missing": (lambda paths: paths.pointer.unlink(), None),
    "empty": (_pointer(""), None),
    "cut off": (_pointer("\n"), None),
    "no number": (_pointer("twelve"), None),
    "negative": (_pointer("-4"), None),
    "behind by more than the interval": (_pointer("4"), 4),
    "of a folder that is gone": (_pointer("400"), 400),
}

BROKEN: dict[str, Damage] = {
    "no trainer_state.pt": lambda paths: _newest("trainer_state.pt")(paths).unlink(),
    "no data.pt": lambda paths: _newest("data.pt")(paths).unlink(),
    "no model file": lambda paths: _newest("policy", MODEL_FILE)(paths).unlink(),
    "no policy folder": lambda paths: shutil.rmtree(_newest("policy")(paths)),
    "empty folder": lambda paths: (shutil.rmtree(_newest()(paths)), _newest()(paths).mkdir()),
    "corrupt trainer_state.pt": lambda paths: _newest("trainer_state.pt")(paths).write_bytes(b"not an archive"),
    "truncated optimizer": lambda paths: _truncate(_newest("policy", OPTIM_FILE)(paths)),
    "one flipped bit in the model": lambda paths: _flip(_newest("policy", MODEL_FILE)(paths)),
    "truncated adapter": lambda paths: _truncate(_newest(*ADAPTER)(paths)),
    "one flipped bit in the adapter": lambda paths: _flip(_newest(*ADAPTER)(paths)),
    "another step's trainer_state.pt": lambda paths: torch.save(
        {"global_step": 8, "seed": 0}, _newest("trainer_state.pt")(paths)
    ),
    "fsdp_config.json is no JSON": lambda paths: _newest("policy", "fsdp_config.json")(paths).write_text("{"),
}


def test_whole_checkpoints_and_a_right_pointer_are_left_alone(paths: SharedPaths) -> None:
    before = _contents(paths)
    report = _guard(paths, floor=12)
    assert (report.resumed_step, report.pointer_before, report.checked) == (12, 12, [12])
    assert not report.repaired_pointer and report.quarantined == [] and not paths.quarantine.exists()
    assert _contents(paths) == before and paths.pointer.read_text() == "12"


@pytest.mark.parametrize("case", POINTERS)
def test_a_wrong_pointer_is_repaired_to_the_newest_whole_checkpoint(paths: SharedPaths, case: str) -> None:
    damage, before = POINTERS[case]
    damage(paths)
    report = _guard(paths, floor=12)
    assert (report.resumed_step, report.pointer_before, report.repaired_pointer) == (12, before, True)
    assert paths.pointer.read_text() == "12"
    assert report.quarantined == []


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_newest_checkpoint_is_moved_aside_and_the_one_before_is_taken(paths: SharedPaths, case: str) -> None:
    BROKEN[case](paths)
    before = _contents(paths)
    report = _guard(paths, floor=8)
    assert (report.resumed_step, report.checked, report.quarantined) == (8, [12, 8], ["global_step_12.a2"])
    assert paths.pointer.read_text() == "8" and not paths.checkpoint(12).exists()
    assert _contents(paths) == before, "nothing may be deleted or changed"


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_that_the_pointer_does_not_name_yet_is_moved_aside(paths: SharedPaths, case: str) -> None:
    BROKEN[case](paths)
    paths.pointer.write_text("8")
    report = _guard(paths, floor=8)
    assert (report.resumed_step, report.repaired_pointer) == (8, False)
    assert not paths.checkpoint(12).exists()


def test_a_whole_checkpoint_far_ahead_of_the_pointer_is_taken(saved: Path, paths: SharedPaths) -> None:
    shutil.copytree(SharedPaths("run", saved).checkpoint(40), paths.checkpoint(40))
    report = _guard(paths, floor=12)
    assert (report.resumed_step, report.pointer_before) == (40, 12)
    assert paths.pointer.read_text() == "40"


def test_a_partial_folder_far_ahead_of_the_pointer_is_moved_aside(paths: SharedPaths) -> None:
    (paths.checkpoint(400) / "policy").mkdir(parents=True)
    report = _guard(paths, floor=12)
    assert (report.resumed_step, report.quarantined) == (12, ["global_step_400.a2"])


def test_what_a_killed_save_left_is_moved_aside_under_a_name_of_its_own(paths: SharedPaths) -> None:
    for _ in range(2):
        (paths.ckpts / ".global_step_16" / "policy").mkdir(parents=True)
        _guard(paths, floor=12)
    assert sorted(p.name for p in paths.quarantine.iterdir()) == ["global_step_16.a2", "global_step_16.a2-2"]


def test_a_run_that_never_saved_starts_from_scratch(tmp_path: Path) -> None:
    report = _guard(SharedPaths("run", tmp_path))
    assert (report.resumed_step, report.pointer_before, report.repaired_pointer) == (0, None, False)


def test_without_any_whole_checkpoint_the_pointer_is_moved_aside_too(paths: SharedPaths) -> None:
    for step in (4, 8, 12):
        (paths.checkpoint(step) / "data.pt").unlink()
    report = _guard(paths, floor=0)
    assert report.resumed_step == 0 and not paths.pointer.exists()
    assert report.quarantined[-1] == "latest_ckpt_global_step.txt.a2"
    assert (paths.quarantine / report.quarantined[-1]).read_text() == "12"


# The floor


def test_below_the_floor_the_run_starts_within_its_rollback_where_the_floor_is_proven_broken(
    paths: SharedPaths,
) -> None:
    BROKEN["one flipped bit in the model"](paths)
    report = _guard(paths, floor=12, rollback=4)
    assert report.resumed_step == 8
    assert any("below the floor 12" in note for note in report.notes)


def test_a_proof_from_an_earlier_attempt_still_holds(paths: SharedPaths) -> None:
    BROKEN["no data.pt"](paths)
    _guard(paths, floor=12, attempt=2)
    assert _guard(paths, floor=12, attempt=3).resumed_step == 8


@pytest.mark.parametrize("rollback", [0, 3])
def test_the_run_is_refused_further_below_the_floor_than_allowed(paths: SharedPaths, rollback: int) -> None:
    BROKEN["no data.pt"](paths)
    with pytest.raises(CheckpointUnusable, match="max_rollback_steps") as refused:
        _guard(paths, floor=12, rollback=rollback)
    assert (refused.value.outcome, refused.value.exit_code) == (OutcomeCause.CHECKPOINT_UNUSABLE, 65)


def test_a_floor_that_has_vanished_is_no_proof(paths: SharedPaths) -> None:
    shutil.rmtree(paths.checkpoint(12))
    with pytest.raises(CheckpointUnusable, match="nothing proves that 12 is broken"):
        _guard(paths, floor=12, rollback=100)


def test_a_lost_pointer_and_no_folders_never_restart_silently_at_0(paths: SharedPaths) -> None:
    shutil.rmtree(paths.ckpts)
    with pytest.raises(CheckpointUnusable, match="step 120 was saved"):
        _guard(paths, floor=120, rollback=120)


# The mount


def test_a_mount_that_is_not_there_is_unreachable_and_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachable, match="not there") as refused:
        _guard(SharedPaths("run", tmp_path / "nowhere"))
    assert refused.value.exit_code == 75


def test_an_empty_mount_is_unreachable_where_something_was_saved(tmp_path: Path) -> None:
    with pytest.raises(StorageUnreachable, match="is the filesystem mounted"):
        _guard(SharedPaths("run", tmp_path), floor=8)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_mount_that_breaks_off_while_it_is_read_moves_nothing(paths: SharedPaths, code: int) -> None:
    """Step 12 is truly broken; the storage fails only after that has been found out."""
    BROKEN["no data.pt"](paths)

    def check(folder: Path, step: int) -> list[str]:
        if step == 8:
            raise OSError(code, "the storage fails")
        return problems_of_snapshot(folder, step)

    with pytest.raises(StorageUnreachable):
        guard(paths, 8, 4, 2, check)
    assert paths.checkpoint(12).exists() and not paths.quarantine.exists() and paths.pointer.read_text() == "12"


# World size


def _of_ranks(folder: Path, ranks: int) -> None:
    """Make a checkpoint of one rank one of several, as SkyRL names their files."""
    policy = folder / "policy"
    for part in ("model", "optim", "extra_state"):
        one = policy / part_file(part)
        for rank in range(ranks):
            shutil.copy(one, policy / part_file(part, ranks, rank))
        one.unlink()


def test_a_checkpoint_of_another_number_of_gpus_is_refused_before_the_start_and_stays_where_it_is(
    paths: SharedPaths,
) -> None:
    _of_ranks(paths.checkpoint(12), 4)
    before = _contents(paths)
    with pytest.raises(
        BadConfiguration, match=r"step 12 was saved by 4 GPUs .* count x gpus is 6: ask for 4"
    ) as refused:
        guard(paths, 12, 4, 2, world_size=6)
    assert (refused.value.field, refused.value.outcome) == ("topology.workers", OutcomeCause.BAD_CONFIGURATION)
    assert _contents(paths) == before and paths.checkpoint(12).is_dir() and not paths.quarantine.exists()


def test_the_same_number_of_gpus_and_a_run_without_a_checkpoint_must_not_be_refused(
    paths: SharedPaths, tmp_path: Path
) -> None:
    _of_ranks(paths.checkpoint(12), 4)
    assert guard(paths, 12, 4, 2, world_size=4).resumed_step == 12
    (tmp_path / "fresh" / "runs").mkdir(parents=True)
    assert guard(SharedPaths("run", tmp_path / "fresh"), 0, 4, 1, world_size=6).resumed_step == 0


def test_a_checkpoint_that_lacks_a_rank_is_broken_and_not_of_another_world_size(paths: SharedPaths) -> None:
    for step in (8, 12):
        _of_ranks(paths.checkpoint(step), 4)
    (paths.checkpoint(12) / "policy" / part_file("optim", 4, 3)).unlink()
    report = guard(paths, 12, 4, 2, world_size=4)
    assert (report.resumed_step, report.quarantined) == (8, ["global_step_12.a2"])
