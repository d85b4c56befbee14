"""Looks of each kind in each of the four waits, and a run through recoveries: what they cost, from real histories."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from nightshift.core.run import Awaiting, Run, RunState
from nightshift.steps.control import answer, cancel
from tests.horizon.drive import Driven, Stack
from tests.horizon.histories import looks, visits
from tests.horizon.horizon import Measured
from tests.local_cloud.support import Cloud

RECOVERIES = 1
Looks = Counter[tuple[str, int]]


@dataclass(frozen=True)
class Counts:
    """How many looks of each kind in each wait."""

    timed_out: int
    woken: int
    answered: int


@dataclass(frozen=True)
class Found:
    """``looks``: by wait, how often a look of a kind had how many events."""

    measured: Measured
    looks: dict[Awaiting, Looks]
    shift_frames: Counter[int]
    recoveries: tuple[int, ...]
    ends: dict[str, Run]


def measure(cloud: Cloud, counts: Counts) -> Found:
    """Four runs at once, one for each wait; the one of the fence goes on through recoveries to its success."""
    waits = {Awaiting.LEASE: _lease, Awaiting.CLUSTER: _cluster, Awaiting.FENCE: _fence, Awaiting.ATTEMPT: _attempt}
    with ThreadPoolExecutor(len(waits)) as pool:
        going = {w: pool.submit(run, Stack(cloud), counts) for w, run in waits.items()}
        driven = {wait: one.result() for wait, one in going.items()}
    counted, frames = {}, Counter[int]()
    for wait, one in driven.items():
        counted[wait] = Looks()
        for history in one.shifts():
            frames[len(history) - sum(events * times for (_, events), times in looks(history).items())] += 1
        for history in one.shifts(wait):
            counted[wait] += looks(history)
    ((_, parent),) = driven[Awaiting.FENCE].parents()
    recovered = _recoveries(parent)
    return Found(
        measured=_measured(counted, frames, parent, recovered),
        looks=counted,
        shift_frames=frames,
        recoveries=recovered,
        ends={w.value: one.run() for w, one in driven.items()},
    )


def _every_kind(run: Driven, counts: Counts) -> None:
    run.woken(counts.woken)
    run.answered(counts.answered)
    run.timed_out(counts.timed_out)


def _cancelled(run: Driven) -> Driven:
    cancel(run.stack.ports, run.run_id, "team")
    assert run.over().state is RunState.CANCELLED
    return run


def _lease(stack: Stack, counts: Counts) -> Driven:
    run = Driven(stack, "horizon-lease", looks=600)
    run.ask(held=True)
    _every_kind(run, counts)
    return _cancelled(run)


def _cluster(stack: Stack, counts: Counts) -> Driven:
    run = Driven(stack, "horizon-cluster", comes="starting")
    run.ask()
    run.napping_for_its_cluster()
    _every_kind(run, counts)
    return _cancelled(run)


def _attempt(stack: Stack, counts: Counts) -> Driven:
    run = Driven(stack, "horizon-attempt")
    run.ask()
    run.attempt(1)
    _every_kind(run, counts)
    run.succeeds(1)
    assert run.over().state is RunState.SUCCEEDED
    return run


def _fence(stack: Stack, counts: Counts) -> Driven:
    run = Driven(stack, "horizon-fence")
    run.ask()
    run.attempt(1)
    run.asks_in_its_fence(1)
    _every_kind(run, counts)
    answer(stack.ports, run.run_id, True, "team")
    for n in range(2, 2 + RECOVERIES):
        run.attempt(n)
        run.loses(n)
    run.attempt(2 + RECOVERIES)
    run.succeeds(2 + RECOVERIES)
    assert run.over().state is RunState.SUCCEEDED
    return run


def _recoveries(parent: list[dict[str, Any]]) -> tuple[int, ...]:
    """Events from the entry of each fence to the end of the wait for the attempt that followed it."""
    found, at = list[int](), -1
    for visit in visits(parent):
        if visit.state == "AwaitFence":
            found.append(0)
            at = len(found) - 1
        if at >= 0 and visit.state in ("Publish", "AwaitFence") and found[at]:
            at = len(found) - 1 if visit.state == "AwaitFence" else -1
        if at >= 0:
            found[at] += visit.events
    return tuple(found)


def _measured(
    counted: dict[Awaiting, Looks], frames: Counter[int], parent: list[dict[str, Any]], recovered: tuple[int, ...]
) -> Measured:
    def most(kind: str) -> int:
        return max(events for one in counted.values() for (k, events) in one if k == kind)

    spent = Counter[str]()
    for visit in visits(parent):
        spent[visit.state] = max(spent[visit.state], visit.events)
    begin = ("begin", "Begin", "Admit", "Admitted", "Preflight", "Checked")
    end = ("Publish", "Verify", "Teardown", "AwaitRelease", "ReleaseDecision", "Release", "Notify", "Ended")
    turns = sum(state in ("AwaitFence", "Provision", "AwaitCluster", "Submit", "AwaitAttempt") for state in spent)
    return Measured(
        nap=most("timed out"),
        look=most("answered"),
        shift_frame=max(frames),
        parent_shift=spent["AwaitAttempt"] + spent["AttemptDecision"],
        parent_recovery=max(recovered),
        recovery_turns=turns,
        parent_begin=sum(spent[s] for s in begin),
        parent_end=sum(spent[s] for s in end) + 4,  # the choice after the message, and the last state
    )


def with_pauses(stack: Stack) -> Stack:
    """The stack with sleeps that take their time."""
    stack.ports = replace(stack.ports, sleep=time.sleep)
    return stack
