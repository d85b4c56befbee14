"""SkyRL's own evaluation and dumps, read by us: the same numbers where both reckon the same, and ours where SkyRL misleads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import EvalSet, EvalSummary, ExitCode, OutcomeCause
from tests.skyrl.rig import MemoryStore, Rig, tiny
from training_job.errors import CodeError, classify
from training_job.trainers.skyrl.evalrows import read_dump


class Lost:
    """A player's chance of a wrong turn, by the step: none, some, all."""

    def __call__(self, step: int, phase: str) -> float:
        return {0: 1.0, 2: 0.05}.get(step, 0.0)


@pytest.fixture(params=[True, False], ids=["a reward a token", "a reward an episode"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A run of four steps, in both shapes in which SkyRL dumps rewards: pictures give one a token."""
    monkeypatch.setattr("skyrl.train.trainer.run_on_each_node", lambda nodes, call, *given: call(*given))
    rig = Rig(tiny(total_steps=4), tmp_path, MemoryStore())
    rig.player.errs, rig.player.reward_a_token = Lost(), request.param
    assert rig.train() is None
    return rig


def evals(rig: Rig, which: EvalSet = EvalSet.FIXED) -> dict[int, EvalSummary]:
    return {one.step: one for one in rig.job.record.evals if one.eval_set is which}


def test_ours_and_skyrls_numbers_agree_at_each_step(run: Rig) -> None:
    compared = set()
    for which in EvalSet:
        for step, summary in evals(run, which).items():
            told = json.loads((run.job.paths.eval_dump(step) / "aggregated_results.jsonl").read_text().splitlines()[0])
            if f"eval/{which}/avg_score" in told:  # SkyRL keeps the last eval's of a step, which is the holdout's
                assert summary.avg_score == pytest.approx(told[f"eval/{which}/avg_score"])
                assert summary.pass_at_1 == pytest.approx(told[f"eval/{which}/pass_at_1"])
                compared.add((which, step))
    assert compared == {(EvalSet.HOLDOUT, 0), (EvalSet.FIXED, 2), (EvalSet.HOLDOUT, 4)}


def test_success_counts_solved_items_where_skyrls_pass_at_1_counts_well_formed_ones(run: Rig) -> None:
    by_step = evals(run)
    assert {step: (one.solved, one.of) for step, one in by_step.items() if step != 2} == {0: (0, 8), 4: (8, 8)}
    assert 0 < by_step[2].solved < 8, "some of them"
    assert by_step[0].pass_at_1 == 1.0


def test_the_two_sets_of_a_step_are_never_mixed(run: Rig) -> None:
    assert {step: one.of for step, one in evals(run, EvalSet.HOLDOUT).items()} == {0: 6, 4: 6}
    folder = run.job.paths.eval_dump(4)
    assert {path.name for path in folder.iterdir()} == {"fixed.jsonl", "holdout.jsonl", "aggregated_results.jsonl"}
    rows = {which: read_dump(folder / f"{which}.jsonl", 0.8)[0] for which in EvalSet}
    assert not {row.item for row in rows[EvalSet.FIXED]} & {row.item for row in rows[EvalSet.HOLDOUT]}


def test_a_row_has_its_item_its_turns_and_the_sum_of_its_rewards(run: Rig) -> None:
    rows, _ = read_dump(run.job.paths.eval_dump(4) / "fixed.jsonl", 0.8)
    assert [row.item for row in rows] == [f"seed:{seed}" for seed in range(8)]
    # Solved without an error: the shortest way, whose number of moves the mazes' own tests hold to an oracle.
    assert {row.turns for row in rows} <= {13, 17}
    assert all(row.success and row.score == pytest.approx(1.0) for row in rows)


CORRUPT: dict[str, Callable[[dict[str, Any]], str]] = {
    "cut off": lambda row: json.dumps(row)[:50],
    "no item": lambda row: json.dumps({**row, "env_extras": {}}),
    "no score": lambda row: json.dumps({key: value for key, value in row.items() if key != "score"}),
    "a score of words": lambda row: json.dumps({**row, "score": "high"}),
    "a list": lambda row: "[1, 2]",
    "not a number": lambda row: json.dumps({**row, "score": float("nan"), "env_extras": {"nightshift_item": "seed:1"}}),
}


@pytest.mark.parametrize("how", CORRUPT)
def test_a_corrupt_row_is_one_clear_line_with_file_and_number_and_never_left_out(
    how: str, run: Rig, tmp_path: Path
) -> None:
    lines = (run.job.paths.eval_dump(4) / "fixed.jsonl").read_text().splitlines()
    broken = tmp_path / "fixed.jsonl"
    broken.write_text("\n".join([*lines[:3], CORRUPT[how](json.loads(lines[3])), *lines[4:]]) + "\n")
    with pytest.raises(CodeError, match=r"fixed\.jsonl, line 4, is no") as told:
        read_dump(broken, 0.8)
    ended = classify(told.value)
    assert (ended.outcome, ended.exit_code) == (OutcomeCause.CODE_ERROR, ExitCode.SOFTWARE)
    assert len(str(ended).splitlines()) == 1


def test_an_empty_dump_is_no_eval(tmp_path: Path) -> None:
    (tmp_path / "fixed.jsonl").write_text("")
    with pytest.raises(CodeError, match="no rows"):
        read_dump(tmp_path / "fixed.jsonl", 0.8)
