"""Lists, plans and downloads on a terminal: what a person reads, page by page, and what is never printed or overwritten."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import SPEC, Command, api, nightshift, written

__all__ = ["nightshift"]

ME = "arn:aws:sts::123456789012:assumed-role/Trainer/me@example.org"
LINE: dict[str, Any] = {
    "run_id": "maze-1", "state": "failed", "owner": ME, "pool": "default", "created_at": "2026-11-30T01:02:03Z",
    "attempt": 2, "step": 40, "total_steps": 400, "success": 0.5, "cause": "code_error",
}  # fmt: skip


def test_runs_are_listed_page_by_page_up_to_the_limit(nightshift: Command) -> None:
    other = LINE | {"run_id": "maze-2", "state": "running", "success": None, "cause": None}
    pages = [
        {"version": 1, "runs": [LINE], "next": "t1"},
        {"version": 1, "runs": [], "next": "t2"},
        {"version": 1, "runs": [other, LINE], "next": "t3"},
    ]
    with api(200, pages) as to:
        done = nightshift("list", "--state", "failed", "--owner", ME, "--limit", "2", "--api", to.address)

    assert done.returncode == 0
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["RUN", "STATE", "STEP", "SOLVED", "POOL", "AGE", "OWNER"]
    assert [row.split()[0] for row in rows] == ["maze-1", "maze-2"]
    assert "failed   40/400  50.0%" in rows[0] and "Trainer/me@example.org (code error)" in rows[0]
    paths = [path for _, path, _, _ in to.requests]
    assert (
        len(paths) == 3 and paths[0].startswith("/runs?state=failed&owner=arn%3Aaws") and paths[2].endswith("&next=t2")
    )


def test_an_empty_list_says_so(nightshift: Command) -> None:
    with api(200, {"version": 1, "runs": [], "next": None}) as to:
        assert nightshift("list", "--api", to.address).stdout == "no such run\n"


def test_the_newest_events_are_shown_newest_last(nightshift: Command) -> None:
    events = [{"at": f"2026-11-30T02:0{n}:00Z", "actor": "look", "what": f"look {n}\u001b[2J"} for n in (3, 2, 1)]
    with api(200, {"version": 1, "run_id": "maze-1", "events": events, "next": None}) as to:
        done = nightshift("events", "maze-1", "--limit", "2", "--api", to.address)

    assert [line.split()[-2:] for line in done.stdout.splitlines()] == [["2", "[2J"], ["3", "[2J"]]
    assert "order=newest" in to.requests[0][1] and "\x1b" not in done.stdout


def test_a_queue_shows_who_holds_the_pool_and_who_waits(nightshift: Command) -> None:
    waiting = [
        {"place": 1, "run_id": "maze-2", "owner": ME, "priority": "urgent", "created_at": "2026-11-30T02:00:00Z"}
    ]
    holder = {"run_id": "maze-1", "since": "2026-11-30T01:00:00Z", "state": "running", "step": 4, "total_steps": 9}
    with api(200, [{"version": 1, "pool": "default", "holder": holder, "waiting": waiting, "next": None},
                   {"version": 1, "pool": "default", "holder": None, "waiting": [], "next": None}]) as to:  # fmt: skip
        busy, free = (nightshift("queue", "default", "--api", to.address).stdout for _ in range(2))

    assert busy.startswith("pool default is held by maze-1 since 11-30 01:00:00 UTC (running, step 4 of 9)\nPLACE")
    assert "1      maze-2  urgent" in busy
    assert free == "pool default is free\nnobody waits for it\n"


PLAN: dict[str, Any] = {
    "version": 1, "run_id": "maze-demo", "spec_sha256": "0" * 64, "exists": False, "pool": "default", "owner": ME,
    "rollouts": {"gpus": 6, "per_step": 192, "per_gpu": 32.0, "updates_per_step": 2, "evals": 41, "eval_items": 64,
                 "checkpoints": 20, "max_rollback_steps": 20},
    "forecast": {"dollars_per_hour": 36.6, "prices_as_of": "2026-09-01", "wall_hours": 10, "gpu_hours": 50,
                 "most_dollars": 366.0},
    "ceiling": 0.78125, "capacity": [], "capacity_known": True, "holder": "maze-1", "waiting": 3, "spec": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({}, 0, "capacity: it fits"),
        ({}, 0, "cost: $36.60 an hour, at most $366.00 in 10 h (list prices of 2026-09-01)"),
        ({}, 0, "queue: pool default is held by maze-1, 3 before this one"),
        ({"capacity_known": False}, 0, "capacity: not known"),
        ({"waiting": None, "holder": None}, 0, "queue: Kueue decides"),
        ({"exists": True, "state": "running"}, 0, "asked for before"),
        ({"capacity": ["workers: 3 wanted, 1 there"]}, 65, "capacity: NO, workers: 3 wanted, 1 there"),
    ],
)
def test_a_plan_is_said_in_a_few_lines_and_fails_where_it_can_never_fit(
    tmp_path: Path, change: dict[str, Any], code: int, said: str, nightshift: Command
) -> None:
    with api(200, PLAN | change) as to:
        done = nightshift("plan", written(tmp_path, SPEC), "--api", to.address)

    assert done.returncode == code and said in done.stdout
    assert "192 rollouts on 6 GPUs (32 each), 2 updates" in done.stdout
    assert to.requests[0][:2] == ("POST", "/runs/plan")


def listed(to: Any, *objects: tuple[str, bytes, str | None]) -> dict[str, Any]:
    artifacts = [
        {"key": key, "size": len(body), "sha256": sha, "url": f"{to.address}/bucket/{number}?X-Amz-Signature=hush"}
        for number, (key, body, sha) in enumerate(objects)
    ]
    return {
        "version": 1, "run_id": "maze-1", "published": True, "expires_at": "2026-11-30T03:00:00Z",
        "artifacts": artifacts, "next": None,
    }  # fmt: skip


def test_artifacts_are_fetched_whole_checked_and_not_twice(tmp_path: Path, nightshift: Command) -> None:
    body = b"adapter"
    sha = hashlib.sha256(body).hexdigest()
    with api(200, []) as to:
        page = listed(to, ("adapters/best/a.bin", body, sha), ("spec.json", b"{}", None))
        to.body += [page, body, b"{}", page, b"{}"]
        first = nightshift("artifacts", "maze-1", "--download", str(tmp_path / "out"), "--api", to.address)
        second = nightshift("artifacts", "maze-1", "--download", str(tmp_path / "out"), "--api", to.address)

    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert (tmp_path / "out/adapters/best/a.bin").read_bytes() == body
    assert "fetched: adapters/best/a.bin (7 B)" in first.stdout
    assert "there already: adapters/best/a.bin" in second.stdout
    assert "hush" not in first.stdout + first.stderr, "an address is for whoever has it"
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == ["a.bin", "spec.json"]


@pytest.mark.parametrize(
    ("key", "sent", "sha", "code", "said"),
    [
        ("a.bin", b"other!!", hashlib.sha256(b"adapter").hexdigest(), 65, "other bytes than the manifest promises"),
        ("a.bin", b"short", None, 65, "5 bytes and not 7"),
        ("../a.bin", b"adapter", None, 70, "no name of a file below"),
        ("/etc/a.bin", b"adapter", None, 70, "no name of a file below"),
    ],
)
def test_bytes_that_were_not_promised_and_names_that_lead_out_are_not_kept(
    tmp_path: Path, key: str, sent: bytes, sha: str | None, code: int, said: str, nightshift: Command
) -> None:
    with api(200, []) as to:
        to.body += [listed(to, (key, b"adapter", sha)), sent]
        done = nightshift("artifacts", "maze-1", "--download", str(tmp_path / "out"), "--api", to.address)

    assert done.returncode == code and said in done.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_artifacts_without_a_folder_are_listed_without_their_addresses(nightshift: Command) -> None:
    with api(200, None) as to:
        to.body = listed(to, ("adapters/best/a.bin", b"x" * 1_500, "0" * 64), ("spec.json", b"{}", None))
        done = nightshift("artifacts", "maze-1", "--api", to.address)

    assert done.stdout.splitlines() == [
        "SIZE    PROMISED  OBJECT",
        "1.5 kB  yes       adapters/best/a.bin",
        "2 B     -         spec.json",
    ]


def test_a_dashboards_address_is_all_that_goes_to_stdout(nightshift: Command) -> None:
    link = {"version": 1, "run_id": "maze-1", "url": "https://dash/x?token=t", "expires_at": "2026-11-30T03:00:00Z"}
    with api(200, link) as to:
        done = nightshift("dashboard", "maze-1", "--api", to.address)

    assert (done.returncode, done.stdout) == (0, "https://dash/x?token=t\n")
    assert "before 11-30 03:00:00 UTC" in done.stderr
    assert to.requests[0][:2] == ("POST", "/runs/maze-1/dashboard")
