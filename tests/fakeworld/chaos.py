"""Seeded random faults over whole runs: ``python -m tests.fakeworld.chaos --seeds 0:2000``, one again with ``--seed N``, and
the planted faults with ``--mutants``."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pool

from tests.fakeworld.plan import prepared
from tests.fakeworld.watch import Violation
from tests.fakeworld.world import World

MAX_EVENTS, MAX_SECONDS = 20_000, 30 * 86_400.0


@dataclass
class Verdict:
    """One seed's end: ``states`` of its runs, and the first violated invariant."""

    seed: int
    states: list[str]
    violation: Violation | None
    world: World
    attempts: int


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
    gc.disable()  # worlds are circles: looked for once in a while, that costs a tenth less
    verdict, line = play(seed), None
    if seed % 50 == 0:
        gc.collect()
    if verdict.violation is not None:
        last = " | ".join(what for _, what in verdict.world.loop.notes[-6:-1])
        line = f"seed {seed}: {verdict.violation} | {last}"
    return verdict.states, verdict.attempts, line


def planted() -> int:
    """A table for people: planted fault, a seed that finds it, the invariant, seconds."""
    import pytest

    from tests.fakeworld.mutants import MUTANTS

    missed = 0
    print(f"{'planted fault':<38}{'seed':>6}  {'seconds':>7}  invariant")
    for mutant in MUTANTS:
        began = time.perf_counter()
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            found = next((v for v in map(play, mutant.seeds) if v.violation is not None), None)
        name = "NOT FOUND" if found is None or found.violation is None else found.violation.name
        missed += name not in mutant.found_by
        seed = "-" if found is None else str(found.seed)
        print(f"{mutant.name:<38}{seed:>6}  {time.perf_counter() - began:>7.1f}  {name}", flush=True)
    print(f"{len(MUTANTS)} planted faults, {missed} not found as they should be")
    return int(missed > 0)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fakeworld.chaos", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:after-last")
    parser.add_argument("--seed", type=int, help="replay one, with its trace")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--mutants", action="store_true", help="plant each fault and say which seed finds it")
    arguments = parser.parse_args(given)
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        verdict = play(arguments.seed)
        print("\n".join(trace(verdict.world)))
        print(f"seed {verdict.seed}: {', '.join(verdict.states)}; {verdict.violation or 'nothing violated'}")
        return int(verdict.violation is not None)
    if arguments.mutants:
        return planted()
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
