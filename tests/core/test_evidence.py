"""What counts as evidence, and what does not."""

from __future__ import annotations

from nightshift.contract.evals import EvalSet
from nightshift.contract.job import OutcomeCause
from nightshift.contract.spec import Target
from nightshift.core.evidence import holds_target, is_complete, may_end_early, results
from tests.builders import attempt, export, spec, summary


def test_the_curve_leaves_out_what_was_trained_again() -> None:
    attempts = [attempt(1), attempt(2, resumed_step=20)]
    found = results(
        [summary(0, 28), summary(20, 40), summary(30, 63), summary(30, 44, attempt=2), summary(40, 60, attempt=2)],
        [export(20), export(30), export(40, attempt=2)],
        attempts,
    )
    assert [(s.step, s.solved) for s in found.curve] == [(0, 28), (20, 40), (30, 44), (40, 60)]
    assert found.final is not None and found.final.step == 40
    assert found.best_export is not None and found.best_export.step == 40


def test_evidence_of_an_older_attempt_is_never_believed() -> None:
    attempts = [attempt(1), attempt(2, resumed_step=20)]
    found = results([summary(0, 28), summary(40, 64)], [export(40)], attempts)
    assert not is_complete(found, attempt=2, last_step=40)
    assert found.final is None


def test_success_needs_eval_and_export_of_the_last_step_by_the_same_attempt() -> None:
    full = results([summary(0, 28), summary(40, 62)], [export(40)], [attempt(1)])
    assert is_complete(full, attempt=1, last_step=40)
    assert not is_complete(full, attempt=1, last_step=41)
    assert not is_complete(results([summary(40, 62)], [export(20)], [attempt(1)]), 1, 40)
    assert not is_complete(results([summary(40, 62)], [], [attempt(1)]), 1, 40)


def test_a_target_is_held_by_its_last_evals_and_not_by_a_word_of_the_job() -> None:
    found = results([summary(0, 28), summary(20, 60), summary(40, 62)], [export(40)], [attempt(1)])
    assert holds_target(found, Target(success=60 / 64, evals=2))
    assert not holds_target(found, Target(success=61 / 64, evals=2))
    assert holds_target(found, Target(success=62 / 64))
    assert not holds_target(found, Target(success=0.1, evals=4)), "four were asked for"


def test_an_adapter_of_zeros_is_no_evidence() -> None:
    found = results([summary(40, 62)], [export(40, lora_b_nonzero=0)], [attempt(1)])
    assert not is_complete(found, 1, 40)


def test_best_is_chosen_among_steps_that_have_an_adapter() -> None:
    found = results([summary(20, 50), summary(30, 64), summary(40, 50)], [export(20), export(40)], [attempt(1)])
    assert found.best is not None and found.best.step == 40


def test_the_holdout_is_no_part_of_the_curve() -> None:
    held = summary(40, 460, eval_set=EvalSet.HOLDOUT, of=500)
    found = results([summary(0, 28), summary(40, 62), held], [export(40)], [attempt(1)])
    assert [s.step for s in found.curve] == [0, 40]
    assert found.holdout_final == held


def test_a_run_without_results_has_none() -> None:
    found = results([], [], [])
    assert found.curve == () and found.final is None and found.best_export is None


def test_a_plateau_is_held_by_the_evals_and_only_where_the_spec_names_one() -> None:
    exports, attempts = [export(20), export(40)], [attempt(1)]
    flat = results([summary(0, 28), summary(20, 28), summary(40, 28)], exports, attempts)
    rising = results([summary(0, 28), summary(20, 28), summary(40, 40)], exports, attempts)
    asked = spec(plateau={"evals": 2, "min_gain": 0.05})
    assert may_end_early(flat, asked, OutcomeCause.PLATEAU)
    assert not may_end_early(rising, asked, OutcomeCause.PLATEAU)
    assert not may_end_early(flat, spec(), OutcomeCause.PLATEAU)
    assert not may_end_early(flat, asked, OutcomeCause.TARGET_REACHED)


def test_the_best_adapter_is_shown_with_the_hold_out_eval_of_its_own_step() -> None:
    last, of_best = (summary(step, 230, eval_set=EvalSet.HOLDOUT, of=256) for step in (40, 20))
    evals, exports = [summary(0, 28), summary(20, 63), summary(40, 60)], [export(20), export(40)]
    found = results([*evals, last, of_best], exports, [attempt(1)])
    assert (found.best, found.holdout_best, found.holdout_final) == (evals[1], of_best, last)
    assert results([*evals, last], exports, [attempt(1)]).holdout_best is None
