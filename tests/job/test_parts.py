"""The rules that the job is made of: shares of work, advantages, causes, progress, uploads."""

from __future__ import annotations

import errno
import threading
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nightshift.contract import Control, ControlCommand, EvalSet, EvalSummary, OutcomeCause, Phase, RunKeys, SeedData
from nightshift.contract.spec import Training
from tests.job.support import wait_for
from training_job.curve import draw_curve
from training_job.errors import BadConfiguration, StorageUnreachable, WorkerLost, classify
from training_job.evals import Episode, curve_of, pass_at_1, rows_of
from training_job.job import first_progress
from training_job.plug import SeedItems
from training_job.progress import ProgressReporter
from training_job.standing import held_at_the_end
from training_job.store import Uploader
from training_job.trainers.local.batches import prompts_of, steps_per_epoch, train_episodes
from training_job.trainers.local.grpo import group_advantages
from training_job.trainers.local.workers import split


class MemoryStore:
    """A bucket in memory that can be slow or refuse."""

    def __init__(self, delay: float = 0.0) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.delay, self.refuse = delay, False
        self.open = threading.Event()
        self.open.set()

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def get_small(self, key: str, limit: int) -> bytes | None:
        return self.objects.get(key)

    def put(self, key: str, content: bytes) -> None:
        self.open.wait(10)
        time.sleep(self.delay)
        if self.refuse:
            raise EndpointConnectionError(endpoint_url="http://gone")
        self.puts.append(key)
        self.objects[key] = content

    def listing(self, prefix: str) -> dict[str, str]:
        return {key: "" for key in self.objects if key.startswith(prefix)}


def _no_warnings(line: str) -> None:
    raise AssertionError(line)


# Work


@given(st.lists(st.integers(), max_size=50), st.integers(1, 8))
def test_shards_are_all_of_the_work_in_order_and_none_is_empty(work: list[int], count: int) -> None:
    shards = split(work, count)
    assert [one for shard in shards for one in shard] == work
    assert len(shards) <= count and all(shards)
    assert max(map(len, shards), default=0) - min(map(len, shards), default=0) <= 1


@given(st.integers(0, 50), st.integers(4, 40), st.integers(1, 4), st.integers(1, 60))
def test_an_epoch_shows_each_item_at_most_once_and_any_step_can_be_had_alone(
    seed: int, count: int, batch: int, step: int
) -> None:
    items = SeedItems(SeedData(kind="seeds", start=100, stop=100 + count))
    training = Training(seed=seed, train_batch_size=batch)
    per_epoch = steps_per_epoch(items, training)
    first = ((step - 1) // per_epoch) * per_epoch + 1
    epoch = [number for one in range(first, first + per_epoch) for number in prompts_of(one, items, training)]
    assert len(epoch) == len(set(epoch)) == per_epoch * batch <= count
    assert set(epoch) <= set(range(count))
    dice = [episode.dice for episode in train_episodes(step, items, training)]
    assert len(set(dice)) == len(dice) == batch * training.n_samples_per_prompt


def test_fewer_items_than_a_batch_are_refused_by_field() -> None:
    with pytest.raises(BadConfiguration, match="only 3 train items"):
        steps_per_epoch(SeedItems(SeedData(kind="seeds", start=0, stop=3)), Training(train_batch_size=4))


@given(st.lists(st.lists(st.sampled_from([0.0, 0.2, 0.8, 1.0]), min_size=4, max_size=4), min_size=1, max_size=6))
def test_advantages_are_relative_to_their_group(scores: list[list[float]]) -> None:
    advantages = group_advantages(np.array(scores).reshape(-1), 4).reshape(-1, 4)
    for group, values in zip(scores, advantages, strict=True):
        assert abs(values.sum()) < 1e-4
        if len(set(group)) == 1:
            assert not values.any(), "a group of equal scores teaches nothing"
        else:
            assert [v > 0 for v in values] == [s > np.mean(group) for s in group]
            assert np.std(values) == pytest.approx(1.0, abs=1e-3)


# Evals


def _episode(rewards: list[float]) -> Episode:
    return Episode("seed:1", {"seed": 1}, "", ["x"] * len(rewards), rewards, "stop")


def test_success_follows_the_tasks_rule_and_pass_at_1_counts_format() -> None:
    episodes = [_episode([0.0, 1.0]), _episode([0.0, 0.2]), _episode([0.0]), _episode([0.8])]
    assert [row.success for row in rows_of(episodes, 0.8)] == [True, False, False, True]
    assert pass_at_1(episodes) == 0.75


def _summary(step: int, attempt: int = 1, solved: int = 5, kind: EvalSet = EvalSet.FIXED) -> EvalSummary:
    return EvalSummary(
        run_id="r", attempt=attempt, step=step, eval_set=kind, solved=solved, of=10, low=max(0, solved / 10 - 0.2),
        high=min(1, solved / 10 + 0.2), avg_score=0.5, pass_at_1=1.0, rows_sha256="0" * 64, at=datetime.now(UTC),
    )  # fmt: skip


def test_a_curve_has_one_point_a_step_of_the_newest_attempt() -> None:
    found = [_summary(0), _summary(4, 1, 6), _summary(4, 2, 7), _summary(8, 2, 9), _summary(8, 2, 1, EvalSet.HOLDOUT)]
    assert [(one.step, one.attempt, one.solved) for one in curve_of(found)] == [(0, 1, 5), (4, 2, 7), (8, 2, 9)]


@pytest.mark.parametrize(("solved", "held"), [([], 0), ([9], 1), ([9, 8], 0), ([8, 9, 10], 2), ([10, 10, 10], 3)])
def test_a_target_is_held_as_often_as_the_last_evals_in_a_row_reach_it(solved: list[int], held: int) -> None:
    assert held_at_the_end([_summary(4 * i, 1, n) for i, n in enumerate(solved)], 0.9) == held


def test_the_curve_is_drawn_whatever_is_missing(tmp_path: Any) -> None:
    path = tmp_path / "curve.png"
    for summaries in ([_summary(0)], [_summary(0), _summary(0, kind=EvalSet.HOLDOUT), _summary(4), _summary(8, 2, 9)]):
        path.write_bytes(draw_curve("r", summaries, {2: 4}, 0.95, 1.0))
        assert Image.open(path).size == (960, 540)
    with pytest.raises(ValueError, match="at least one eval"):
        draw_curve("r", [_summary(0, kind=EvalSet.HOLDOUT)], {}, None, None)


# Causes


class ActorDiedError(Exception):
    """Named as Ray's."""


class _Wrapper(Exception):
    """As Ray's RayTaskError: the cause is an attribute."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("wrapped")
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutcomeCause.STORAGE_FULL, 75),
        (OSError(errno.EDQUOT, "quota"), OutcomeCause.STORAGE_FULL, 75),
        (OSError(errno.ESTALE, "Stale file handle"), OutcomeCause.STORAGE_UNREACHABLE, 75),
        (RuntimeError("CUDA out of memory. Tried to allocate"), OutcomeCause.GPU_OUT_OF_MEMORY, 70),
        (MemoryError(), OutcomeCause.HOST_OUT_OF_MEMORY, 70),
        (ActorDiedError("gone"), OutcomeCause.WORKER_LOST, 75),
        (_Wrapper(BadConfiguration("task.environment", "no")), OutcomeCause.BAD_CONFIGURATION, 65),
        (_Wrapper(OSError(errno.ENOSPC, "full")), OutcomeCause.STORAGE_FULL, 75),
        (NoCredentialsError(), OutcomeCause.CREDENTIALS_EXPIRED, 75),
        (ClientError({"Error": {"Code": "ExpiredToken"}}, "PutObject"), OutcomeCause.CREDENTIALS_EXPIRED, 75),
        (EndpointConnectionError(endpoint_url="http://s3"), OutcomeCause.STORAGE_UNREACHABLE, 75),
        (FileNotFoundError("config"), OutcomeCause.CODE_ERROR, 70),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "PutObject"), OutcomeCause.CODE_ERROR, 70),
        (ZeroDivisionError("by zero"), OutcomeCause.CODE_ERROR, 70),
    ],
)
def test_every_exception_has_a_cause_and_an_exit_code(error: Exception, cause: OutcomeCause, code: int) -> None:
    known = classify(error)
    assert (known.outcome, known.exit_code) == (cause, code)


def test_an_error_of_the_code_tells_its_last_lines_and_no_more() -> None:
    def deep(n: int) -> int:
        return deep(n - 1) if n else 1 // 0

    with pytest.raises(ZeroDivisionError) as raised:
        deep(200)
    text = str(classify(raised.value))
    assert text.startswith("ZeroDivisionError: ") and "1 // 0" in text
    assert len(text.splitlines()) <= 13


def test_a_cause_that_was_raised_on_purpose_wins_over_what_it_came_from() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as inner:
            raise WorkerLost("seen from outside") from inner
    except WorkerLost as error:
        assert classify(error) is error


# Progress and control


def _reporter(store: MemoryStore, **fields: Any) -> ProgressReporter:
    return ProgressReporter(store, first_progress("run", 1, 100, 0), **fields)


def test_reporting_never_waits_and_the_last_value_wins() -> None:
    store = MemoryStore()
    store.open.clear()
    reporter = _reporter(store, warn=_no_warnings)
    began = time.perf_counter()
    for step in range(1, 101):
        reporter.report(step=step, phase=Phase.TRAIN)
    assert time.perf_counter() - began < 1.0
    store.open.set()
    assert reporter.close(10)
    assert reporter.current.step == 100
    assert (
        b'"step": 100' in store.objects[RunKeys("run").progress(1)]
        or b'"step":100' in store.objects[RunKeys("run").progress(1)]
    )
    assert len(store.puts) <= 3, "what nobody could read in between must not be written"


def test_progress_that_cannot_be_written_is_told_and_does_not_raise() -> None:
    store, told = MemoryStore(), []
    store.refuse = True
    reporter = _reporter(store, warn=told.append)
    assert not reporter.close(1.5)
    assert "could not be written" in told[0]


def test_a_request_is_pending_until_it_is_acknowledged_and_old_ones_are_not() -> None:
    store = MemoryStore()
    control = Control(run_id="run", seq=3, command=ControlCommand.CHECKPOINT_NOW, reason="", at=datetime.now(UTC))
    store.objects[RunKeys("run").control] = control.to_json().encode()
    seen_before = _reporter(store, acknowledged=3)
    fresh = _reporter(store, acknowledged=2)
    assert wait_for(fresh.pending_control, 5) == control
    fresh.report(acknowledged=3)
    assert fresh.pending_control() is None
    assert seen_before.read_control_now() is None
    for reporter in (fresh, seen_before):
        assert reporter.close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2}', b'{"command": "format_disk"}'])
def test_a_control_file_that_is_no_request_is_left_alone(content: bytes) -> None:
    store = MemoryStore()
    store.objects[RunKeys("run").control] = content
    reporter = _reporter(store, warn=lambda line: None)
    assert reporter.read_control_now() is None
    assert reporter.close()


# Uploads


def test_uploads_keep_their_order() -> None:
    store = MemoryStore(delay=0.002)
    uploader = Uploader(store)
    keys = [f"key-{i}" for i in range(30)]
    for key in keys:
        uploader.put(key, b"x")
    uploader.flush(10)
    assert store.puts == keys


def test_nothing_is_uploaded_after_a_failure_and_the_failure_is_raised() -> None:
    store = MemoryStore()
    store.refuse = True
    uploader = Uploader(store)
    uploader.put("files", b"x")
    with pytest.raises(StorageUnreachable, match="S3 does not answer"):
        uploader.flush(5)
    store.refuse = False
    with pytest.raises(StorageUnreachable):
        uploader.put("record that says the files are there", b"x")
    assert store.puts == []


def test_a_store_that_hangs_is_given_up() -> None:
    store = MemoryStore()
    store.open.clear()
    uploader = Uploader(store)
    uploader.put("key", b"x")
    with pytest.raises(StorageUnreachable, match="did not finish within"):
        uploader.flush(0.3)
    store.open.set()
