"""Where a run stands: what counts, what is best, what flipped, and when it ends early. The controller must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract import EvalRow, EvalSet, EvalSummary, ExportRecord, FileDigest, OutcomeCause, RunKeys, RunSpec
from nightshift.contract.evals import evals_without_rise, flips
from nightshift.core.evidence import is_at_plateau, may_end_early, results
from tests.builders import attempt, export, spec, summary
from tests.job.test_parts import MemoryStore
from training_job.errors import CheckpointUnusable
from training_job.evals import rows_to_lines
from training_job.standing import ADAPTER_FILES, Standing, adapter_folder
from training_job.store import digest_of


def standing(*summaries: EvalSummary, exports: Any = (), resumed: Any = None, asked: RunSpec | None = None) -> Standing:
    return Standing(asked or spec(), MemoryStore(), summaries, exports, resumed)  # type: ignore[arg-type]


def row(item: int, success: bool) -> EvalRow:
    return EvalRow(item=f"seed:{item}", success=success, score=float(success), turns=3, stop_reason="stop")


# Best, and its confirmation


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 64)), max_size=12),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.booleans()), max_size=8),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_the_job_confirms_exactly_what_the_controller_publishes_as_best(
    evals: list[tuple[int, int, int]], saves: list[tuple[int, int, bool]], second: int, third: int
) -> None:
    """Last step 7, by attempt 3, which always exports."""
    summaries = [summary(step, solved, n) for n, step, solved in evals] + [summary(7, 30, 3)]
    exports = [export(step, n, lora_b_nonzero=5 if good else 0) for n, step, good in saves]
    attempts = [attempt(1, resumed_step=0), attempt(2, resumed_step=second), attempt(3, resumed_step=third)]
    job = standing(*summaries, exports=exports, resumed={2: second, 3: third})
    found = results(summaries, [*exports, export(7, 3)], attempts)
    confirmed = job.to_confirm(7)
    assert found.best is not None
    assert (confirmed.step if confirmed else 7) == found.best.step
    if confirmed is not None:
        assert confirmed == found.best_export


def test_a_best_adapter_that_was_confirmed_before_is_not_played_again() -> None:
    held = summary(20, 200, eval_set=EvalSet.HOLDOUT, of=256)
    evals, exports = [summary(0, 28), summary(20, 63), summary(40, 60)], [export(20), export(40)]
    due = standing(*evals, exports=exports).to_confirm(40)
    assert due is not None and due.step == 20
    assert standing(*evals, held, exports=exports).to_confirm(40) is None
    found = results([*evals, held], exports, [attempt(1)])
    assert found.holdout_best == held and found.holdout_final is None


def test_the_last_step_is_confirmed_by_its_own_hold_out_eval() -> None:
    evals, exports = [summary(0, 28), summary(20, 60), summary(40, 60)], [export(20), export(40)]
    assert standing(*evals, exports=exports).to_confirm(40) is None, "the later one of equals"


class JobWith:
    """As much of a job as finding an adapter needs."""

    def __init__(self, store: MemoryStore, mount: Path) -> None:
        from nightshift.contract import SharedPaths

        self.store, self.paths = store, SharedPaths("maze-1", mount)


def test_the_confirmed_adapter_is_the_exported_one_byte_for_byte(tmp_path: Path) -> None:
    config, weights = ADAPTER_FILES
    files = {config: b"{}", weights: b"weights of attempt 1"}
    digests: dict[str, FileDigest] = {name: digest_of(content) for name, content in files.items()}
    record: ExportRecord = export(20, files=digests)
    job: Any = JobWith(MemoryStore(), tmp_path)
    folder = job.paths.export(20)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert adapter_folder(job, record) == folder
    (folder / weights).write_bytes(b"weights of attempt 2")
    with pytest.raises(CheckpointUnusable, match="not what it was"):
        adapter_folder(job, record)
    for name, content in files.items():
        job.store.put(RunKeys("maze-1").export(1, 20) + name, content)
    copy = adapter_folder(job, record)
    assert copy != folder
    assert {name: (copy / name).read_bytes() for name in files} == files


# Flips


@given(st.lists(st.booleans(), max_size=20), st.lists(st.booleans(), max_size=20))
def test_gains_and_losses_explain_the_difference_of_what_is_solved(then: list[bool], now: list[bool]) -> None:
    before, after = [row(i, ok) for i, ok in enumerate(then)], [row(i, ok) for i, ok in enumerate(now)]
    found = flips(before, after)
    both = min(len(then), len(now))
    assert sum(now[:both]) - sum(then[:both]) == sum(1 if one.solved else -1 for one in found)
    assert {one.item for one in found} == {f"seed:{i}" for i in range(both) if then[i] != now[i]}


def test_an_eval_is_compared_with_the_one_before_it_also_over_attempts() -> None:
    before = [row(0, True), row(1, False), row(2, True)]
    one = standing(summary(0, 1), summary(10, 2), summary(30, 3, attempt=1), resumed={2: 20})
    store: MemoryStore = one._store  # type: ignore[assignment]
    store.objects[RunKeys("maze-1").eval_rows(1, 10, EvalSet.FIXED)] = rows_to_lines(before)
    compared = one.compared(EvalSet.FIXED, 20, [row(0, True), row(1, True), row(2, False)])
    assert compared is not None
    step, flipped = compared
    assert step == 10, "step 30 of attempt 1 was trained again and does not count"
    assert [(f.item, f.solved) for f in flipped] == [("seed:1", True), ("seed:2", False)]


@pytest.mark.parametrize("content", [b"", b"{", b'{"item": 1}'])
def test_rows_of_an_older_attempt_that_cannot_be_read_cost_the_comparison_and_nothing_else(content: bytes) -> None:
    one = standing(summary(10, 2), resumed={2: 10})
    store: MemoryStore = one._store  # type: ignore[assignment]
    store.objects[RunKeys("maze-1").eval_rows(1, 10, EvalSet.FIXED)] = content
    assert one.compared(EvalSet.FIXED, 20, [row(0, True)]) is None
    assert one.compared(EvalSet.HOLDOUT, 20, [row(0, True)]) is None, "the first eval of a set has none before it"


# The end before the last step


@given(st.lists(st.integers(0, 64), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 20))
def test_a_plateau_is_never_declared_while_the_curve_rises(solved: list[int], evals: int, gain: int) -> None:
    curve, least = [n / 64 for n in solved], gain / 64
    quiet = evals_without_rise(curve, least)
    assert 0 <= quiet < len(curve)
    if quiet >= evals:
        before, last = curve[:-evals], curve[-evals:]
        assert max(last) < max(before) + least, "none of the last evals is a rise above the best of before"
    climbing = [min(1.0, i * least) for i in range(len(curve)) if i * least <= 1.0]
    assert evals_without_rise(climbing, least) == 0
    assert evals_without_rise([*curve, *[curve[-1]] * evals], least) >= evals or quiet == 0


def test_small_steps_up_that_add_up_are_a_rise() -> None:
    assert evals_without_rise([0.50, 0.506, 0.512, 0.518, 0.524], 0.01) == 0
    assert evals_without_rise([0.50, 0.506, 0.50, 0.506, 0.50], 0.01) == 4


PLATEAU = {"plateau": {"evals": 2, "min_gain": 0.05}}
TARGET = {"target": {"success": 0.9, "evals": 2, "stop": True}}


@pytest.mark.parametrize(
    ("asked", "solved", "cause"),
    [
        ({}, [28, 28, 28, 28], None),
        (PLATEAU, [28, 28], None),
        (PLATEAU, [28, 28, 28], OutcomeCause.PLATEAU),
        (PLATEAU, [28, 40, 50, 50], None),
        (PLATEAU, [28, 40, 40, 30], OutcomeCause.PLATEAU),
        (TARGET, [28, 60, 50, 60], None),
        (TARGET, [28, 40, 60, 62], OutcomeCause.TARGET_REACHED),
        (TARGET | PLATEAU, [28, 60, 60, 60], OutcomeCause.TARGET_REACHED),
        ({"target": {"success": 0.9, "stop": False}}, [28, 60, 62], None),
    ],
)
def test_a_run_ends_early_where_its_evals_say_so_and_the_controller_believes_it(
    asked: dict[str, Any], solved: list[int], cause: OutcomeCause | None
) -> None:
    wanted = spec(**asked)
    evals = [summary(10 * i, n) for i, n in enumerate(solved)]
    last = evals[-1].step
    job = standing(*evals, asked=wanted)
    ended = job.ends_early(last)
    assert (ended.cause if ended else None) is cause
    assert job.ends_early(last + 1) is None, "only where it was just evaluated"
    found = results(evals, [export(last)], [attempt(1)])
    claims = {OutcomeCause.TARGET_REACHED, OutcomeCause.PLATEAU}
    believed = {claim for claim in claims if may_end_early(found, wanted, claim)}
    assert cause in believed if cause is not None else not believed
    assert not may_end_early(found, wanted, OutcomeCause.FINISHED)


def test_the_baseline_alone_ends_nothing() -> None:
    assert standing(summary(0, 64), asked=spec(target={"success": 0.5, "stop": True})).ends_early(0) is None
    assert not is_at_plateau(results([summary(0, 28)], [], [attempt(1)]), spec(**PLATEAU).plateau)  # type: ignore[arg-type]
