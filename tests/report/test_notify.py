"""One stage event, one message: the step on a real table and a real https receiver, through crashes and repeats."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from boto3.dynamodb.conditions import Key
from botocore.exceptions import ReadTimeoutError
from moto import mock_aws

from nightshift.adapters.notification_log import DynamoNotificationLog
from nightshift.adapters.notifications import SlackBot, SlackWebhook
from nightshift.contract.events import Stage, StageEvent
from nightshift.contract.spec import NotifyLevel
from nightshift.core.errors import NightshiftError
from nightshift.core.notices import Night
from nightshift.steps.notify import (
    Claim,
    Delivery,
    LogUnavailable,
    Messenger,
    NotDelivered,
    Notified,
    Outcome,
    Picture,
    Result,
    Subject,
    Thread,
    notify,
    subject,
    tell_night,
)
from tests.report.support import NOW, Answer, Receiver, event, receiver

ROOT = Path(__file__).resolve().parents[2]
FINAL, PASSING = event(Stage.FINISHED), event(Stage.RECOVERING, key="recovering-a1")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.resource("dynamodb").create_table(
            TableName="runs",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")],
        )


def webhook(slack: Receiver) -> SlackWebhook:
    return SlackWebhook(slack.url, slack.allowed, ca_file=str(slack.ca_file), sleep=lambda _: None)


def tell(
    table: Any, messenger: Messenger | None, one: StageEvent, holder: str = "request-1", now: datetime = NOW
) -> Notified:
    return notify(one, DynamoNotificationLog(table), messenger, holder=holder, now=now, seconds=20)


class Crash(BaseException):
    """The process ends here."""


class Dying:
    """Dies between claim and send."""

    has_threads = False

    def send(self, payload: Mapping[str, Any], **_: Any) -> Delivery:
        raise Crash

    def attach(self, picture: Picture, thread: Thread, *, seconds: float) -> Delivery:
        raise Crash


def crashed(table: Any, one: StageEvent) -> None:
    with pytest.raises(Crash):
        tell(table, Dying(), one)


def test_the_same_event_twice_is_one_message_and_another_key_another(table: Any, tmp_path: Path) -> None:
    with receiver(tmp_path) as slack:
        first = tell(table, webhook(slack), PASSING)
        again = tell(table, webhook(slack), PASSING, holder="request-2")
        other = tell(table, webhook(slack), event(Stage.RECOVERING, key="recovering-a2"))

    assert [one.outcome for one in (first, again, other)] == [Outcome.SENT, Outcome.SKIPPED, Outcome.SENT]
    assert len(slack.posts) == 2
    item = table.get_item(Key={"pk": "RUN#maze-demo", "sk": "NOTIFIED#recovering-a1"})["Item"]
    assert (item["state"], item["version"], item["posts"]) == ("delivered", 1, 1)


def test_an_event_that_arrives_while_its_twin_is_being_sent_sends_nothing(table: Any, tmp_path: Path) -> None:
    twin: list[Notified] = []

    class Meanwhile(Dying):
        def __init__(self, real: SlackWebhook) -> None:
            self.real = real

        def send(self, payload: Mapping[str, Any], **how: Any) -> Delivery:
            twin.append(tell(table, self.real, FINAL, holder="request-2"))
            return self.real.send(payload, **how)

    with receiver(tmp_path) as slack:
        assert tell(table, Meanwhile(webhook(slack)), FINAL).outcome is Outcome.SENT

    assert twin[0].outcome is Outcome.SKIPPED and "another invocation" in twin[0].reason
    assert len(slack.posts) == 1


@pytest.mark.parametrize("stage", [Stage.FINISHED, Stage.FAILED, Stage.CANCELLED])
def test_a_crash_before_sending_loses_no_final_message(table: Any, tmp_path: Path, stage: Stage) -> None:
    one = event(stage)
    crashed(table, one)
    with receiver(tmp_path) as slack:
        repeated = tell(table, webhook(slack), one, holder="request-1", now=NOW + timedelta(seconds=1))

    assert repeated.outcome is Outcome.SENT and len(slack.posts) == 1


def test_another_event_takes_a_crashed_final_message_over_when_its_claim_is_over_and_not_before(
    table: Any, tmp_path: Path
) -> None:
    crashed(table, FINAL)
    with receiver(tmp_path) as slack:
        early = tell(table, webhook(slack), FINAL, holder="request-2", now=NOW + timedelta(seconds=35))
        late = tell(table, webhook(slack), FINAL, holder="request-2", now=NOW + timedelta(seconds=35, milliseconds=1))

    assert (early.outcome, late.outcome, len(slack.posts)) == (Outcome.SKIPPED, Outcome.SENT, 1)


def test_a_message_that_is_not_final_is_not_repeated_after_a_crash_since_it_may_have_arrived(
    table: Any, tmp_path: Path
) -> None:
    crashed(table, PASSING)
    with receiver(tmp_path) as slack:
        same = tell(table, webhook(slack), PASSING)
        later = tell(table, webhook(slack), PASSING, holder="request-2", now=NOW + timedelta(hours=1))

    assert [same.outcome, later.outcome, len(slack.posts)] == [Outcome.SKIPPED, Outcome.SKIPPED, 0]
    assert "may have been sent" in same.reason


@pytest.mark.parametrize("one", [FINAL, PASSING], ids=["final", "not final"])
def test_a_refused_message_is_an_error_and_the_next_invocation_sends_it(
    table: Any, tmp_path: Path, one: StageEvent
) -> None:
    with receiver(tmp_path, *[Answer(503)] * 4, Answer(200)) as slack:
        with pytest.raises(NotDelivered, match=r"run maze-demo: .* answered 503"):
            tell(table, webhook(slack), one)
        again = tell(table, webhook(slack), one, holder="request-2")

    assert again.outcome is Outcome.SENT and len(slack.posts) == 5


def test_a_rejected_message_is_no_error_and_is_not_sent_again(table: Any, tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(404, body="no_service"), Answer(200)) as slack:
        first = tell(table, webhook(slack), FINAL)
        again = tell(table, webhook(slack), FINAL, holder="request-2")

    assert (first.outcome, again.outcome, len(slack.posts)) == (Outcome.FAILED, Outcome.SKIPPED, 1)
    assert "no_service" in first.reason


@pytest.mark.parametrize(("one", "posts"), [(FINAL, 2), (PASSING, 1)], ids=["final", "not final"])
def test_an_unanswered_message_is_no_error(table: Any, tmp_path: Path, one: StageEvent, posts: int) -> None:
    with receiver(tmp_path, Answer(None)) as slack:
        outcome = tell(table, webhook(slack), one).outcome

    assert (outcome, len(slack.posts)) == (Outcome.FAILED, posts)


def test_a_delivered_message_stays_delivered_when_the_table_cannot_be_told(table: Any, tmp_path: Path) -> None:
    class Deaf(DynamoNotificationLog):
        def settle(self, what: Subject, holder: str, delivery: Delivery, now: datetime) -> None:
            table.delete()
            super().settle(what, holder, delivery, now)

    with receiver(tmp_path) as slack:
        done = notify(FINAL, Deaf(table), webhook(slack), holder="r", now=NOW, seconds=20)

    assert (done.outcome, done.settled, len(slack.posts)) == (Outcome.SENT, False, 1)


def test_nothing_is_sent_while_the_table_does_not_answer(table: Any, tmp_path: Path) -> None:
    table.delete()
    with receiver(tmp_path) as slack, pytest.raises(LogUnavailable, match="run maze-demo: claiming a message failed"):
        tell(table, webhook(slack), FINAL)

    assert slack.posts == []


def test_a_late_sender_does_not_settle_a_claim_that_was_taken_over(table: Any) -> None:
    log = DynamoNotificationLog(table)
    crashed(table, FINAL)
    later = NOW + timedelta(minutes=2)
    log.claim(subject(FINAL), "request-2", later, later + timedelta(seconds=35))

    log.settle(subject(FINAL), "request-1", Delivery(Result.REFUSED, "late", 1), later)

    item = table.get_item(Key={"pk": "RUN#maze-demo", "sk": "NOTIFIED#finished"})["Item"]
    assert (item["state"], item["holder"]) == ("claimed", "request-2")


def test_a_refused_request_with_an_endless_id_is_told_once(table: Any, tmp_path: Path) -> None:
    one = event(Stage.REJECTED, run_id="ä" * 5_000, key="rejected-" + "k" * 5_000)
    with receiver(tmp_path) as slack:
        outcomes = [tell(table, webhook(slack), one).outcome for _ in range(2)]

    assert outcomes == [Outcome.SENT, Outcome.SKIPPED] and len(slack.posts) == 1


# ------------------------------------------------------------------ levels and the night
NIGHT = Night(22, 7)
AT_NIGHT, MORNING = NOW, NOW.replace(hour=7, minute=5)
RECOVERED = event(Stage.RECOVERED, key="recovered-a2", cause="node_lost", node="i-1", step=20, seconds=240.0)


def at_night(table: Any, messenger: Messenger, one: StageEvent, now: datetime = AT_NIGHT) -> Outcome:
    log = DynamoNotificationLog(table)
    return notify(one, log, messenger, holder="request-1", now=now, seconds=20, night=NIGHT).outcome


def in_the_morning(table: Any, messenger: Messenger, holder: str = "morning-1", now: datetime = MORNING) -> Notified:
    return tell_night(DynamoNotificationLog(table), messenger, holder=holder, now=now, seconds=20)


@pytest.mark.parametrize("stage", Stage)
def test_a_quiet_run_says_only_what_it_asks_and_how_it_ended(table: Any, tmp_path: Path, stage: Stage) -> None:
    with receiver(tmp_path) as slack:
        tell(table, webhook(slack), event(stage, notify=NotifyLevel.QUIET))

    loud = stage in (Stage.ASKING, Stage.FINISHED, Stage.FAILED, Stage.CANCELLED)
    assert len(slack.posts) == loud


def test_recoveries_of_a_night_are_one_message_in_the_morning_also_of_a_run_that_has_ended(
    table: Any, tmp_path: Path
) -> None:
    with receiver(tmp_path) as slack:
        hook = webhook(slack)
        for one in (PASSING, RECOVERED, RECOVERED, event(Stage.RECOVERED, run_id="maze-2", key="recovered-a2")):
            at_night(table, hook, one)
        assert slack.posts == []
        assert at_night(table, hook, FINAL) is Outcome.SENT, "an end is told at once"
        told, again = in_the_morning(table, hook), in_the_morning(table, hook, "morning-2")

    assert (told.outcome, again.outcome, len(slack.posts)) == (Outcome.SENT, Outcome.SKIPPED, 2)
    shown = slack.posts[1][1].decode()
    assert "2 recoveries in 2 runs" in shown and "maze-2" in shown and "i-1" in shown
    assert at_night(table, hook, RECOVERED) is Outcome.SKIPPED, "an event that comes again has been told"


@pytest.mark.parametrize(
    ("hour", "level", "sent"),
    [(22, "normal", 0), (6, "normal", 0), (7, "normal", 1), (21, "normal", 1), (3, "all", 1)],
)
def test_what_is_folded_is_a_recovery_in_the_night_of_a_run_that_does_not_want_all(
    table: Any, tmp_path: Path, hour: int, level: Any, sent: int
) -> None:
    with receiver(tmp_path) as slack:
        one = RECOVERED.model_copy(update={"notify": NotifyLevel(level)})
        at_night(table, webhook(slack), one, NOW.replace(hour=hour))

    assert len(slack.posts) == sent


def test_a_night_whose_message_is_not_accepted_is_told_later_and_nothing_of_it_is_lost(
    table: Any, tmp_path: Path
) -> None:
    with receiver(tmp_path, *[Answer(503)] * 4, Answer(200)) as slack:
        hook = webhook(slack)
        at_night(table, hook, RECOVERED)
        with pytest.raises(NotDelivered, match="of the night"):
            in_the_morning(table, hook)
        at_night(table, hook, event(Stage.RECOVERED, run_id="maze-2", key="recovered-a2"), NOW + timedelta(days=1))
        assert in_the_morning(table, hook, "morning-2", MORNING + timedelta(days=1)).outcome is Outcome.SENT

    assert "2 recoveries in 2 runs" in slack.posts[-1][1].decode()


@pytest.mark.parametrize("more", [False, True], ids=["the same night", "and another"])
def test_a_night_whose_message_was_rejected_is_told_once_the_receiver_takes_it(
    table: Any, tmp_path: Path, more: bool
) -> None:
    with receiver(tmp_path, Answer(404, body="no_service"), Answer(403), Answer(200)) as slack:
        hook = webhook(slack)
        at_night(table, hook, RECOVERED)
        outcomes = [
            in_the_morning(table, hook, f"morning-{day}", MORNING + timedelta(days=day)).outcome for day in (1, 2)
        ]
        if more:
            at_night(table, hook, event(Stage.RECOVERED, run_id="maze-2", key="recovered-a2"), NOW + timedelta(days=2))
        outcomes += [
            in_the_morning(table, hook, f"morning-{day}", MORNING + timedelta(days=day)).outcome for day in (3, 4)
        ]

    assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.SENT, Outcome.SKIPPED]
    assert len(slack.posts) == 3 and b"maze-demo" in slack.posts[2][1] and (b"maze-2" in slack.posts[2][1]) is more


def test_a_night_that_another_invocation_saw_rejected_still_waits(table: Any, tmp_path: Path) -> None:
    """Between the claim that was not had and the look at why, the other one's message is rejected."""
    log = DynamoNotificationLog(table)
    with receiver(tmp_path) as slack:
        hook = webhook(slack)
        at_night(table, hook, RECOVERED)
        with receiver(tmp_path, Answer(404)) as gone:
            in_the_morning(table, webhook(gone))
        [night] = table.query(KeyConditionExpression=Key("pk").eq("NIGHT") & Key("sk").begins_with("NOTIFIED#"))[
            "Items"
        ]
        what = Subject(None, night["sk"].removeprefix("NOTIFIED#"), "night", True)

        assert log._why_not(what, "morning-2", MORNING) is not Claim.SETTLED
        assert in_the_morning(table, hook, "morning-2").outcome is Outcome.SENT


def test_a_crash_in_the_morning_loses_no_night_and_one_after_the_message_tells_none_twice(
    table: Any, tmp_path: Path
) -> None:
    class Deaf(DynamoNotificationLog):
        def unfold(self, told: Any) -> None:
            raise Crash

    with receiver(tmp_path) as slack:
        hook = webhook(slack)
        at_night(table, hook, RECOVERED)
        with pytest.raises(Crash):
            in_the_morning(table, Dying())
        with pytest.raises(Crash):
            tell_night(Deaf(table), hook, holder="morning-1", now=MORNING, seconds=20)
        after = in_the_morning(table, hook, "morning-2")
        empty = in_the_morning(table, hook, "morning-3")

    assert (after.outcome, len(slack.posts)) == (Outcome.SKIPPED, 1)
    assert empty.reason == "nothing happened in the night"


# ------------------------------------------------------------------ one thread a run, and its curve
def bot(slack: Receiver) -> SlackBot:
    api = f"https://localhost:{slack.port}/api"
    return SlackBot(
        "xoxb-verysecret", "C012345", slack.allowed, api=api, ca_file=str(slack.ca_file), sleep=lambda _: None
    )


def ok(**said: Any) -> Answer:
    return Answer(body=json.dumps({"ok": True, **said}))


def placed(ts: str) -> Answer:
    return ok(channel="C012345", ts=ts)


def asked(slack: Receiver) -> list[tuple[str, dict[str, Any]]]:
    """(method, its arguments) of every call in JSON."""
    return [(path.rsplit("/", 1)[-1], json.loads(body)) for path, body in slack.posts if body.startswith(b"{")]


def test_a_run_is_one_thread_and_the_channel_hears_only_of_what_matters(table: Any, tmp_path: Path) -> None:
    with receiver(tmp_path, placed("1.1"), placed("1.2"), placed("1.3"), placed("1.4")) as slack:
        for one in (event(Stage.STARTED), PASSING, event(Stage.ASKING), event(Stage.REJECTED)):
            assert tell(table, bot(slack), one).outcome is Outcome.SENT

    told = [said for _, said in asked(slack)]
    assert [said.get("thread_ts") for said in told] == [None, "1.1", "1.1", None], (
        "a refused request is no part of the run"
    )
    assert [said.get("reply_broadcast") for said in told] == [None, False, True, None]
    assert {said["channel"] for said in told} == {"C012345"} and slack.tokens == ["Bearer xoxb-verysecret"] * 4


@pytest.mark.parametrize("one", [FINAL, PASSING], ids=["final", "not final"])
@pytest.mark.parametrize("operation", ["GetItem", "PutItem"])
def test_a_table_that_fails_once_before_sending_loses_no_message(
    table: Any, tmp_path: Path, one: StageEvent, operation: str
) -> None:
    def failing(**_: Any) -> None:
        table.meta.client.meta.events.unregister(f"before-call.dynamodb.{operation}", failing)
        raise ReadTimeoutError(endpoint_url="https://dynamodb")

    with receiver(tmp_path, placed("1.1")) as slack:
        table.meta.client.meta.events.register(f"before-call.dynamodb.{operation}", failing)
        with pytest.raises(LogUnavailable, match=r"run maze-demo: .* \(ReadTimeoutError\)"):
            tell(table, bot(slack), one)
        assert slack.posts == []
        again = tell(table, bot(slack), one, now=NOW + timedelta(minutes=1))

    assert (again.outcome, len(slack.posts)) == (Outcome.SENT, 1)


def test_of_two_first_messages_at_the_same_moment_one_begins_the_thread(table: Any) -> None:
    log = DynamoNotificationLog(table)
    log.keep_thread("maze-demo", Thread("C1", "1.1"), None)
    log.keep_thread("maze-demo", Thread("C1", "1.2"), None)

    assert log.thread("maze-demo") == Thread("C1", "1.1") and log.thread("maze-2") is None


@pytest.mark.parametrize(
    "answers",
    [[placed("2.1")], [Answer(body='{"ok": false, "error": "cannot_reply_to_message"}'), placed("2.1")]],
    ids=["the secret names another channel", "the thread is gone"],
)
def test_a_run_whose_thread_cannot_be_used_goes_on_in_a_new_one(
    table: Any, tmp_path: Path, answers: list[Answer]
) -> None:
    old = Thread("C012345" if len(answers) == 2 else "C0OLD", "1.1")
    DynamoNotificationLog(table).keep_thread("maze-demo", old, None)
    with receiver(tmp_path, *answers, placed("2.2")) as slack:
        for one in (PASSING, event(Stage.ASKING)):
            assert tell(table, bot(slack), one).outcome is Outcome.SENT

    assert {said["channel"] for _, said in asked(slack)} == {"C012345"}
    assert [said.get("thread_ts") for _, said in asked(slack)][-2:] == [None, "2.1"]
    assert DynamoNotificationLog(table).thread("maze-demo") == Thread("C012345", "2.1")


def test_the_last_message_shows_the_curve_below_it_once(table: Any, tmp_path: Path) -> None:
    with receiver(tmp_path) as slack:
        upload = f"https://localhost:{slack.port}/upload/v1/verysecret"
        slack.answers[:] = [placed("1.1"), ok(upload_url=upload, file_id="F1"), Answer(body="OK - 3"), ok(files=[])]
        log, messenger = DynamoNotificationLog(table), bot(slack)
        for holder in ("request-1", "request-2"):
            notify(FINAL, log, messenger, holder=holder, now=NOW, seconds=20, curve=lambda: b"PNG")

    paths = [path for path, _ in slack.posts]
    assert paths == [
        "/api/chat.postMessage",
        "/api/files.getUploadURLExternal",
        "/upload/v1/verysecret",
        "/api/files.completeUploadExternal",
    ]
    assert slack.posts[1][1] == b"filename=curve.png&length=3" and slack.posts[2][1] == b"PNG"
    shared = json.loads(slack.posts[3][1])
    assert (shared["files"][0]["id"], shared["channel_id"], shared["thread_ts"]) == ("F1", "C012345", "1.1")
    assert slack.tokens[2] is None, "the address alone is the right to upload: no token goes there"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([Answer(body='{"ok": false, "error": "missing_scope"}')], "missing_scope"),
        ([ok(upload_url="https://files.evil.example/x", file_id="F1")], "files.evil.example:443 is not one of"),
        ([ok()], "no address"),
    ],
)
def test_a_picture_that_cannot_be_shown_costs_the_message_nothing(
    table: Any, tmp_path: Path, answers: list[Answer], says: str
) -> None:
    with receiver(tmp_path, placed("1.1"), *answers) as slack:
        log = DynamoNotificationLog(table)
        done = notify(FINAL, log, bot(slack), holder="r", now=NOW, seconds=20, curve=lambda: b"PNG")

    assert done.outcome is Outcome.SENT and says in done.picture and "verysecret" not in done.picture


# ------------------------------------------------------------------ the Lambda handler
@dataclass
class Context:
    """What the handler and powertools read of Lambda's context object."""

    aws_request_id: str = "request-1"
    function_name: str = "notifier"
    memory_limit_in_mb: int = 256
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:notifier"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


@dataclass
class Lambda:
    """The handler with its environment; what it printed is kept."""

    module: ModuleType
    log: io.StringIO
    capsys: pytest.CaptureFixture[str]

    def __call__(self, one: StageEvent | dict[str, Any]) -> dict[str, str]:
        detail = one.model_dump(mode="json", exclude_none=True) if isinstance(one, StageEvent) else one
        return self.module.handler(
            {
                "version": "0", "id": "e-1", "source": "nightshift", "account": "123456789012", "resources": [],
                "time": "2026-11-30T01:02:03Z", "region": "us-east-1", "detail": detail,
                "detail-type": "Training Run State Changed",
            },
            Context(),
        )  # fmt: skip

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def metrics(self) -> list[str]:
        printed = [json.loads(line) for line in self.capsys.readouterr().out.splitlines() if '"_aws"' in line]
        sums = [line for line in printed if "stage" not in line]
        return [one["Name"] for line in sums for one in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]]


@pytest.fixture
def function(
    table: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[Lambda, Any]]:
    """The handler without a receiver, and a function that gives it one by its secret."""
    for name, value in {
        "TABLE_NAME": "runs", "POWERTOOLS_SERVICE_NAME": "nightshift", "POWERTOOLS_METRICS_NAMESPACE": "Nightshift",
        "POWERTOOLS_TRACE_DISABLED": "true", "LOG_LEVEL": "INFO", "SLACK_SECRET_ARN": "",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "nightshift.handlers.notifier", raising=False)
    import nightshift.handlers.notifier as module

    log = io.StringIO()
    monkeypatch.setattr(module.logger.handlers[0], "stream", log)

    def configure(secret: str, slack: Receiver | None = None) -> None:
        arn = boto3.client("secretsmanager").create_secret(Name="slack", SecretString=secret)["ARN"]
        monkeypatch.setenv("SLACK_SECRET_ARN", arn)
        if slack:
            monkeypatch.setenv("SLACK_ALLOWED_HOSTS", slack.allowed[0])
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(slack.ca_file))

    yield Lambda(module, log, capsys), configure
    sys.modules.pop("nightshift.handlers.notifier", None)


def test_the_function_sends_logs_with_the_run_and_counts(function: Any, tmp_path: Path) -> None:
    run, configure = function
    with receiver(tmp_path) as slack:
        configure(json.dumps({"webhook_url": slack.url}), slack)
        assert run(FINAL) == {"outcome": "sent"}
        assert run(FINAL) == {"outcome": "skipped"}

    assert len(slack.posts) == 1 and "maze-demo finished" in slack.posts[0][1].decode()
    assert [line["run_id"] for line in run.lines] == ["maze-demo"] * 2
    assert run.metrics() == ["NotificationSent", "NotificationSkipped"]
    assert "verysecret" not in run.log.getvalue()


def test_the_function_takes_a_bot_from_its_secret_and_shows_the_curve(
    function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, configure = function
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="artifacts")
    s3.put_object(Bucket="artifacts", Key="runs/maze-demo/curve.png", Body=b"PNG")
    monkeypatch.setenv("BUCKET_NAME", "artifacts")
    with receiver(tmp_path) as slack:
        upload = f"https://localhost:{slack.port}/upload"
        slack.answers[:] = [placed("1.1"), ok(upload_url=upload, file_id="F1"), Answer(), ok()]
        api = f"https://localhost:{slack.port}/api"
        configure(json.dumps({"bot_token": "xoxb-verysecret", "channel": "C012345", "api_url": api}), slack)
        assert run(FINAL) == {"outcome": "sent"}

    assert len(slack.posts) == 4 and slack.posts[2][1] == b"PNG"
    assert run.lines[0]["picture"] == "accepted" and "verysecret" not in run.log.getvalue()


def test_the_clock_makes_the_function_tell_the_night(
    function: Any, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, configure = function
    hour = datetime.now(UTC).hour
    monkeypatch.setenv("NIGHT_BEGINS", str((hour - 1) % 24))
    monkeypatch.setenv("NIGHT_ENDS", str((hour + 2) % 24))
    clock = json.loads((ROOT / "events" / "morning.json").read_text())
    with receiver(tmp_path) as slack:
        configure(json.dumps({"webhook_url": slack.url}), slack)
        assert run(RECOVERED) == {"outcome": "folded"}
        assert run.module.handler(clock, Context()) == {"outcome": "sent"}
        assert run.module.handler(clock, Context()) == {"outcome": "skipped"}

    assert len(slack.posts) == 1 and b"Last night: one recovery" in slack.posts[0][1]


def test_without_a_receiver_the_function_logs_the_message_and_ends_well(function: Any, table: Any) -> None:
    run, _ = function
    assert run(FINAL) == {"outcome": "skipped"}

    [line] = run.lines
    assert line["text"] == "maze-demo finished" and line["reason"] == "no receiver is configured"
    assert table.scan()["Count"] == 0


def test_a_message_that_was_refused_is_an_error_of_the_invocation_and_counted(function: Any, tmp_path: Path) -> None:
    run, configure = function
    with receiver(tmp_path, Answer(429, {"Retry-After": "60"})) as slack:
        configure(json.dumps({"webhook_url": slack.url}), slack)
        with pytest.raises(Exception, match="asked to wait 60 s"):
            run(FINAL)

    assert run.metrics() == ["NotificationFailed"]


def test_a_message_that_was_rejected_is_logged_as_an_error_and_not_raised(function: Any, tmp_path: Path) -> None:
    run, configure = function
    with receiver(tmp_path, Answer(404, body="no_service")) as slack:
        configure(json.dumps({"webhook_url": slack.url}), slack)
        assert run(FINAL) == {"outcome": "failed"}

    assert run.lines[0]["level"] == "ERROR" and "no_service" in run.lines[0]["reason"]


@pytest.mark.parametrize(
    "secret",
    [
        "verysecret",
        '{"url": "https://hooks.slack.com/verysecret"}',
        '{"webhook_url": "https://evil.example/verysecret"}',
        '{"webhook_url": ["verysecret"]}',
        '{"bot_token": "xoxb-verysecret"}',
        '{"bot_token": "xoxb-verysecret", "channel": "#general"}',
        '{"bot_token": "xoxb-verysecret", "channel": "C012345", "api_url": "https://evil.example/verysecret"}',
        json.dumps({"bot_token": "xoxb-\nverysecret", "channel": "C012345"}),
        json.dumps({"bot_token": "xoxb-verysecret\u200b", "channel": "C012345"}),
        json.dumps({"bot_token": " \n", "channel": "C012345"}),
        json.dumps({"webhook_url": "https://hooks.slack.com/verysecret/\u00e4"}),
        json.dumps({"webhook_url": "https://hooks.slack.com/verysecret a"}),
    ],
)
def test_an_unusable_secret_is_an_error_that_does_not_tell_it(
    function: Any, table: Any, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    run, configure = function
    configure(secret)
    with pytest.raises(Exception, match=r"run maze-demo: .*webhook_url") as failure:
        run(FINAL)

    assert failure.value.__cause__ is None
    for told in (str(failure.value), run.log.getvalue(), run.capsys.readouterr().out, caplog.text):
        assert "verysecret" not in told
    assert table.scan()["Count"] == 0, "nothing is claimed that could not be sent"


def test_a_token_that_was_copied_with_a_line_end_is_used_without_it_and_told_to_nobody_else(
    function: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, configure = function
    caplog.set_level(logging.INFO)
    with receiver(tmp_path, placed("1.1")) as slack:
        api = f"https://localhost:{slack.port}/api"
        configure(json.dumps({"bot_token": "xoxb-verysecret\r\n", "channel": "C012345", "api_url": api}), slack)
        assert run(PASSING) == {"outcome": "sent"}

    assert slack.tokens == ["Bearer xoxb-verysecret"]
    assert "verysecret" not in run.log.getvalue() + run.capsys.readouterr().out + caplog.text


def test_an_event_that_is_no_stage_event_is_refused_by_the_names_of_its_fields(function: Any) -> None:
    run, _ = function
    with pytest.raises(Exception, match=r"run maze-demo: no valid stage event: .*detail\.stage") as failure:
        run({"run_id": "maze-demo", "stage": "dancing", "key": "k", "at": "2026-11-30T01:02:03Z"})

    assert "dancing" not in str(failure.value)
    assert isinstance(failure.value, NightshiftError)
