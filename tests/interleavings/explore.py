"""Every state that can follow from a beginning, each once; and how many schedules that are.

Other budgets than those of the tests by hand, with functions/ and the repository's root on the path:
``python -m tests.interleavings.explore failures=1 senders=1 repeats=1``"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tests.interleavings.model import Budget, Model, State, Violation, beginning


@dataclass(frozen=True)
class Explored:
    """``schedules`` counts the different orders in which everything can happen, to their ends; calls whose place in the
    order cannot matter (``Model.moves``) are counted in one place. ``rests`` are the states where nothing moves."""

    states: int
    moves: int
    rests: int
    schedules: int


class Found(Exception):
    """A violation and the schedule that leads to it."""

    def __init__(self, violation: Violation, schedule: list[str]) -> None:
        super().__init__("\n".join([str(violation), *schedule]))
        self.name = violation.name


def explore(budget: Budget) -> Explored:
    """Depth first over all states. No state follows itself: each move makes a log longer or a budget smaller."""
    model = Model()
    first = beginning(budget, model.contents)
    schedules: dict[State, int] = {}
    moves = rests = 0
    path: list[tuple[State, str, list[tuple[str, State]], int]] = []

    def opened(state: State, label: str) -> None:
        nonlocal moves, rests
        try:
            if not state.actors:
                rests += 1
                model.at_rest(state)
            following = model.moves(state)
        except Violation as violation:
            raise Found(violation, [*(step for _, step, _, _ in path), label]) from violation
        moves += len(following)
        path.append((state, label, following, 0))

    opened(first, "the shift begins")
    while path:
        state, label, following, at = path.pop()
        while at < len(following) and following[at][1] in schedules:
            at += 1
        if at < len(following):
            path.append((state, label, following, at + 1))
            opened(following[at][1], following[at][0])
            continue
        schedules[state] = sum(schedules[after] for _, after in following) or 1
    return Explored(len(schedules), moves, rests, schedules[first])


if __name__ == "__main__":
    given = dict(pair.split("=") for pair in sys.argv[1:])
    print(explore(Budget(**{name: int(number) for name, number in given.items()})))
