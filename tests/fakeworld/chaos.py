"""Seeded random faults over whole runs: ``python -m tests.fakeworld.chaos --seeds 0:2000``, and one again with
``--seed N``."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pool

from nightshift.core.run import SignalKind
from tests.fakeworld.cloud import Rates
from tests.fakeworld.cluster import GPU, JobFaults
from tests.fakeworld.watch import Violation
from tests.fakeworld.world import World

MAX_EVENTS, MAX_SECONDS = 60_000, 30 * 86_400.0


@dataclass
class Verdict:
    """One seed's end: ``states`` of its runs, and the first violated invariant."""

    seed: int
    states: list[str]
    violation: Violation | None
    world: World
    attempts: int


def prepared(seed: int) -> tuple[World, bool]:
    """A world with this seed's faults in it; True where there are none."""
    plan, world = random.Random(f"plan {seed}"), World(seed)

    def chance(share: float, *values: float) -> float:
        return plan.choice(values) if plan.random() < share else 0.0

    world.at(0.0, lambda: world.request("maze-1"))
    if plan.random() < 0.04:
        return world, True
    world.loop.rates = Rates(
        crash=chance(0.35, 0.02, 0.08, 0.25),
        lost_answer=chance(0.3, 0.02, 0.1),
        twice=chance(0.35, 0.03, 0.15, 0.5),
        refused=chance(0.3, 0.002, 0.01, 0.04),
        slow=chance(0.45, 0.01, 0.05, 0.3),
        event_lost=chance(0.4, 0.3, 1.0),
        event_twice=chance(0.4, 0.3, 0.8),
        event_late=chance(0.4, 0.3, 0.9),
    )
    world.fleet.job_faults = JobFaults(
        dies=chance(0.4, 0.03, 0.1, 0.35),
        dies_in_save=chance(0.3, 0.1, 0.4),
        hangs=chance(0.01, 0.1),
        lies_at_end=chance(0.05, 0.5, 1.0),
        ignores_stop=chance(0.2, 0.3, 1.0),
    )
    if plan.random() < 0.06:  # everything is proved, yet the job says that it failed; and the next one dies at once
        world.fleet.job_faults = JobFaults(lies_at_end=0.8, dies=0.3)
    world.fleet.starting = plan.choice(((2.0, 10.0), (2.0, 10.0), (10.0, 60.0)))
    world.fleet.terminating = plan.choice(((0.0, 10.0), (0.0, 10.0), (20.0, 90.0), (200.0, 400.0)))
    runs = ["maze-1"]
    if plan.random() < 0.2:
        runs.append("maze-2")
        world.at(plan.uniform(0, 400), lambda: world.request("maze-2"))
    for _ in range(plan.choice((0, 0, 1, 1, 2, 3))):
        _kill_a_node(world, plan)
    for share, name in ((0.2, "ray"), (0.12, "kubernetes")):
        if plan.random() < share:
            _outage(world, name, plan.uniform(0, 600), plan.choice((10, 60, 300, 900)))
    for run_id in runs:
        if plan.random() < 0.06:
            shift, orphan = plan.random() < 0.5, plan.random() < 0.5
            world.at(
                plan.uniform(1, 700),
                lambda r=run_id, s=shift, o=orphan: world.stop_execution(r, s, o),  # type: ignore[misc]
            )
        if plan.random() < 0.06:
            world.at(plan.uniform(1, 700), lambda r=run_id: world.cancel(r))  # type: ignore[misc]
    for _ in range(plan.choice((0, 0, 0, 3, 12))):
        name = plan.choice(("i-w1", "i-w2", "i-head", "i-stranger"))
        world.at(plan.uniform(0, 700), lambda n=name: world.node_event(SignalKind.NODE_HEALTH, n))  # type: ignore[misc]
    return world, False


def _kill_a_node(world: World, plan: random.Random) -> None:
    head, pick = plan.random() < 0.2, plan.random()
    replaced = None if plan.random() < 0.05 else plan.choice((5.0, 30.0, 120.0, 900.0))

    def kill() -> None:
        alive = [n for n in world.fleet.nodes if n.dead_at is None and (n.kind != GPU) is head]
        if alive:
            world.fleet.kill_node(alive[int(pick * len(alive))], replaced)

    world.at(plan.uniform(1, 700), kill)


def _outage(world: World, name: str, begins: float, seconds: float) -> None:
    def begin() -> None:
        world.note(f"{name} is away for {seconds:.0f} s")
        setattr(world.fleet, f"{name}_down_until", world.time + seconds)

    world.at(begins, begin)


def play(seed: int) -> Verdict:
    world, quiet = prepared(seed)
    loop, watch = world.loop, world.watch
    while loop.busy and watch.found is None and loop.events < MAX_EVENTS and loop.time < MAX_SECONDS:
        loop.step()
    if watch.found is None:
        watch.at_the_end(quiet)
    runs = [i.run for i in world.table.items.values()]
    return Verdict(seed, [r.state.value for r in runs], watch.found, world, sum(r.attempt for r in runs))


def trace(world: World, last: int | None = None) -> Iterable[str]:
    return (f"{at:10.2f}  {what}" for at, what in (world.loop.notes[-last:] if last else world.loop.notes))


def summary(seed: int) -> tuple[list[str], int, str | None]:
    """What ``--seeds`` prints of one seed: a line where an invariant is violated."""
    logging.disable(logging.CRITICAL)
    verdict, line = play(seed), None
    if verdict.violation is not None:
        last = " | ".join(what for _, what in verdict.world.loop.notes[-6:-1])
        line = f"seed {seed}: {verdict.violation} | {last}"
    return verdict.states, verdict.attempts, line


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fakeworld.chaos", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:after-last")
    parser.add_argument("--seed", type=int, help="replay one, with its trace")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args(given)
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        verdict = play(arguments.seed)
        print("\n".join(trace(verdict.world)))
        print(f"seed {verdict.seed}: {', '.join(verdict.states)}; {verdict.violation or 'nothing violated'}")
        return int(verdict.violation is not None)
    first, after = map(int, arguments.seeds.split(":"))
    began, violated, states, attempts = time.perf_counter(), 0, Counter[str](), 0
    with Pool(arguments.jobs) as pool:
        for ends, tried, line in pool.imap(summary, range(first, after), chunksize=20):
            states.update(ends)
            attempts += tried
            if line is not None:
                violated += 1
                print(line, flush=True)
    seconds = time.perf_counter() - began
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    print(f"{after - first} seeds, {violated} violated, {seconds:.1f} s; {attempts} attempts; runs: {told}")
    return int(violated > 0)


if __name__ == "__main__":
    sys.exit(main())
