"""NotifierFunction: EventBridge "Training Run State Changed" -> one Slack message; the clock in the morning -> another, about
what was kept for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import boto3
from aws_lambda_powertools.utilities.parameters import SecretsProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError
from aws_lambda_powertools.utilities.parser import ValidationError, parse
from aws_lambda_powertools.utilities.parser.models import EventBridgeModel
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from nightshift.adapters.artifacts import S3Artifacts
from nightshift.adapters.notification_log import DynamoNotificationLog
from nightshift.adapters.notifications import API, SlackBot, SlackWebhook
from nightshift.adapters.posting import WebhookRefused
from nightshift.contract.events import StageEvent
from nightshift.contract.layout import RunKeys
from nightshift.core.errors import NightshiftError
from nightshift.core.notices import Night
from nightshift.handlers.observability import logger, take, tracer
from nightshift.report.slack import blocks
from nightshift.steps.notify import PICTURE_SECONDS, Messenger, Notified, Outcome, notify, tell_night

SEND_SECONDS = 20.0
SPARE_SECONDS = PICTURE_SECONDS + 5.0
"""Kept of the invocation's time for a picture, for settling and for flushing metrics."""
MAX_PICTURE = 5_000_000
SECRET_SECONDS = 60
"""Age at which the secret is read again: a repeated invocation sees a corrected one."""


NIGHT = "night"
"""In place of a stage, where the message is about a whole night."""

SLACK_HOSTS = ("hooks.slack.com", "slack.com", "files.slack.com")


class StageChanged(EventBridgeModel):
    """The event as EventBridge delivers it."""

    detail: StageEvent


class Settings(BaseModel):
    """The environment of this function. No secret is in it."""

    model_config = ConfigDict(frozen=True)

    table_name: str
    slack_secret_arn: str = ""
    slack_allowed_hosts: tuple[str, ...] = SLACK_HOSTS
    bucket_name: str = ""
    night_begins: int = Field(0, ge=0, le=23)
    night_ends: int = Field(0, ge=0, le=23)
    ca_file: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        hosts = environment.get("SLACK_ALLOWED_HOSTS") or ",".join(SLACK_HOSTS)
        return cls(
            table_name=environment["TABLE_NAME"],
            slack_secret_arn=environment.get("SLACK_SECRET_ARN", "").strip(),
            slack_allowed_hosts=tuple(one.strip() for one in hosts.split(",") if one.strip()),
            bucket_name=environment.get("BUCKET_NAME", ""),
            night_begins=int(environment.get("NIGHT_BEGINS") or 0),
            night_ends=int(environment.get("NIGHT_ENDS") or 0),
            ca_file=environment.get("REQUESTS_CA_BUNDLE") or None,
        )


class _Receiver(BaseModel):
    """The secret's JSON: a bot, or else a webhook. Errors do not repeat their input."""

    model_config = ConfigDict(hide_input_in_errors=True)

    webhook_url: SecretStr | None = None
    bot_token: SecretStr | None = None
    channel: str | None = Field(None, pattern=r"^[CDG][A-Z0-9]{2,30}$", description="an id: files go by id only")
    api_url: str = API

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.webhook_url is None and (self.bot_token is None or self.channel is None):
            raise ValueError("no receiver")
        return self


class BadStageEvent(NightshiftError):
    """Not an event that Nightshift sends."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, f"no valid stage event: {problem}", "No message went out; look at what sent it.")


class ReceiverUnusable(NightshiftError):
    """The secret or the address in it cannot be used."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(
            run_id,
            problem,
            'Put {"bot_token": "xoxb-...", "channel": "C0123456789"} or {"webhook_url": "https://..."} into the secret; the '
            "run is not touched.",
        )


class Wiring:
    """Clients of this process, made at first use. Tests give their own ``settings`` and clients."""

    def __init__(self, settings: Settings, table: Any = None, secrets: SecretsProvider | None = None) -> None:
        self.settings = settings
        if table is not None:
            self.table = table
        if secrets is not None:
            self.secrets = secrets

    @cached_property
    def table(self) -> Any:
        quick = Config(connect_timeout=2, read_timeout=3, retries={"mode": "standard", "total_max_attempts": 2})
        return boto3.resource("dynamodb", config=quick).Table(self.settings.table_name)

    @cached_property
    def secrets(self) -> SecretsProvider:
        return SecretsProvider()

    @cached_property
    def artifacts(self) -> S3Artifacts:
        quick = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2})
        return S3Artifacts(boto3.client("s3", config=quick), self.settings.bucket_name)

    def receiver(self, run_id: str) -> Messenger | None:
        """The receiver of messages; None where none is configured. Raises ReceiverUnusable."""
        arn = self.settings.slack_secret_arn
        if not arn:
            return None
        try:
            text = self.secrets.get(arn, max_age=SECRET_SECONDS)
            said = _Receiver.model_validate_json(text if isinstance(text, (str, bytes)) else "")
            return self._messenger(said)
        except GetParameterError as error:
            raise ReceiverUnusable(run_id, f"the secret {arn} cannot be read: {error}") from None
        except ValidationError:
            problem = "is no JSON object with a bot_token and the id of a channel, or with a webhook_url"
            raise ReceiverUnusable(run_id, f"the secret {arn} {problem}") from None
        except WebhookRefused as error:
            raise ReceiverUnusable(run_id, str(error)) from None

    def _messenger(self, said: _Receiver) -> Messenger | None:
        hosts, ca_file = self.settings.slack_allowed_hosts, self.settings.ca_file
        if said.bot_token is not None and said.channel is not None:
            token = said.bot_token.get_secret_value()
            return SlackBot(token, said.channel, hosts, api=said.api_url, ca_file=ca_file)
        assert said.webhook_url is not None
        return SlackWebhook(said.webhook_url.get_secret_value(), hosts, ca_file=ca_file)

    def curve(self, run_id: str) -> bytes | None:
        """The run's picture as its job drew it; None where there is none, or none that can be had."""
        try:
            return self.artifacts.read_small(RunKeys(run_id).curve_png, MAX_PICTURE)
        except (BotoCoreError, ClientError) as error:
            logger.warning("the curve could not be read: %s", error)
            return None


_wiring: Wiring | None = None


def wiring() -> Wiring:
    """The process's wiring; made when the first event comes, so that importing this module touches nothing."""
    global _wiring
    if _wiring is None:
        _wiring = Wiring(Settings.read(os.environ))
    return _wiring


def stage_event(event: Mapping[str, Any]) -> StageEvent:
    """The detail of the event. Raises BadStageEvent with the names of the wrong fields."""
    detail = event.get("detail")
    run_id = str(detail.get("run_id", "unknown"))[:100] if isinstance(detail, Mapping) else "unknown"
    logger.append_keys(run_id=run_id)
    try:
        return parse(event=dict(event), model=StageChanged).detail
    except ValidationError as error:
        fields = sorted({".".join(map(str, one["loc"])) for one in error.errors()})
        newer = " (of a newer contract than this function knows)" if "detail.version" in fields else ""
        raise BadStageEvent(run_id, f"wrong fields: {', '.join(fields)[:500]}{newer}") from None


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Answers what became of the event. Raises only what is worth repeating: see ``notify``."""
    if event.get("source") == "aws.events":
        return _morning(context)
    try:
        stage = stage_event(event)
        logger.append_keys(stage=stage.stage.value, key=stage.key[:100])
        tracer.put_annotation(key="run_id", value=stage.run_id[:100])
        done = _notify(stage, context)
    except NightshiftError:
        take("NotificationFailed")
        raise
    _report(done, blocks(stage)["text"], stage.stage.value)
    return {"outcome": done.outcome.value}


def _notify(stage: StageEvent, context: LambdaContext) -> Notified:
    wired = wiring()
    return notify(
        stage,
        DynamoNotificationLog(wired.table),
        wired.receiver(stage.run_id),
        holder=context.aws_request_id,
        now=datetime.now(UTC),
        seconds=_seconds(context),
        night=Night(wired.settings.night_begins, wired.settings.night_ends),
        curve=lambda: wired.curve(stage.run_id),
    )


def _seconds(context: LambdaContext) -> float:
    """For sending."""
    return min(SEND_SECONDS, max(1.0, context.get_remaining_time_in_millis() / 1000 - SPARE_SECONDS))


def _morning(context: LambdaContext) -> dict[str, str]:
    """The message about the night. What the event says does not matter: what waits is told."""
    logger.append_keys(run_id=None)
    wired = wiring()
    log = DynamoNotificationLog(wired.table)
    try:
        done = tell_night(
            log,
            wired.receiver("of the night"),
            holder=context.aws_request_id,
            now=datetime.now(UTC),
            seconds=_seconds(context),
        )
    except NightshiftError:
        take("NotificationFailed", by=("stage", NIGHT))
        raise
    _report(done, "", NIGHT)
    return {"outcome": done.outcome.value}


def _report(done: Notified, text: str, stage: str) -> None:
    """One log line and one metric for each outcome."""
    extra = {"reason": done.reason, "posts": done.posts, "settled": done.settled, "picture": done.picture}
    if done.outcome is Outcome.SENT:
        take("NotificationSent", by=("stage", stage))
        logger.info("message sent", extra=extra)
    elif done.outcome is Outcome.FAILED:
        take("NotificationFailed", by=("stage", stage))
        logger.error("message not sent, or not known to be; it is not repeated", extra=extra)
    else:
        take("NotificationSkipped", by=("stage", stage))
        logger.info("no message sent", extra={**extra, "text": text})
