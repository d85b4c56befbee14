"""One stage event becomes at most one message; of a final stage at least one, as far as that can be known.

A message is claimed in the table before it is sent and settled afterwards. A crash between the two leaves a claim that
nobody settled, and nobody can know whether the message went out: one of a final stage is then sent again, since a
second "finished" hurts less than none; any other is not.

What can wait for the morning is kept in the table instead, in the same write that counts it as handled, and told in one
message when the night is over: also if its run has ended by then. That message is treated like a final one, and one that
was rejected is tried again the next morning: what it tells is told nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from nightshift.contract.events import Stage, StageEvent
from nightshift.core.errors import NightshiftError
from nightshift.core.notices import Night, is_folded, is_wanted
from nightshift.report.night import night_blocks
from nightshift.report.slack import blocks

CLAIM_MARGIN = timedelta(seconds=15)
"""A claim outlives its sending by this much. Lambda repeats a failed invocation after a minute: by then it is over."""

PICTURE_SECONDS = 15.0

BROADCAST = frozenset({Stage.ASKING, Stage.FINISHED, Stage.FAILED, Stage.CANCELLED})
"""Stages of which the channel hears, and not only who follows the run's thread."""


class Result(StrEnum):
    """What is known about one message after it was sent."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    """Not accepted; the same message may be accepted later."""
    REJECTED = "rejected"
    """Not accepted, and never will be."""
    UNKNOWN = "unknown"
    """Sent, but no answer came."""


@dataclass(frozen=True)
class Thread:
    """The message that a run's other messages answer: the channel's id and the message's ``ts``."""

    channel: str
    ts: str


@dataclass(frozen=True)
class Delivery:
    """``reason`` is for a person, bounded, without secrets. ``retry_after`` is in seconds, as the receiver asked. ``thread`` is
    where a message went, where the receiver has threads."""

    result: Result
    reason: str
    posts: int
    retry_after: float | None = None
    thread: Thread | None = None


@dataclass(frozen=True, repr=False)
class Picture:
    """A PNG file to be shown."""

    name: str
    title: str
    body: bytes


class Messenger(Protocol):
    """The outside world of messages."""

    has_threads: bool

    def send(
        self,
        payload: Mapping[str, Any],
        *,
        repeat_unknown: bool,
        seconds: float,
        thread: Thread | None = None,
        broadcast: bool = False,
    ) -> Delivery:
        """Send within ``seconds``. What is known not to be accepted is repeated within that budget; what may have been
        accepted only with ``repeat_unknown``. Raises nothing for what the network does."""

    def attach(self, picture: Picture, thread: Thread, *, seconds: float) -> Delivery:
        """Show a picture in a thread. Raises nothing."""


class Claim(StrEnum):
    """Answer to an attempt to be the one who sends a message."""

    TAKEN = "taken"
    SETTLED = "settled"
    """It was sent, or given up, before."""
    BUSY = "busy"
    """Somebody else is sending it now; if they crash, their own invocation is repeated."""
    UNCERTAIN = "uncertain"
    """Somebody crashed while sending it, or had no answer, and it may not be repeated."""


class LogUnavailable(NightshiftError):
    """The table did not answer."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem, "It is repeated; if it persists, look at the table.")


@dataclass(frozen=True)
class Subject:
    """What a message is about. ``run_id`` is None for the message of a night, which is about many."""

    run_id: str | None
    key: str
    stage: str
    is_final: bool

    @property
    def shown(self) -> str:
        return self.run_id if self.run_id is not None else "of the night"


def subject(event: StageEvent) -> Subject:
    return Subject(event.run_id, event.key, event.stage.value, event.stage.is_final)


@dataclass(frozen=True)
class Folded:
    """An event that waits for the morning; ``place`` is its name in the log."""

    place: str
    event: StageEvent


class NotificationLog(Protocol):
    """Which messages were sent. Every method raises ``LogUnavailable``."""

    def claim(self, what: Subject, holder: str, now: datetime, until: datetime) -> Claim:
        """Atomic. ``holder`` is the same when one invocation is repeated, and different otherwise. An unsettled claim
        is taken over only for what is final: at once by its own holder, by others after its ``until``. The message of a
        night may be claimed again after a rejection: it is settled only once it was delivered."""

    def settle(self, what: Subject, holder: str, delivery: Delivery, now: datetime) -> None:
        """End the holder's claim. A refused message is open again; a claim that was taken over is left alone."""

    def thread(self, run_id: str) -> Thread | None:
        """Where the run's messages go; None before the first one."""

    def keep_thread(self, run_id: str, thread: Thread, instead_of: Thread | None) -> None:
        """Only where the run's thread is still ``instead_of``: of two first messages at the same moment one begins the
        thread, and the other stands beside it."""

    def fold(self, event: StageEvent, now: datetime) -> bool:
        """Keep an event for the morning and count it as handled, in one write; False where it was handled before."""

    def folded(self) -> Sequence[Folded]:
        """What waits for the morning, oldest first; bounded."""

    def unfold(self, told: Sequence[Folded]) -> None:
        """Take off what was told. Idempotent."""


class Outcome(StrEnum):
    """What became of a stage event."""

    SENT = "sent"
    FOLDED = "folded"
    """Kept for the message of the morning."""
    SKIPPED = "skipped"
    """Somebody else sent it, is sending it, or may have; it is not wanted; or no receiver is configured."""
    FAILED = "failed"
    """Rejected, or without an answer. Repeating is no use, or might send it twice."""


@dataclass(frozen=True)
class Notified:
    """``settled`` is False where the message went its way but the table could not be told. ``picture`` says what became of
    one; empty where there was none to show."""

    outcome: Outcome
    reason: str
    posts: int = 0
    settled: bool = True
    picture: str = ""


class NotDelivered(NightshiftError):
    """Known not to be delivered, and worth repeating: an error of the invocation, which Lambda repeats."""

    def __init__(self, run_id: str, delivery: Delivery) -> None:
        wait = f", which asked to wait {delivery.retry_after:.0f} s" if delivery.retry_after is not None else ""
        super().__init__(
            run_id,
            f"the message was not accepted after {delivery.posts} tries: {delivery.reason}{wait}",
            "It is sent again twice within minutes; the run itself is not touched.",
        )


_SKIPS = {
    Claim.SETTLED: "this message was handled before",
    Claim.BUSY: "this message is being sent by another invocation",
    Claim.UNCERTAIN: "this message may have been sent before a crash; it is not repeated, as its stage is not final",
}
NO_RECEIVER = Notified(Outcome.SKIPPED, "no receiver is configured")
NO_NIGHT = Night(0, 0)


def notify(
    event: StageEvent,
    log: NotificationLog,
    messenger: Messenger | None,
    *,
    holder: str,
    now: datetime,
    seconds: float,
    night: Night = NO_NIGHT,
    curve: Callable[[], bytes | None] = lambda: None,
) -> Notified:
    """Send the message of ``event`` unless that was done before, or keep it for the morning.

    ``messenger`` is None where no receiver is configured. ``seconds`` is the whole time for sending; a picture has its own.
    ``curve`` gives the run's picture, if there is one. Raises ``NotDelivered`` only where the message is known not to be
    delivered, and ``LogUnavailable`` before sending.
    """
    if messenger is None:
        return NO_RECEIVER
    if not is_wanted(event):
        return Notified(Outcome.SKIPPED, f"the run is to be {event.notify}")
    if is_folded(event, night, now):
        new = log.fold(event, now)
        return Notified(Outcome.FOLDED if new else Outcome.SKIPPED, "" if new else _SKIPS[Claim.SETTLED])
    # A refused request is no part of the run that already has its id.
    threaded = messenger.has_threads and event.stage is not Stage.REJECTED
    # Whatever may fail comes before the claim: an invocation that dies between claim and send loses the message.
    thread = log.thread(event.run_id) if threaded else None
    what, payload = subject(event), blocks(event)
    skipped = _claimed(log, what, holder, now, seconds)
    if skipped is not None:
        return skipped
    delivery = messenger.send(
        payload,
        repeat_unknown=event.stage.is_final,
        seconds=seconds,
        thread=thread,
        broadcast=event.stage in BROADCAST,
    )
    settled = _settled(log, what, holder, delivery, now)
    if delivery.result is Result.REFUSED:
        raise NotDelivered(event.run_id, delivery)
    if threaded and delivery.thread is not None and delivery.thread != thread:
        _keep_thread(log, event.run_id, delivery.thread, thread)
    shown = ""
    if event.stage.is_final and delivery.thread is not None:
        shown = _show_curve(event, log, messenger, delivery.thread, curve, holder, now)
    outcome = Outcome.SENT if delivery.result is Result.DELIVERED else Outcome.FAILED
    return Notified(outcome, delivery.reason, delivery.posts, settled, shown)


def tell_night(
    log: NotificationLog, messenger: Messenger | None, *, holder: str, now: datetime, seconds: float
) -> Notified:
    """One message about everything that waited for the morning. Raises as ``notify`` does; what was not delivered then still
    waits, and is told by the next repeat or the next morning."""
    if messenger is None:
        return NO_RECEIVER
    waiting = log.folded()
    if not waiting:
        return Notified(Outcome.SKIPPED, "nothing happened in the night")
    names = hashlib.sha256("\n".join(one.place for one in waiting).encode()).hexdigest()
    what = Subject(None, f"night-{names[:32]}", "night", True)
    skipped = _claimed(log, what, holder, now, seconds)
    if skipped is not None:
        if skipped.reason == _SKIPS[Claim.SETTLED]:
            log.unfold(waiting)  # it was delivered, and whoever told it died before taking it off
        return skipped
    delivery = messenger.send(night_blocks([one.event for one in waiting]), repeat_unknown=True, seconds=seconds)
    settled = _settled(log, what, holder, delivery, now)
    if delivery.result is Result.REFUSED:
        raise NotDelivered(what.shown, delivery)
    if delivery.result is Result.DELIVERED:
        log.unfold(waiting)
    outcome = Outcome.SENT if delivery.result is Result.DELIVERED else Outcome.FAILED
    return Notified(outcome, delivery.reason, delivery.posts, settled)


def _claimed(log: NotificationLog, what: Subject, holder: str, now: datetime, seconds: float) -> Notified | None:
    """None where the message is now this invocation's to send."""
    claim = log.claim(what, holder, now, now + timedelta(seconds=seconds) + CLAIM_MARGIN)
    return None if claim is Claim.TAKEN else Notified(Outcome.SKIPPED, _SKIPS[claim])


def _settled(log: NotificationLog, what: Subject, holder: str, delivery: Delivery, now: datetime) -> bool:
    """The message's fate is decided: an error of the table now would only make Lambda repeat it."""
    try:
        log.settle(what, holder, delivery, now)
    except LogUnavailable:
        return False
    return True


def _keep_thread(log: NotificationLog, run_id: str, thread: Thread, instead_of: Thread | None) -> None:
    """Without it the next message begins a thread: no reason to fail one that was sent."""
    try:
        log.keep_thread(run_id, thread, instead_of)
    except LogUnavailable:
        return


def _show_curve(
    event: StageEvent,
    log: NotificationLog,
    messenger: Messenger,
    thread: Thread,
    curve: Callable[[], bytes | None],
    holder: str,
    now: datetime,
) -> str:
    """The run's curve below its last message: at most once, and whatever comes of it, the message has been sent."""
    what = Subject(event.run_id, f"{event.key}-curve", event.stage.value, False)
    try:
        body = curve()
        if body is None:
            return "there is none"
        skipped = _claimed(log, what, holder, now, PICTURE_SECONDS)
        if skipped is not None:
            return skipped.reason
        picture = Picture("curve.png", f"{event.run_id}: success on the fixed set", body)
        delivery = messenger.attach(picture, thread, seconds=PICTURE_SECONDS)
        log.settle(what, holder, delivery, now)
    except LogUnavailable as problem:
        return str(problem)
    return delivery.reason
