"""SkyRL's own loop with our hooks: what an attempt leaves, how it resumes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import Control, ControlCommand, EvalSet, OutcomeCause, RunKeys, RunSpec
from nightshift.contract.spec import SeedData, Target
from nightshift.core.causes import POLICIES, Action, from_outcome
from tests.skyrl.rig import MemoryStore, Rig, tiny
from training_job.checkpoints import steps_on_disk
from training_job.clock import now
from training_job.errors import CheckpointUnusable, CodeError, StorageUnreachable
from training_job.guard import repair
from training_job.trainers.skyrl.hooks import HookedTrainer


@pytest.fixture(autouse=True)
def on_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL prunes old checkpoints by a Ray task on every node; here there is one, and no Ray."""
    monkeypatch.setattr("skyrl.train.trainer.run_on_each_node", lambda nodes, call, *given: call(*given))


def test_a_whole_run_leaves_progress_checkpoints_exports_and_evals(tmp_path: Path) -> None:
    rig = Rig(tiny(), tmp_path, MemoryStore())
    assert rig.train() is None
    progress = rig.job.reporter.current
    assert (progress.step, progress.saved_step) == (6, 6)
    assert [e.step for e in rig.job.record.evals if e.eval_set is EvalSet.FIXED] == [0, 2, 4, 6]
    assert [e.step for e in rig.job.record.evals if e.eval_set is EvalSet.HOLDOUT] == [0, 6]
    assert {e.of for e in rig.job.record.evals} == {8, 6}
    assert rig.job.record.final_export is not None
    assert rig.job.record.final_export.step == 6


def guarded(rig: Rig) -> int:
    """The guard's word on where an attempt begins."""
    return repair(rig.job.paths, rig.job.floor, rig.job.attempt).resumed_step


def steps_trained(rig: Rig) -> list[int]:
    return [step for step, phase, _ in rig.player.played if phase == "train"]


def test_a_second_attempt_resumes_at_the_saved_step_and_plays_no_eval_twice(tmp_path: Path) -> None:
    store = MemoryStore()
    first = Rig(tiny(), tmp_path, store)
    first.player.fails_at = 4  # in the rollouts of step 4: steps 1 to 3 are trained, step 2 is saved
    with pytest.raises(RuntimeError, match="the engine died"):
        first.train()
    second = Rig(tiny(), tmp_path, store, attempt=2, floor=2)
    assert guarded(second) == 2
    assert second.train(resumed=2) is None
    assert steps_trained(second) == [3, 4, 5, 6]
    assert [e.step for e in second.job.record.evals if e.eval_set is EvalSet.FIXED] == [4, 6], "step 2 is published"
    assert second.actors.loaded == [str(second.job.paths.checkpoint(2) / "policy")]


def four_steps_an_epoch() -> RunSpec:
    """Eight steps over sixteen mazes, four at a time: an epoch ends where every second checkpoint lies."""
    spec = tiny(total_steps=8)
    return spec.model_copy(
        update={"task": spec.task.model_copy(update={"train": SeedData(kind="seeds", start=10_000, stop=10_016)})}
    )


def died_after_the_save_of_step_4(tmp_path: Path, store: MemoryStore) -> None:
    first = Rig(four_steps_an_epoch(), tmp_path, store)
    first.player.fails_at = 5
    with pytest.raises(RuntimeError, match="the engine died"):
        first.train()


def test_a_resume_at_an_epochs_end_trains_all_steps_that_are_left(tmp_path: Path) -> None:
    store = MemoryStore()
    died_after_the_save_of_step_4(tmp_path, store)
    second = Rig(four_steps_an_epoch(), tmp_path, store, attempt=2, floor=4)
    assert second.prepared.derived.steps_per_epoch == 4
    assert second.train(resumed=guarded(second)) is None
    assert steps_trained(second) == [5, 6, 7, 8]
    assert second.results.finished().cause is OutcomeCause.FINISHED
    assert second.trained.total_training_steps == 8, "what the learning rates follow"


def test_a_loop_that_ends_before_the_last_step_is_no_finished_run(tmp_path: Path) -> None:
    store = MemoryStore()
    died_after_the_save_of_step_4(tmp_path, store)
    second = Rig(four_steps_an_epoch(), tmp_path, store, attempt=2, floor=4)
    second.cfg.trainer.epochs = 2  # as many as the steps need, where none is lost to the resume
    assert second.train(resumed=guarded(second)) is None
    assert steps_trained(second) == []
    with pytest.raises(CodeError, match="after step 4 of 8"):
        second.results.finished()


def test_an_epoch_of_one_step_after_too_long_prompts_were_left_out_is_enough_for_every_step(tmp_path: Path) -> None:
    store, spec = MemoryStore(), tiny(total_steps=4)

    class LongPrompts(Rig):
        """Of ten batches' rows those of one are short enough for SkyRL."""

        def trainer(self, resumed: int) -> HookedTrainer:
            file = Path(self.cfg.data.train_data[0])
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            for row in rows[4:]:
                row["prompt"] = [{"role": "user", "content": "." * self.cfg.trainer.max_prompt_length}]
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            return super().trainer(resumed)

    first = LongPrompts(spec, tmp_path, store)
    first.player.fails_at = 3
    with pytest.raises(RuntimeError, match="the engine died"):
        first.train()
    second = LongPrompts(spec, tmp_path, store, attempt=2, floor=2)
    assert second.train(resumed=guarded(second)) is None
    assert len(second.trained.train_dataloader) == 1
    assert (steps_trained(second), second.results.finished().cause) == ([3, 4], OutcomeCause.FINISHED)


def test_a_start_at_another_step_than_the_guard_prepared_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    rig = Rig(tiny(), tmp_path, MemoryStore(), attempt=2, floor=2)
    with pytest.raises(CheckpointUnusable, match="begins at step 0, the guard had prepared step 2"):
        rig.train(resumed=2)
    assert steps_trained(rig) == []


def test_only_the_proof_is_missing_no_step_is_trained_beyond_the_last(tmp_path: Path) -> None:
    store = MemoryStore()
    Rig(tiny(), tmp_path, store).train()
    again = Rig(tiny(), tmp_path, store, attempt=2, floor=6)
    ended = again.train(resumed=guarded(again))
    assert ended is not None
    assert (ended.cause, steps_trained(again)) == (OutcomeCause.FINISHED, [])
    proof = {(e.eval_set, e.step, e.attempt) for e in again.job.record.evals}
    assert proof == {(EvalSet.FIXED, 6, 2), (EvalSet.HOLDOUT, 6, 2)}
    assert again.job.record.final_export is not None


def ask(rig: Rig, command: ControlCommand) -> None:
    control = Control(run_id="tiny", seq=1, command=command, reason="test", at=now())
    rig.store.put(RunKeys("tiny").control, control.to_json().encode())
    assert rig.job.reporter.read_control_now() == control


def test_a_request_to_stop_is_carried_out_after_the_step_with_checkpoint_and_export(tmp_path: Path) -> None:
    rig = Rig(tiny(), tmp_path, MemoryStore())
    ask(rig, ControlCommand.STOP_AFTER_CHECKPOINT)
    ended = rig.train()
    assert ended is not None
    assert ended.cause is OutcomeCause.STOPPED_ON_REQUEST
    progress = rig.job.reporter.current
    assert (progress.step, progress.saved_step, progress.acknowledged) == (1, 1, 1)
    assert rig.job.record.final_export is not None
    assert rig.job.record.final_export.step == 1


def test_a_request_for_a_checkpoint_saves_out_of_turn_and_training_goes_on(tmp_path: Path) -> None:
    rig = Rig(tiny(max_ckpts_to_keep=10), tmp_path, MemoryStore())
    ask(rig, ControlCommand.CHECKPOINT_NOW)
    assert rig.train() is None
    assert steps_on_disk(rig.job.paths.ckpts) == [1, 2, 4, 6]
    assert rig.job.reporter.current.acknowledged == 1


def test_a_held_target_ends_the_run_with_its_own_proof_and_a_target_that_is_not_held_does_not(tmp_path: Path) -> None:
    spec = tiny().model_copy(update={"target": Target(success=0.9, evals=2, stop=True)})
    rig = Rig(spec, tmp_path, MemoryStore())
    rig.player.errs = lambda step, phase: 1.0 if step == 0 else 0.0  # solved at steps 2 and 4
    ended = rig.train()
    assert ended is not None
    assert (ended.cause, rig.job.reporter.current.step) == (OutcomeCause.TARGET_REACHED, 4)
    assert {(e.eval_set, e.step) for e in rig.job.record.evals} >= {(EvalSet.FIXED, 4), (EvalSet.HOLDOUT, 4)}
    assert rig.job.record.final_export is not None
    assert rig.job.record.final_export.step == rig.job.reporter.current.saved_step == 4


def test_success_is_the_sum_of_an_episodes_rewards_and_not_pass_at_1(tmp_path: Path) -> None:
    rig = Rig(tiny(total_steps=2), tmp_path, MemoryStore())
    rig.player.errs = lambda step, phase: 1.0  # stops at once: well-formed, and never on the target
    rig.train()
    assert {(e.solved, e.pass_at_1) for e in rig.job.record.evals} == {(0, 1.0)}


def test_a_checkpoint_that_is_not_whole_after_its_save_never_becomes_the_floor(tmp_path: Path) -> None:
    rig = Rig(tiny(), tmp_path, MemoryStore())
    tear_the_save_of(rig, step=2)
    with pytest.raises(StorageUnreachable, match="not whole"):
        rig.train()
    assert rig.job.reporter.current.saved_step == 0


def tear_the_save_of(rig: Rig, step: int) -> None:
    save = rig.actors.save_checkpoint

    def truncated(model: str, folder: str, tokenizer: Any) -> None:
        save(model, folder, tokenizer)
        if f"global_step_{step}/" in folder:
            shard = Path(folder) / "optim_world_size_2_rank_1.pt"
            shard.write_bytes(shard.read_bytes()[:-100])

    rig.actors.save_checkpoint = truncated  # type: ignore[method-assign]


def test_a_bad_write_of_one_checkpoint_must_not_give_up_the_run_while_a_whole_one_lies_before_it(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    first = Rig(tiny(), tmp_path, store)
    tear_the_save_of(first, step=4)
    with pytest.raises(StorageUnreachable, match="global_step_4 was just saved and is not whole") as ended:
        first.train()
    assert POLICIES[from_outcome(ended.value.outcome)].action is Action.RECOVER
    second = Rig(tiny(), tmp_path, store, attempt=2, floor=first.job.reporter.current.saved_step)
    assert guarded(second) == 2
    assert second.train(resumed=2) is None
    assert steps_trained(second) == [3, 4, 5, 6]
    assert second.job.reporter.current.saved_step == 6
