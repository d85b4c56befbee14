"""The table's memory of messages: which were sent, in which thread a run is told of, and what waits for the morning."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from boto3.dynamodb.conditions import Attr, ConditionBase, Key
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import ValidationError

from nightshift.contract.events import StageEvent
from nightshift.report.words import bounded
from nightshift.steps.notify import Claim, Delivery, Folded, LogUnavailable, Result, Subject, Thread, subject

logger = logging.getLogger(__name__)
NIGHT, FOLDED, THREAD = "NIGHT", "FOLDED#", "SLACK#THREAD"
MAX_FOLDED = 500
"""Of one morning's message; what is more is told the next morning."""


class DynamoNotificationLog:
    """``NotificationLog`` in the table: pk ``RUN#<run_id>`` or ``NIGHT``, sk ``NOTIFIED#<key>``. ``table`` is a boto3 Table.

    ``state`` is claimed, then delivered, rejected, unknown, open (refused: anybody may send it), or folded.
    """

    def __init__(self, table: Any) -> None:
        self._table = table

    def claim(self, what: Subject, holder: str, now: datetime, until: datetime) -> Claim:
        free = "attribute_not_exists(pk) OR #state = :open"
        values: dict[str, Any] = {":open": "open"}
        if what.is_final:
            free += " OR #state = :unknown OR (#state = :claimed AND (holder = :holder OR claimed_until < :now))"
            values |= {":unknown": "unknown", ":claimed": "claimed", ":holder": holder, ":now": _epoch(now)}
        if what.run_id is None:
            free += " OR #state = :rejected"
            values[":rejected"] = "rejected"
        item = {
            **_key(what),
            "version": 1,
            "state": "claimed",
            "stage": what.stage,
            "holder": holder,
            "claimed_at": now.isoformat(),
            "claimed_until": _epoch(until),
        }
        with _named(what, "claiming a message"):
            try:
                self._table.put_item(
                    Item=item,
                    ConditionExpression=free,
                    ExpressionAttributeNames={"#state": "state"},
                    ExpressionAttributeValues=values,
                )
            except ClientError as error:
                if _code(error) == "ConditionalCheckFailedException":
                    return self._why_not(what, holder, now)
                raise
        return Claim.TAKEN

    def _why_not(self, what: Subject, holder: str, now: datetime) -> Claim:
        item = self._table.get_item(Key=_key(what), ConsistentRead=True).get("Item") or {}
        given_up = item.get("state") == "rejected" and what.run_id is not None
        if given_up or item.get("state") in ("delivered", "folded"):
            return Claim.SETTLED
        live = item.get("holder") != holder and item.get("claimed_until", Decimal(0)) >= _epoch(now)
        return Claim.BUSY if item.get("state") != "unknown" and live else Claim.UNCERTAIN

    def settle(self, what: Subject, holder: str, delivery: Delivery, now: datetime) -> None:
        state = "open" if delivery.result is Result.REFUSED else delivery.result.value
        with _named(what, "settling a message"):
            try:
                self._table.update_item(
                    Key=_key(what),
                    UpdateExpression="SET #state = :state, settled_at = :at, reason = :reason, posts = :posts",
                    ConditionExpression="#state = :claimed AND holder = :holder",
                    ExpressionAttributeNames={"#state": "state"},
                    ExpressionAttributeValues={
                        ":state": state,
                        ":at": now.isoformat(),
                        ":reason": bounded(delivery.reason, 500),
                        ":posts": delivery.posts,
                        ":claimed": "claimed",
                        ":holder": holder,
                    },
                )
            except ClientError as error:
                if _code(error) != "ConditionalCheckFailedException":
                    raise

    # the thread ---------------------------------------------------------------------------------------------------
    def thread(self, run_id: str) -> Thread | None:
        with _named(Subject(run_id, "", "", False), "reading a thread"):
            item = self._table.get_item(Key=_thread_key(run_id), ConsistentRead=True).get("Item") or {}
        channel, ts = item.get("channel"), item.get("ts")
        return Thread(channel, ts) if isinstance(channel, str) and isinstance(ts, str) else None

    def keep_thread(self, run_id: str, thread: Thread, instead_of: Thread | None) -> None:
        same: ConditionBase = Attr("pk").not_exists()
        if instead_of is not None:
            same = same | (Attr("channel").eq(instead_of.channel) & Attr("ts").eq(instead_of.ts))
        with _named(Subject(run_id, "", "", False), "keeping a thread"):
            try:
                self._table.put_item(
                    Item={**_thread_key(run_id), "version": 1, "channel": thread.channel, "ts": thread.ts},
                    ConditionExpression=same,
                )
            except ClientError as error:
                if _code(error) != "ConditionalCheckFailedException":
                    raise

    # the night ----------------------------------------------------------------------------------------------------
    def fold(self, event: StageEvent, now: datetime) -> bool:
        """In one transaction: the event counts as handled, and waits for the morning."""
        what = subject(event)
        handled = {**_key(what), "version": 1, "state": "folded", "stage": what.stage, "settled_at": now.isoformat()}
        waiting = {"pk": NIGHT, "sk": f"{FOLDED}{event.at.isoformat()}#{_digest(what)}", "version": 1}
        free = {
            "ConditionExpression": "attribute_not_exists(pk) OR #state = :open",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":open": "open"},
        }
        puts = [
            {"Put": {"TableName": self._table.name, "Item": handled, **free}},
            {"Put": {"TableName": self._table.name, "Item": {**waiting, "event": event.to_json()}}},
        ]
        with _named(what, "keeping a message for the morning"):
            try:
                self._table.meta.client.transact_write_items(TransactItems=puts)
            except ClientError as error:
                reasons = {r.get("Code") for r in error.response.get("CancellationReasons", [])}
                if "ConditionalCheckFailed" in reasons:
                    return False
                raise
        return True

    def folded(self) -> Sequence[Folded]:
        with _named(NIGHT_SUBJECT, "reading what waits for the morning"):
            found = self._table.query(
                KeyConditionExpression=Key("pk").eq(NIGHT) & Key("sk").begins_with(FOLDED),
                Limit=MAX_FOLDED,
                ConsistentRead=True,
            )["Items"]
        return [one for one in map(_folded, found) if one is not None]

    def unfold(self, told: Sequence[Folded]) -> None:
        with _named(NIGHT_SUBJECT, "taking off what was told"), self._table.batch_writer() as batch:
            for one in told:
                batch.delete_item(Key={"pk": NIGHT, "sk": one.place})


NIGHT_SUBJECT = Subject(None, "", "", False)


def _folded(item: dict[str, Any]) -> Folded | None:
    try:
        return Folded(str(item["sk"]), StageEvent.from_json(str(item["event"])))
    except (KeyError, ValidationError):
        logger.error("item %s of the night is not believed: it holds no stage event", item.get("sk"))
        return None


@contextmanager
def _named(what: Subject, doing: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise LogUnavailable(what.shown, f"{doing} failed ({_code(error)})") from error


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else type(error).__name__


def _epoch(at: datetime) -> Decimal:
    return Decimal(f"{at.timestamp():.3f}")


def _key(what: Subject) -> dict[str, str]:
    pk = NIGHT if what.run_id is None else f"RUN#{_short(what.run_id)}"
    return {"pk": pk, "sk": f"NOTIFIED#{_short(what.key)}"}


def _thread_key(run_id: str) -> dict[str, str]:
    return {"pk": f"RUN#{_short(run_id)}", "sk": THREAD}


def _digest(what: Subject) -> str:
    return hashlib.sha256(f"{what.run_id}#{what.key}".encode("utf-8", "replace")).hexdigest()[:32]


def _short(text: str) -> str:
    """A refused request may carry any text as its id: DynamoDB's keys end at 1,024 bytes, so a long one is hashed."""
    raw = text.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= 500 else hashlib.sha256(raw).hexdigest()
