"""Collecting garbage on a real folder, by real records and specs: what is told is what is done, a kill loses nothing, and nothing
outside is ever touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.contract import RunKeys, SharedPaths
from nightshift.contract.api import Retry
from nightshift.contract.upgrades import spec_file
from nightshift.core.reopen import reopening
from nightshift.core.run import RunState
from tests.builders import run, spec
from tests.steps.world import create_table
from training_job.__main__ import main
from training_job.gc import sweep as sweeping
from training_job.gc.command import Aws, gc
from training_job.gc.rule import Periods, RunFacts
from training_job.gc.sweep import Pass, sweep
from training_job.gc.trash import TRASH, NotBelow, Trash, parts_of
from training_job.pins import Pin, Pins
from training_job.staging import STAGED, take_staged

NOW = datetime(2026, 12, 20, 3, tzinfo=UTC)
DAY = timedelta(days=1)
MODEL = "hf://owner/model@main"
BUCKET = "space-tests"


def files(paths: SharedPaths, steps: Sequence[int]) -> None:
    """What a run leaves on the shared mount."""
    for step in steps:
        (paths.checkpoint(step) / "policy").mkdir(parents=True)
        (paths.checkpoint(step) / "policy" / "model.pt").write_bytes(b"m" * 1_000)
    for path in (paths.logs / "infra.log", paths.data / "rows.jsonl", paths.lora_sync / "x"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 10)
    paths.ckpts.mkdir(exist_ok=True)
    paths.pointer.write_text(str(max(steps, default=0)))


@dataclass
class Site:
    """A deployment's table and bucket, and a shared mount."""

    mount: Path
    store: DynamoRunStore
    s3: Any

    def has(self, run_id: str, state: RunState, days: float, *steps: int, **asked: Any) -> None:
        """A run with its spec, checkpoints and other files; over for so many days, where its state is final."""
        self.s3.put_object(Bucket=BUCKET, Key=RunKeys(run_id).spec, Body=spec_file(spec(run_id=run_id)))
        if asked:
            raw = json.loads(spec_file(spec(run_id=run_id))) | asked
            self.s3.put_object(Bucket=BUCKET, Key=RunKeys(run_id).spec, Body=json.dumps(raw).encode())
        there, _ = self.store.create(
            run(run_id=run_id, state=RunState.ADMITTED, attempt=0, verified_step=max(steps, default=0))
        )
        if state.is_final:
            self.store.finish(there, state, ended_at=NOW - days * DAY)
            self.store.told(run_id)
        files(SharedPaths(run_id, self.mount), steps)

    def retried(self, run_id: str) -> None:
        there = self.store.get(run_id)
        assert there is not None
        assert self.store.reopen(there, **reopening(there, Retry(), NOW)) is not None

    def model(self, digest: str, days: float, address: str = MODEL) -> Path:
        folder = self.mount / "models" / (digest * 64)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"w" * 5_000)
        (folder / STAGED).write_text(json.dumps({"address": address, "files": {"weights": 5_000}}))
        at = (NOW - days * DAY).timestamp()
        os.utime(folder / STAGED, (at, at))
        return folder

    def sweep(self, at: datetime = NOW, dry_run: bool = False, **periods: int) -> Pass:
        return sweep(self.mount, Aws(BUCKET, "runs"), Periods(**periods), lambda: at, dry_run)

    def tree(self) -> set[str]:
        """Every file, without what is in the trash."""
        return {
            path.relative_to(self.mount).as_posix()
            for path in self.mount.rglob("*")
            if not path.is_dir() and TRASH not in path.parts
        }

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.mount.rglob("*") if path.is_file() and TRASH not in path.parts)


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    """One for all accounts: reading the services' descriptions is what costs most."""
    return boto3.Session("testing", "testing", region_name="us-east-1")


@pytest.fixture
def site(session: boto3.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(boto3, "client", session.client)
    (tmp_path / "shared" / "runs").mkdir(parents=True)
    with mock_aws():
        s3 = session.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        yield Site(tmp_path / "shared", DynamoRunStore(create_table(session)), s3)


def several(site: Site) -> None:
    site.has("fresh", RunState.SUCCEEDED, 1, 4, 8)
    site.has("week-old", RunState.SUCCEEDED, 7, 4, 8)
    site.has("old", RunState.SUCCEEDED, 15, 4, 8)
    site.has("failed", RunState.FAILED, 15, 4)
    site.has("failed-long-ago", RunState.FAILED, 31, 4)
    site.has("running", RunState.RUNNING, 0, 4, 8)
    site.has("parent", RunState.SUCCEEDED, 100, 4, 8)
    site.has("child", RunState.QUEUED, 0, parent="parent@4")
    (site.mount / "runs" / "unknown-run").mkdir()
    (site.mount / "runs" / "unknown-run" / "file").write_text("whose?")
    (site.mount / "datasets").mkdir()
    (site.mount / "datasets" / "rows.parquet").write_text("a person's")
    site.model("a", 61)
    site.model("b", 59)


GONE = {"runs/old/", "runs/failed-long-ago/", "runs/week-old/ckpts/global_step_4/", "runs/week-old/logs/",
        "runs/week-old/data/", "runs/week-old/lora_sync/", f"models/{'a' * 64}/"}  # fmt: skip


def test_a_dry_run_says_what_would_go_and_why_and_changes_nothing_and_a_pass_does_just_that(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    several(site)
    before, size = site.tree(), site.bytes()
    told: list[str] = []
    assert gc(BUCKET, "runs", site.mount, Periods(), True, False, told.append, lambda: NOW) == 0

    assert site.tree() == before and not (site.mount / TRASH).exists()
    lines = [line.split() for line in told[0].splitlines()]
    assert {line[4].rstrip(":") for line in lines if line[:2] == ["would", "move"]} == {one.rstrip("/") for one in GONE}
    said = told[0]
    assert (
        "runs/week-old/ckpts/global_step_4: succeeded on 2026-12-13 03:00: beside its newest verified checkpoint (8)"
        in said
    )
    assert "runs/running: its run is not over: admitted" in said
    assert "runs/parent: run child names it as its parent" in said
    assert "runs/unknown-run: nothing is known of its run" in said

    done = site.sweep()
    assert not done.failed
    assert site.tree() == {path for path in before if not path.startswith(tuple(GONE))}
    assert sum(one.size for one in done.moved) == size - site.bytes()
    again = site.sweep()
    assert (again.moved, again.put_back, again.failed) == ([], [], []), "a second pass finds nothing more to do"

    assert [fate for _, fate, _ in again.trash] == ["stays"] * len(GONE)
    late = site.sweep(NOW + 3 * DAY, succeeded=100, failed=100, rest=100, models=1_000)
    assert [fate for _, fate, _ in late.trash] == ["deleted"] * len(GONE)
    assert list((site.mount / TRASH).iterdir()) == []


def test_a_run_that_goes_on_has_everything_back_from_the_trash(site: Site) -> None:
    site.has("failed", RunState.FAILED, 31, 4, 8)
    before = site.tree()
    site.sweep()
    assert site.tree() == set()
    site.retried("failed")
    done = site.sweep(NOW + 10 * DAY)
    assert site.tree() == before and [path for path, _ in done.put_back] == ["runs/failed"]
    assert list((site.mount / TRASH).iterdir()) == []


def test_what_cannot_be_put_back_is_kept_and_told(site: Site) -> None:
    site.has("failed", RunState.FAILED, 31, 4)
    site.sweep()
    site.retried("failed")
    (site.mount / "runs" / "failed").mkdir()
    for days in (0, 30):
        done = site.sweep(NOW + days * DAY)
        assert "something else is there now" in done.failed[0]
    assert len(list((site.mount / TRASH).iterdir())) == 1


@pytest.mark.parametrize("moment", ["before the move", "after the move", "before the deletion"])
def test_a_retry_that_comes_in_the_middle_of_a_pass_loses_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    site.has("failed", RunState.FAILED, 31, 4, 8)
    before = site.tree()
    if moment == "before the deletion":
        site.sweep()
    step: dict[str, Callable[..., Any]] = {
        "before the move": sweeping.judge, "after the move": Trash.move, "before the deletion": sweeping.judge_trash,
    }  # fmt: skip
    wrapped = step[moment]

    holder: Any = Trash if moment == "after the move" else sweeping

    def retried(*arguments: Any) -> Any:
        answer = wrapped(*arguments)
        monkeypatch.setattr(holder, wrapped.__name__, wrapped)
        site.retried("failed")
        return answer

    monkeypatch.setattr(holder, wrapped.__name__, retried)
    done = site.sweep(NOW + 4 * DAY)
    assert site.tree() == before and not done.failed


def test_a_child_that_is_asked_for_in_the_middle_of_a_pass_has_its_parent_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.has("parent", RunState.SUCCEEDED, 100, 4, 8)
    before = site.tree()
    judge = sweeping.judge

    def asked(*arguments: Any) -> Any:
        answer = judge(*arguments)
        site.has("child", RunState.ADMITTED, 0, parent="parent@best")
        return answer

    monkeypatch.setattr(sweeping, "judge", asked)
    done = site.sweep()
    assert before <= site.tree() and done.put_back == [("runs/parent", "run child names it as its parent")]


def test_a_model_that_is_taken_again_stays_also_when_that_happens_in_the_middle_of_a_pass(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, pinned, taken = site.model("a", 90), site.model("b", 90), site.model("c", 90)
    assert take_staged(used)
    site.has("lately", RunState.SUCCEEDED, 2, 4)
    Pins(SharedPaths("lately", site.mount)).write(
        Pin(field="model.source", source=MODEL, address=MODEL, content="b" * 64)
    )
    move = Trash.move

    def moved(*arguments: Any) -> Any:
        answer = move(*arguments)
        at = NOW.timestamp()
        os.utime(site.mount / TRASH / answer.name / "content" / STAGED, (at, at))
        return answer

    monkeypatch.setattr(Trash, "move", moved)
    done = site.sweep()
    assert [path for path, _ in done.put_back] == [taken.relative_to(site.mount).as_posix()]
    assert used.exists() and pinned.exists() and taken.exists() and take_staged(taken)
    monkeypatch.setattr(Trash, "move", move)
    site.has("queued", RunState.QUEUED, 0, model={"source": "hf://owner/model@other-branch"})
    late = site.sweep(NOW + 400 * DAY)
    assert [one.path for one in late.moved] == ["runs/lately"], "a run that waits may mean any of the models"


class Killed(BaseException):
    """The process is gone: nothing catches it."""


def killed_at(number: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on the n-th change of the file system is the last thing that happens, or just does not happen."""
    done: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if len(done) == number and not after:
                raise Killed
            answer = real(*arguments, **named)
            done.append(name)
            if len(done) > number:
                raise Killed
            return answer

        monkeypatch.setattr(os, name, call)

    for name in ("rename", "mkdir", "unlink", "rmdir"):
        wrap(name)
    return done


@dataclass
class Known:
    """``Knowledge`` in memory: a pass for each change of the file system would ask AWS a thousand times."""

    facts: dict[str, RunFacts]

    def everyone(self) -> set[str]:
        return set(self.facts)

    def records(self, run_ids: Iterable[str]) -> dict[str, RunFacts]:
        return {one: self.facts.get(one, RunFacts(one)) for one in run_ids}

    def with_spec(self, facts: RunFacts) -> RunFacts:
        return facts


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_change_of_the_file_system_loses_nothing_and_the_next_passes_end_what_was_begun(
    tmp_path: Path, after: bool
) -> None:
    template, mount = tmp_path / "template", tmp_path / "shared"
    for run_id, steps in (("old", (4,)), ("week-old", (4, 8)), ("failed", (4,)), ("again", (4,))):
        files(SharedPaths(run_id, template), steps)
    runs = Known(
        {
            "old": RunFacts("old", "succeeded", NOW - 100 * DAY, 4),
            "week-old": RunFacts("week-old", "succeeded", NOW - 7 * DAY, 8),
            "failed": RunFacts("failed", "failed", NOW - 100 * DAY, 4),
            "again": RunFacts("again", "running", None, 4),
        }
    )
    trash = Trash(template)
    for run_id in ("failed", "again"):  # one has its time behind it, and one goes on again
        trash.move(f"runs/{run_id}", 1, "why", run_id, NOW - 4 * DAY)
    stay = ("runs/week-old/ckpts/global_step_8/", "runs/week-old/ckpts/latest", "runs/again/")

    kills = 0
    for number in range(300):
        shutil.rmtree(mount, ignore_errors=True)
        shutil.copytree(template, mount)
        with pytest.MonkeyPatch.context() as patch:
            killed_at(number, after, patch)
            try:
                sweep(mount, runs, Periods(), lambda: NOW, False)
            except Killed:
                kills += 1
            else:
                break
        journals = [json.loads(one.read_text())["path"] for one in (mount / TRASH).glob("*/journal.json")]
        for run_id in ("week-old", "again"):
            assert (mount / "runs" / run_id).is_dir() or f"runs/{run_id}" in journals, (
                "where it is from is written down"
            )
        for days in (0, 8, 16):
            assert not sweep(mount, runs, Periods(succeeded=50), lambda days=days: NOW + days * DAY, False).failed  # type: ignore[misc]
        left = {path.relative_to(mount).as_posix() for path in mount.rglob("*") if path.is_file()}
        assert {path for path in left if not path.startswith(stay)} == set(), f"killed at change {number}"
        assert len(left) == 2 + 5 and list((mount / TRASH).iterdir()) == []
    assert kills >= 30, "every change of the file system was the last one once"


def test_no_link_is_followed_out_of_the_mount_and_nothing_outside_is_touched(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "global_step_4").mkdir(parents=True)
    (outside / "global_step_4" / "precious").write_text("a person's")
    for run_id in ("linked", "linked-ckpts", "links-inside"):
        site.has(run_id, RunState.SUCCEEDED, 100, 4)
    shutil.rmtree(site.mount / "runs" / "linked")
    (site.mount / "runs" / "linked").symlink_to(outside)
    shutil.rmtree(site.mount / "runs" / "linked-ckpts" / "ckpts")
    (site.mount / "runs" / "linked-ckpts" / "ckpts").symlink_to(outside)
    (site.mount / "runs" / "links-inside" / "data" / "away").symlink_to(outside)
    (site.mount / "models").symlink_to(outside)
    done = site.sweep()
    assert [one.path for one in done.moved] == ["runs/links-inside"] and not done.failed
    site.sweep(NOW + 4 * DAY)
    assert list((site.mount / TRASH).iterdir()) == []
    assert (outside / "global_step_4" / "precious").read_text() == "a person's"


def test_a_trash_that_is_a_link_is_not_used(site: Site, tmp_path: Path) -> None:
    site.has("old", RunState.SUCCEEDED, 100, 4)
    (tmp_path / "elsewhere").mkdir()
    (site.mount / TRASH).symlink_to(tmp_path / "elsewhere")
    before = site.tree()
    told: list[str] = []
    assert gc(BUCKET, "runs", site.mount, Periods(), False, False, told.append, lambda: NOW) == 75
    assert site.tree() == before and list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        "runs",
        "/etc/passwd",
        "../x",
        "runs/../x",
        "runs/./x",
        "runs//x",
        "datasets/x",
        "runs/NO_RUN",
        "models/..",
        "runs/a/../b",
    ],
)
def test_a_path_that_is_none_of_ours_is_refused_also_from_a_journal(path: str, tmp_path: Path) -> None:
    with pytest.raises(NotBelow):
        parts_of(path)
    (tmp_path / "x").write_text("here")
    with pytest.raises(NotBelow):
        Trash(tmp_path).move(path, 1, "why", None, NOW)
    entry = tmp_path / TRASH / "20261201T000000-01234567"
    entry.mkdir(parents=True)
    (entry / "content").write_text("there")
    raw = {"version": 1, "path": path, "size": 1, "why": "w", "moved_at": NOW.isoformat()}
    (entry / "journal.json").write_text(json.dumps(raw))
    assert Trash(tmp_path).entries(NOW + 100 * DAY) == ([], [entry.name]), "nobody knows what it is, so it stays"
    assert (entry / "content").read_text() == "there"


@pytest.mark.parametrize("fault", ["no table", "no bucket", "no mount", "unreadable spec", "unreadable record"])
def test_what_is_not_known_keeps_everything(site: Site, fault: str) -> None:
    site.has("old", RunState.SUCCEEDED, 100, 4)
    site.has("live", RunState.RUNNING, 0, 4)
    before = site.tree()
    bucket, table, mount = BUCKET, "runs", site.mount
    match fault:
        case "no table":
            table = "nobodys"
        case "no bucket":
            bucket = "nobodys-bucket"
        case "no mount":
            mount = site.mount / "elsewhere"
        case "unreadable spec":
            site.s3.put_object(Bucket=BUCKET, Key=RunKeys("live").spec, Body=b'{"parent": 7}')
        case "unreadable record":
            site.s3.delete_object(Bucket=BUCKET, Key=RunKeys("live").spec)
            site.store._table.update_item(
                Key={"pk": "RUN#live", "sk": "RUN"},
                UpdateExpression="SET verified_step = :x",
                ExpressionAttributeValues={":x": "x"},
            )
    told: list[str] = []
    code = gc(bucket, table, mount, Periods(), False, False, told.append, lambda: NOW)
    assert site.tree() == before
    assert code == (0 if fault.startswith("unreadable") else 75)
    assert ("run live is not over and what it needs is not known" if code == 0 else "NO  ") in told[0]


def test_the_command_takes_its_periods_and_prints_json_for_programs(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.has("old", RunState.SUCCEEDED, 2_000, 4)
    wanted = ["gc", "--bucket", BUCKET, "--table", "runs", "--shared", str(site.mount), "--dry-run", "--json"]
    assert main(wanted) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["path"], one["size"]) for one in found["moved"]] == [("runs/old", 1031)] and found["dry_run"] is True
    assert main([*wanted, "--succeeded-days", "3650", "--rest-days", "3650"]) == 0
    assert json.loads(capsys.readouterr().out)["moved"] == []
    with pytest.raises(SystemExit) as usage:
        main([*wanted, "--trash-days", "-1"])
    assert usage.value.code == 64


def test_a_record_has_no_more_asked_of_it_than_its_role_may_read(site: Site) -> None:
    for number in range(101):
        site.store.create(run(run_id=f"run-{number}", state=RunState.ADMITTED))
    facts = Aws(BUCKET, "runs").records([f"run-{number}" for number in range(102)])
    assert {one.state for one in facts.values()} == {"admitted", None} and len(facts) == 102
