"""``drain``: every run is ended and waited for, whoever comes meanwhile; what cannot be ended is named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from cli.drain import POLL_SECONDS, drain
from cli.exits import CliError, Exit
from nightshift.contract.api import CancelMode, RunLine, RunList, RunTold

NOW = datetime(2026, 12, 1, tzinfo=UTC)


class Runs:
    """An API in which a cancelled run is over after ``polls`` looks. ``others`` belong to somebody else."""

    def __init__(self, *names: str, polls: int = 2, others: tuple[str, ...] = (), size: int = 100) -> None:
        self.left = dict.fromkeys(names, polls)
        self.over: list[str] = ["old"]
        self.cancelled: list[tuple[str, CancelMode]] = []
        self.seconds = 0.0
        self.said: list[str] = []
        self.coming: Callable[[], None] = lambda: None
        self._others, self._size = others, size

    def runs(self, **wanted: str | None) -> RunList:
        every = [*self.left, *self.over]
        start = int(wanted.get("next") or 0)
        page = [
            RunLine(
                run_id=name, state="running" if name in self.left else "cancelled", owner="me", pool="default",
                created_at=NOW, ended_at=None if name in self.left else NOW,
            )
            for name in every[start : start + self._size]
        ]  # fmt: skip
        after = str(start + self._size) if start + self._size < len(every) else None
        return RunList(runs=page, next=after)

    def cancel(self, run_id: str, mode: CancelMode) -> RunTold:
        if run_id in self._others:
            raise CliError(Exit.NO_PERMISSION, f"{run_id}: it belongs to somebody else")
        if run_id == "ending":
            raise CliError(Exit.BAD_DATA, "it is being ended as failed and cannot be cancelled")
        self.cancelled.append((run_id, mode))
        return RunTold(run_id=run_id, state="running")

    def sleep(self, seconds: float) -> None:
        assert seconds == POLL_SECONDS
        self.seconds += seconds
        self.coming()
        ending = {name for name, _ in self.cancelled} | {"ending"}
        for name in list(self.left):
            if name in ending:
                self.left[name] -= 1
                if not self.left[name]:
                    del self.left[name]
                    self.over.append(name)

    def drain(self, mode: CancelMode = CancelMode.AFTER_CHECKPOINT, seconds: float = 600.0) -> int:
        return drain(self, mode, seconds, self.said.append, lambda: self.seconds, self.sleep)


def test_every_run_is_cancelled_once_in_the_mode_that_was_asked_for_and_waited_for() -> None:
    api = Runs("a", "b", polls=3)
    assert api.drain(CancelMode.NOW) == 2
    assert api.cancelled == [("a", CancelMode.NOW), ("b", CancelMode.NOW)]
    assert api.seconds == 3 * POLL_SECONDS and api.left == {}


def test_all_pages_of_open_runs_are_read() -> None:
    api = Runs(*(f"r{n}" for n in range(7)), size=3)
    assert api.drain() == 7


def test_nothing_is_asked_where_nothing_runs() -> None:
    api = Runs()
    assert api.drain() == 0
    assert (api.cancelled, api.seconds) == ([], 0.0)


def test_a_run_that_comes_meanwhile_is_ended_too() -> None:
    api = Runs("a")

    def come() -> None:
        if api.seconds == POLL_SECONDS:
            api.left["late"] = 2

    api.coming = come
    assert api.drain() == 2
    assert [name for name, _ in api.cancelled] == ["a", "late"]


def test_a_run_that_is_being_ended_already_is_waited_for() -> None:
    assert Runs("ending").drain() == 1


def test_a_run_of_somebody_else_is_named_and_those_that_could_be_are_ended_all_the_same() -> None:
    api = Runs("mine", "theirs", others=("theirs",))
    with pytest.raises(CliError) as error:
        api.drain()
    assert error.value.exit_code is Exit.NO_PERMISSION
    assert error.value.lines == ("theirs: it belongs to somebody else",)
    assert [name for name, _ in api.cancelled] == ["mine"]


def test_what_is_not_over_in_time_is_named_and_left_as_it_is() -> None:
    api = Runs("slow", polls=1_000)
    with pytest.raises(CliError) as error:
        api.drain(seconds=60)
    assert error.value.exit_code is Exit.TEMPORARY
    assert error.value.lines == ("slow: running, step 0 of 0",)
    assert api.seconds == 60
    assert len(api.said) == 1, "a line is said only where something changed"
