"""One stage event becomes at most one message; of a final stage at least one, as far as that can be known.

A message is claimed in the table before it is sent and settled afterwards. A crash between the two leaves a claim that
nobody settled, and nobody can know whether the message went out: one of a final stage is then sent again, since a
second "finished" hurts less than none; any other is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from nightshift.contract.events import StageEvent
from nightshift.core.errors import NightshiftError
from nightshift.report.slack import blocks

CLAIM_MARGIN = timedelta(seconds=15)
"""A claim outlives its sending by this much. Lambda repeats a failed invocation after a minute: by then it is over."""


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
class Delivery:
    """``reason`` is for a person, bounded, without secrets. ``retry_after`` is in seconds, as the receiver asked."""

    result: Result
    reason: str
    posts: int
    retry_after: float | None = None


class Messenger(Protocol):
    """The outside world of one webhook."""

    def send(self, payload: Mapping[str, Any], *, repeat_unknown: bool, seconds: float) -> Delivery:
        """Send within ``seconds``. What is known not to be accepted is repeated within that budget; what may have been
        accepted only with ``repeat_unknown``. Raises nothing for what the network does."""


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


class NotificationLog(Protocol):
    """Which messages were sent. Every method raises ``LogUnavailable``."""

    def claim(self, event: StageEvent, holder: str, now: datetime, until: datetime) -> Claim:
        """Atomic. ``holder`` is the same when one invocation is repeated, and different otherwise. An unsettled claim
        is taken over only for a final stage: at once by its own holder, by others after its ``until``."""

    def settle(self, event: StageEvent, holder: str, delivery: Delivery, now: datetime) -> None:
        """End the holder's claim. A refused message is open again; a claim that was taken over is left alone."""


class Outcome(StrEnum):
    """What became of a stage event."""

    SENT = "sent"
    SKIPPED = "skipped"
    """Somebody else sent it, is sending it, or may have; or no receiver is configured."""
    FAILED = "failed"
    """Rejected, or without an answer. Repeating is no use, or might send it twice."""


@dataclass(frozen=True)
class Notified:
    """``settled`` is False where the message went its way but the table could not be told."""

    outcome: Outcome
    reason: str
    posts: int = 0
    settled: bool = True


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


def notify(
    event: StageEvent, log: NotificationLog, messenger: Messenger | None, *, holder: str, now: datetime, seconds: float
) -> Notified:
    """Send the message of ``event`` unless that was done before.

    ``messenger`` is None where no receiver is configured. ``seconds`` is the whole time for sending.
    Raises ``NotDelivered`` only where the message is known not to be delivered, and ``LogUnavailable`` before sending.
    """
    if messenger is None:
        return Notified(Outcome.SKIPPED, "no receiver is configured")
    claim = log.claim(event, holder, now, now + timedelta(seconds=seconds) + CLAIM_MARGIN)
    if claim is not Claim.TAKEN:
        return Notified(Outcome.SKIPPED, _SKIPS[claim])
    delivery = messenger.send(blocks(event), repeat_unknown=event.stage.is_final, seconds=seconds)
    try:
        log.settle(event, holder, delivery, now)
        settled = True
    except LogUnavailable:
        # The message's fate is decided: an error now would only make Lambda repeat it.
        settled = False
    if delivery.result is Result.REFUSED:
        raise NotDelivered(event.run_id, delivery)
    outcome = Outcome.SENT if delivery.result is Result.DELIVERED else Outcome.FAILED
    return Notified(outcome, delivery.reason, delivery.posts, settled)
