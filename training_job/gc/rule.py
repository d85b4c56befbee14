"""What may go. Pure: from what lies on /shared and what is known of its runs to a verdict on each thing, with the reason.

Only what is proven to be of no use goes: of a run whose record says that it is over, for as long as its outcome has it, and that
no run which is kept names as its parent. What is not known is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from nightshift.contract.retention import OVER, Retention

POINTER: Final = "latest_ckpt_global_step.txt"
PINS: Final = "pins.json"


@dataclass(frozen=True)
class Periods:
    """Days, of the deployment: see ``Retention``. ``models`` are those since a base model was last used."""

    succeeded: int = 14
    rest: int = 3
    failed: int = 30
    cancelled: int = 30
    models: int = 60
    trash: int = 3

    def of(self, wish: Retention) -> Periods:
        """With what a run's own spec says in place of them."""
        named = {
            name: getattr(wish, f"{name}_days")
            for name in ("succeeded", "rest", "failed", "cancelled")
            if getattr(wish, f"{name}_days") is not None
        }
        return replace(self, **named)


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run. ``state`` is None where there is no record of it. ``unread`` says why its spec could not be read;
    then neither its parent nor its base model is known."""

    run_id: str
    state: str | None = None
    ended_at: datetime | None = None
    verified_step: int = 0
    parent: str | None = None
    model: str = ""
    retention: Retention = field(default_factory=Retention)
    unread: str = ""

    @property
    def over(self) -> bool:
        return self.state in OVER


@dataclass(frozen=True)
class Part:
    """A file or folder below the mount. ``step`` is that of a checkpoint."""

    path: str
    size: int
    step: int | None = None


@dataclass(frozen=True)
class RunFolder:
    """``runs/<run_id>``, with every part of it once. ``odd`` says why it is not looked into."""

    run_id: str
    path: str
    parts: tuple[Part, ...] = ()
    odd: str = ""

    @property
    def size(self) -> int:
        return sum(one.size for one in self.parts)


@dataclass(frozen=True)
class StagedModel:
    """``models/<digest>`` as the job staged it. ``used_at`` is when an attempt last began with it; ``pinned_by`` are the
    runs whose folders say that it is theirs."""

    path: str
    size: int
    address: str
    used_at: datetime
    pinned_by: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Leftover:
    """Of a download that nobody ended, or a staged folder that somebody changed. ``moved_at`` is when it last changed."""

    path: str
    size: int
    moved_at: datetime
    run_id: str | None = None


@dataclass(frozen=True)
class Survey:
    """Everything of ours on /shared; what is anybody else's is not in it."""

    folders: tuple[RunFolder, ...] = ()
    models: tuple[StagedModel, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """``goes``: to the trash, as one whole. ``run_id`` is the run whose record must still say the same when it does."""

    path: str
    size: int
    goes: bool
    why: str
    run_id: str | None = None
    used_at: datetime | None = None


class Fate(StrEnum):
    """Of what lies in the trash."""

    STAYS = "stays"
    PUT_BACK = "put back"
    DELETED = "deleted"


@dataclass(frozen=True)
class Trashed:
    """What was moved: from where, when, and for which run."""

    name: str
    path: str
    size: int
    moved_at: datetime
    run_id: str | None = None


def judge(survey: Survey, runs: Mapping[str, RunFacts], periods: Periods, now: datetime) -> list[Verdict]:
    """A verdict on everything of the survey, each byte in one of them."""
    stop = _unknown_needs(runs)
    verdicts: list[Verdict] = []
    needed = _needed(survey, runs, periods, now)
    for folder in survey.folders:
        verdicts += _of_folder(folder, runs.get(folder.run_id), needed, stop, periods, now)
    verdicts += [_of_model(one, runs, stop, periods, now) for one in survey.models]
    return verdicts + [_of_leftover(one, runs, periods, now) for one in survey.leftovers]


def judge_trash(
    trash: Sequence[Trashed], runs: Mapping[str, RunFacts], periods: Periods, now: datetime
) -> list[tuple[Trashed, Fate, str]]:
    """What has been in the trash for its time is deleted, unless its run is not over any more, or a live one needs it."""
    stop = _unknown_needs(runs)
    needed = {one.parent for one in runs.values() if not one.over and one.parent}
    return [(one, *_of_trashed(one, runs, needed, stop, periods, now)) for one in trash]


def _of_trashed(
    one: Trashed, runs: Mapping[str, RunFacts], needed: set[str], stop: str, periods: Periods, now: datetime
) -> tuple[Fate, str]:
    if one.run_id is not None:
        facts = runs.get(one.run_id)
        if facts is None or facts.state is None:
            return Fate.STAYS, "nothing is known of its run any more"
        if not facts.over:
            return Fate.PUT_BACK, f"its run goes on: {facts.state}"
        if one.run_id in needed:
            return Fate.PUT_BACK, "a run that is not over names it as its parent"
    if stop:
        return Fate.STAYS, stop
    until = one.moved_at + timedelta(days=periods.trash)
    if now < until:
        return Fate.STAYS, f"until {_day(until)}"
    return Fate.DELETED, f"moved there on {_day(one.moved_at)}"


def _unknown_needs(runs: Mapping[str, RunFacts]) -> str:
    """Why nothing may go at all; empty where it may."""
    for one in sorted(runs.values(), key=lambda one: one.run_id):
        if one.state is not None and not one.over and one.unread:
            return f"run {one.run_id} is not over and what it needs is not known: {one.unread}"
    return ""


def _needed(survey: Survey, runs: Mapping[str, RunFacts], periods: Periods, now: datetime) -> dict[str, str]:
    """Run -> the run that names it as its parent and is kept itself. What is needed for a run that is needed is, too."""
    there = {one.run_id for one in survey.folders}
    kept = [
        one
        for one in runs.values()
        if not one.over or (one.run_id in there and (one.unread or _whole_until(one, periods) > now))
    ]
    needed: dict[str, str] = {}
    while kept:
        child = kept.pop()
        if child.parent and child.parent not in needed:
            needed[child.parent] = child.run_id
            if child.parent in runs:
                kept.append(runs[child.parent])
    return needed


def _whole_until(facts: RunFacts, periods: Periods) -> datetime:
    """When the last of a run that is over may go."""
    if facts.ended_at is None:
        return datetime.max.replace(tzinfo=UTC)
    days = periods.of(facts.retention)
    of_state = {"succeeded": days.succeeded, "failed": days.failed, "cancelled": days.cancelled}
    return facts.ended_at + timedelta(days=of_state[facts.state or "failed"])


def _of_folder(
    folder: RunFolder,
    facts: RunFacts | None,
    needed: Mapping[str, str],
    stop: str,
    periods: Periods,
    now: datetime,
) -> Iterator[Verdict]:
    why = _kept_whole(folder, facts, needed, stop, now)
    if why or facts is None or facts.ended_at is None:
        yield Verdict(folder.path, folder.size, False, why, folder.run_id)
        return
    until, days = _whole_until(facts, periods), periods.of(facts.retention)
    if now >= until:
        told = f"{facts.state} on {_day(facts.ended_at)}: its time was over on {_day(until)}"
        yield Verdict(folder.path, folder.size, True, told, folder.run_id)
        return
    kept, rest_until = 0, facts.ended_at + timedelta(days=days.rest)
    newest = newest_verified([one.step for one in folder.parts if one.step is not None], facts.verified_step)
    for part in folder.parts:
        if facts.state != "succeeded" or now < rest_until or _stays(part, newest):
            kept += part.size
        else:
            told = f"succeeded on {_day(facts.ended_at)}: beside its newest verified checkpoint ({newest or 'none'})"
            yield Verdict(part.path, part.size, True, told, folder.run_id)
    yield Verdict(folder.path, kept, False, f"{facts.state}: until {_day(until)}", folder.run_id)


def _kept_whole(folder: RunFolder, facts: RunFacts | None, needed: Mapping[str, str], stop: str, now: datetime) -> str:
    """Why everything of it stays; empty where that depends on its time."""
    if folder.odd:
        return folder.odd
    if facts is None or facts.state is None:
        return "nothing is known of its run"
    if not facts.over:
        return f"its run is not over: {facts.state}"
    if facts.unread:
        return f"its spec, which may say how long it stays: {facts.unread}"
    if facts.ended_at is None:
        return "its record does not say when its run ended"
    if facts.ended_at > now:
        return "its run ended after now: a clock is wrong"
    if folder.run_id in needed:
        return f"run {needed[folder.run_id]} names it as its parent"
    return stop


def newest_verified(steps: Sequence[int], verified: int) -> int | None:
    """The newest step on disk up to the one that the job verified last; None where none is."""
    return max((step for step in steps if step <= verified), default=None)


def _stays(part: Part, newest: int | None) -> bool:
    """Of a success in its time: the newest verified checkpoint with its pointer, whatever is newer, and which models it used.
    Without a verified one on disk every checkpoint stays."""
    if part.step is not None:
        return newest is None or part.step >= newest
    return part.path.rpartition("/")[2] in (POINTER, PINS)


def _of_model(model: StagedModel, runs: Mapping[str, RunFacts], stop: str, periods: Periods, now: datetime) -> Verdict:
    why, used = stop, model.used_at
    for run_id in sorted(model.pinned_by):
        facts = runs.get(run_id)
        if facts is None or not facts.over:
            why = why or f"run {run_id} has it, and is not known to be over"
        elif facts.ended_at is None:
            why = why or f"run {run_id} has it, and nobody knows when it ended"
        else:
            used = max(used, facts.ended_at)
    for one in runs.values():
        if not one.over and same_model(one.model, model.address):
            why = why or f"run {one.run_id} is not over and may need it"
    until = used + timedelta(days=periods.models)
    if not why and now < until:
        why = f"last used on {_day(used)}: until {_day(until)}"
    told = why or f"{model.address[:120]}, last used on {_day(used)}"
    return Verdict(model.path, model.size, not why, told, used_at=model.used_at)


def same_model(source: str, address: str) -> bool:
    """May a spec's source mean what was staged from this address? A branch of the hub may be any commit of it."""
    if source.startswith("hf://"):
        return source.partition("@")[0] == address.partition("@")[0]
    return source.rstrip("/") == address.rstrip("/")


def _of_leftover(one: Leftover, runs: Mapping[str, RunFacts], periods: Periods, now: datetime) -> Verdict:
    facts = runs.get(one.run_id) if one.run_id else None
    until = one.moved_at + timedelta(days=max(1, periods.rest))
    if facts is not None and not facts.over:
        return Verdict(one.path, one.size, False, f"run {one.run_id} may go on with it", one.run_id)
    if now < until:
        return Verdict(one.path, one.size, False, f"it changed on {_day(one.moved_at)}: until {_day(until)}")
    told = f"left behind by a download, and still since {_day(one.moved_at)}"
    return Verdict(one.path, one.size, True, told, one.run_id if facts is not None else None)


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")
