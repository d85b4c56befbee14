"""Runs go on while the release under them is exchanged, and come out right: to this code, and back. ``make test-upgrade``.

One stack, and all of it real: state machines, function processes of either release's code, Ray, the job, a node's death after
each exchange. A run's image is that of the release that it was asked on, whatever happens to the functions: it is pinned.
"""

from __future__ import annotations

import io
import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from local.chaos.evidence import Evidence, Expected
from local.chaos.faults import LOST
from local.chaos.judge import broken_promises
from local.chaos.nodes import kill_worker
from local.chaos.play import Play
from local.chaos.processes import DriverWatch
from local.chaos.request import short_request
from local.stack import Stack
from local.story.screen import Screen
from tests.story.support import items
from tests.upgrade.previous import Release

STEPS = 16


@dataclass(frozen=True)
class Side:
    """One release as the stack takes it; the image is None for this checkout's."""

    release: Release
    image: str | None

    @property
    def functions(self) -> Path:
        return (self.release.root / "functions").resolve()


@dataclass(frozen=True)
class Exchange:
    """What was there once the functions were another release's, and what came of it."""

    begun: Side
    taking_over: Side
    functions: set[Path]
    """Folders of the functions' code afterwards."""
    jobs: set[Path]
    """Folders of the job's code afterwards."""
    evidence: Evidence
    waiting: Evidence


def ask(stack: Stack, run_id: str, image: str | None) -> None:
    spec = short_request(run_id, STEPS).spec | ({} if image is None else {"image": image})
    status, answer = stack.account.api("POST", "/runs", {"version": 1, "spec": spec})
    assert status in (200, 201, 202), answer


def folders(stack: Stack) -> set[Path]:
    """Where the function processes that can be called have their code."""
    with urllib.request.urlopen(stack.config.cloud_url + "/_local/processes", timeout=20) as answer:
        pids = [one["pid"] for one in json.load(answer) if one["what"].startswith("lambda ")]
    return {Path(f"/proc/{pid}/cwd").resolve() for pid in pids if Path(f"/proc/{pid}").exists()}


def has_token(stack: Stack, run_id: str) -> bool:
    """Its look has written down the token that it waits with: whoever signals next answers it."""
    return any("token" in one for one in items(stack, run_id, "RUN"))


def job_folders(play: Play, attempts: int) -> set[Path]:
    """Where the drivers of the run's first attempts had the job's code, as far as they still live."""
    paths = {
        entry
        for one in play.drivers()
        if one.attempt <= attempts
        for line in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
        if line.startswith(b"PYTHONPATH=")
        for entry in line.decode().removeprefix("PYTHONPATH=").split(":")
    }
    return {Path(one).resolve().parent for one in paths if one.endswith("/functions")}


def exchanged(stack: Stack, drivers: DriverWatch, begun: Side, taking_over: Side, name: str) -> Exchange:
    """A run trains and another waits in line; the functions become the other release's, and a node dies."""
    play = Play(stack, drivers, Screen(sys.stdout, live=False), name)
    waits = Play(stack, drivers, Screen(io.StringIO(), live=False), f"{name}-waits")
    ask(stack, play.run_id, begun.image)
    play.until("lease", lambda: play.state in ("provisioning", "running"), 120)
    ask(stack, waits.run_id, begun.image)
    play.until_saved(1)
    play.until("naps", lambda: has_token(stack, play.run_id) and has_token(stack, waits.run_id), 90)

    stack.deploy(taking_over.release.template, taking_over.release.python)
    kill_worker(play, 1)
    status, answer = stack.account.api("POST", f"/runs/{waits.run_id}/cancel")
    assert status in (200, 202), answer
    play.until_recovered()
    jobs, functions = job_folders(play, 2), folders(stack)
    waits.until_final(120)
    play.until_final()
    return Exchange(begun, taking_over, functions, jobs, play.evidence(), waits.evidence())


@pytest.fixture(scope="module")
def exchanges(
    previous: Release, present: Release, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Exchange]]:
    """Up, and back: what is asked for after the upgrade runs on until the release before is there again."""
    old, new = Side(previous, previous.image), Side(present, None)
    logs = tmp_path_factory.mktemp("upgrade") / "logs"
    images = {previous.image: previous.root}
    with (
        Stack(print, logs, False, previous.template, previous.python, images=images, schedule_speed=5.0) as stack,
        DriverWatch(stack.supervisor.note) as drivers,
    ):
        found = [exchanged(stack, drivers, old, new, "goes-up"), exchanged(stack, drivers, new, old, "goes-back")]
    assert stack.left_over == []
    print(f"logs of the stack: {logs}")
    yield found


@pytest.fixture(params=[0, 1], ids=["upgrade", "way back"])
def exchange(exchanges: list[Exchange], request: pytest.FixtureRequest) -> Exchange:
    return exchanges[request.param]


def test_a_run_that_trains_goes_on_and_ends_well_through_a_nodes_death_after_the_exchange(exchange: Exchange) -> None:
    assert broken_promises(exchange.evidence, Expected(causes=LOST)) == []


def test_a_run_that_waits_in_line_is_cancelled_through_the_other_release(exchange: Exchange) -> None:
    """Its token was written by one release, and is answered by the other."""
    expected = Expected("cancelled", (0, 0), manifest=False)
    assert broken_promises(exchange.waiting, expected) == []


def test_all_functions_are_the_other_releases_and_the_job_is_not(exchange: Exchange) -> None:
    """The image of a run is pinned: its second attempt, which the other release has submitted, runs the same code."""
    assert exchange.functions == {exchange.taking_over.functions}
    assert exchange.jobs == {exchange.begun.release.root.resolve()}


def test_no_execution_was_given_up_or_started_anew(exchange: Exchange) -> None:
    """The one that the run began with has carried it to its end, with every shift of either release."""
    run_id, states = exchange.evidence.run_id, exchange.evidence.executions
    parents = {name for name in states if name.startswith(f"{run_id}-r") and "-s" not in name.removeprefix(run_id)}
    assert parents == {f"{run_id}-r1"}
    assert set(states.values()) == {"SUCCEEDED"}
