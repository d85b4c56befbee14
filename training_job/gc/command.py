"""``python -m training_job gc``: one pass over /shared, printed as lines or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from nightshift.contract import ExitCode
from training_job.clock import now
from training_job.doctor.storage import shared_mount
from training_job.errors import classify
from training_job.gc.records import Records, run_ids_of, with_spec
from training_job.gc.rule import Fate, Periods, RunFacts
from training_job.gc.sweep import Pass, sweep
from training_job.gc.trash import TRASH
from training_job.store import S3Store

GB: Final = 1_000_000_000


class Aws:
    """``Knowledge`` over the real table and bucket; credentials and endpoint come from the environment."""

    def __init__(self, bucket: str, table: str) -> None:
        import boto3
        from botocore.config import Config

        patient: Any = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})
        self._bucket, self._s3, self._store = bucket, boto3.client("s3", config=patient), S3Store(bucket)
        self._records = Records(boto3.client("dynamodb", config=patient), table)

    def everyone(self) -> set[str]:
        return run_ids_of(self._s3, self._bucket)

    def records(self, run_ids: Iterable[str]) -> dict[str, RunFacts]:
        return self._records.facts(run_ids)

    def with_spec(self, facts: RunFacts) -> RunFacts:
        return with_spec(facts, self._store)


def gc(
    bucket: str,
    table: str,
    shared: Path | None,
    periods: Periods,
    dry_run: bool,
    as_json: bool,
    say: Callable[[str], None] = print,
    clock: Callable[[], datetime] = now,
) -> int:
    """0 where everything that was to be done is done; 75 where something could not be: the next pass tries again."""
    mount = shared_mount(shared)
    if not (mount / "runs").is_dir():
        say(f"NO  {mount} has no folder runs: is the filesystem mounted? Nothing was looked at.")
        return int(ExitCode.TEMPORARY)
    try:
        done = sweep(mount.resolve(), Aws(bucket, table), periods, clock, dry_run)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from knowing keeps it from removing; it is told
        say(f"NO  nothing more was removed: {classify(error).outcome}: {type(error).__name__}: {str(error)[:500]}")
        return int(ExitCode.TEMPORARY)
    say(json.dumps(document(done), indent=1) if as_json else text(done))
    return int(ExitCode.TEMPORARY if done.failed else ExitCode.OK)


def text(done: Pass) -> str:
    """A line for each thing: what becomes of it, how many bytes, where, and why."""
    move, delete, back = (
        ("would move", "would delete", "would put back") if done.dry_run else ("moved", "deleted", "put back")
    )
    deleted = [(entry, why) for entry, fate, why in done.trash if fate is Fate.DELETED]
    lines = [_line(move, one.size, one.path, one.why) for one in done.moved]
    lines += [_line(delete, one.size, f"{TRASH}/{one.name} ({one.path})", why) for one, why in deleted]
    if done.dry_run:
        lines += [_line(back, one.size, one.path, why) for one, fate, why in done.trash if fate is Fate.PUT_BACK]
    lines += [f"{back:<15}{'':>12}  {path}: {why}" for path, why in done.put_back]
    lines += [_line("kept", one.size, one.path, one.why) for one in done.kept]
    lines += [
        _line("in the trash", one.size, f"{TRASH}/{one.name} ({one.path})", why)
        for one, fate, why in done.trash
        if fate is Fate.STAYS
    ]
    lines += [f"{'kept':<15}{'':>12}  {TRASH}/{name}: no journal says where it belongs" for name in done.odd]
    lines += [f"{'NO':<15}{'':>12}  {sentence}" for sentence in done.failed]
    sums = {
        move: sum(one.size for one in done.moved),
        delete: sum(entry.size for entry, _ in deleted),
        "kept": sum(one.size for one in done.kept),
    }
    told = ", ".join(f"{name} {_size(size)}" for name, size in sums.items())
    return "\n".join([*lines, f"\nin all: {told}; {len(done.failed)} could not be done"])


def _line(what: str, size: int, path: str, why: str) -> str:
    return f"{what:<15}{_size(size):>12}  {path}: {why}"


def _size(size: int) -> str:
    return f"{size / GB:,.1f} GB" if size >= GB / 10 else f"{size / 1e6:,.1f} MB"


def document(done: Pass) -> dict[str, Any]:
    """The same for a program."""
    raw: dict[str, Any] = json.loads(json.dumps(asdict(done), default=str))
    raw["trash"] = [{**one, "fate": fate, "why": why} for one, fate, why in raw["trash"]]
    return raw
