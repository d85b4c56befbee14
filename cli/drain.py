"""``nightshift drain``: end every run, and wait until nothing of any of them is left: what a deletion of the stack needs.

A run that is over has given back its lease, and its RayCluster is gone: its record becomes final last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from cli.exits import CliError, Exit
from cli.paging import MAX_PAGES
from nightshift.contract.api import CancelMode, RunLine, RunList, RunTold

POLL_SECONDS = 5.0


class Steering(Protocol):
    """What is used of the API; both raise CliError."""

    def runs(self, **wanted: str | None) -> RunList: ...
    def cancel(self, run_id: str, mode: CancelMode) -> RunTold: ...


def open_runs(api: Steering) -> list[RunLine]:
    """Every run that is not over. The list has them before all others."""
    found: list[RunLine] = []
    after = None
    for _ in range(MAX_PAGES):
        page = api.runs(limit="100", next=after)
        found += [one for one in page.runs if one.ended_at is None]
        after = page.next
        if after is None or any(one.ended_at is not None for one in page.runs):
            break
    return found


def drain(
    api: Steering,
    mode: CancelMode,
    seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Cancel every open run, also those that come meanwhile, and wait for the end of all; how many there were.

    Raises CliError: 77 where one may not be cancelled by this caller, 75 where some are not over after ``seconds``.
    """
    deadline, asked, before = clock() + seconds, set[str](), -1
    while True:
        left = open_runs(api)
        refused = [line for one in left if one.run_id not in asked and (line := _cancel(api, one, mode)) is not None]
        if refused:
            raise CliError(
                Exit.NO_PERMISSION, "some runs are not yours to end; an operator (OperatorArns) can", tuple(refused)
            )
        asked |= {one.run_id for one in left}
        if not left:
            return len(asked)
        if len(left) != before:
            say(f"{len(left)} not over yet: {', '.join(f'{one.run_id} ({one.state})' for one in left[:5])}")
            before = len(left)
        if clock() >= deadline:
            names = tuple(f"{one.run_id}: {one.state}, step {one.step} of {one.total_steps}" for one in left)
            raise CliError(Exit.TEMPORARY, f"not over after {seconds / 60:g} minutes; ask again, or with --now", names)
        sleep(POLL_SECONDS)


def _cancel(api: Steering, run: RunLine, mode: CancelMode) -> str | None:
    """None where the end is under way; else why this caller may not."""
    try:
        api.cancel(run.run_id, mode)
    except CliError as error:
        if error.exit_code is Exit.NO_PERMISSION:
            return str(error)
        if error.exit_code is not Exit.BAD_DATA:  # a conflict: it is being ended already
            raise
    return None
