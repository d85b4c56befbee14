"""NotifierFunction: EventBridge "Training Run State Changed" -> one Slack message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import boto3
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.parameters import SecretsProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError
from aws_lambda_powertools.utilities.parser import ValidationError, parse
from aws_lambda_powertools.utilities.parser.models import EventBridgeModel
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.config import Config
from pydantic import BaseModel, ConfigDict, SecretStr

from nightshift.adapters.notifications import DynamoNotificationLog, SlackWebhook, WebhookRefused
from nightshift.contract.events import StageEvent
from nightshift.core.errors import NightshiftError
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.report.slack import blocks
from nightshift.steps.notify import Notified, Outcome, notify

SEND_SECONDS = 20.0
SPARE_SECONDS = 5.0
"""Kept of the invocation's time for settling and for flushing metrics."""
SECRET_SECONDS = 60
"""Age at which the secret is read again: a repeated invocation sees a corrected one."""


class StageChanged(EventBridgeModel):
    """The event as EventBridge delivers it."""

    detail: StageEvent


class Settings(BaseModel):
    """The environment of this function. No secret is in it."""

    model_config = ConfigDict(frozen=True)

    table_name: str
    slack_secret_arn: str = ""
    slack_allowed_hosts: tuple[str, ...] = ("hooks.slack.com",)
    ca_file: str | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        hosts = environment.get("SLACK_ALLOWED_HOSTS") or "hooks.slack.com"
        return cls(
            table_name=environment["TABLE_NAME"],
            slack_secret_arn=environment.get("SLACK_SECRET_ARN", "").strip(),
            slack_allowed_hosts=tuple(one.strip() for one in hosts.split(",") if one.strip()),
            ca_file=environment.get("REQUESTS_CA_BUNDLE") or None,
        )


class _Webhook(BaseModel):
    """The secret's JSON. Errors do not repeat their input."""

    model_config = ConfigDict(hide_input_in_errors=True)

    webhook_url: SecretStr


class BadStageEvent(NightshiftError):
    """Not an event that Nightshift sends."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, f"no valid stage event: {problem}", "No message went out; look at what sent it.")


class ReceiverUnusable(NightshiftError):
    """The secret or the address in it cannot be used."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem, 'Put {"webhook_url": "https://..."} into the secret; the run is not touched.')


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

    def webhook(self, run_id: str) -> SlackWebhook | None:
        """The receiver of messages; None where none is configured. Raises ReceiverUnusable."""
        arn = self.settings.slack_secret_arn
        if not arn:
            return None
        try:
            text = self.secrets.get(arn, max_age=SECRET_SECONDS)
            url = _Webhook.model_validate_json(
                text if isinstance(text, (str, bytes)) else ""
            ).webhook_url.get_secret_value()
            return SlackWebhook(url, self.settings.slack_allowed_hosts, ca_file=self.settings.ca_file)
        except GetParameterError as error:
            raise ReceiverUnusable(run_id, f"the secret {arn} cannot be read: {error}") from None
        except ValidationError:
            raise ReceiverUnusable(run_id, f"the secret {arn} has no JSON object with webhook_url") from None
        except WebhookRefused as error:
            raise ReceiverUnusable(run_id, str(error)) from None


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
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Answers what became of the event. Raises only what is worth repeating: see ``notify``."""
    try:
        stage = stage_event(event)
        logger.append_keys(stage=stage.stage.value, key=stage.key[:100])
        tracer.put_annotation(key="run_id", value=stage.run_id[:100])
        metrics.add_dimension(name="stage", value=stage.stage.value)
        done = _notify(stage, context)
    except NightshiftError:
        metrics.add_metric(name="NotificationFailed", unit=MetricUnit.Count, value=1)
        raise
    _report(stage, done)
    return {"outcome": done.outcome.value}


def _notify(stage: StageEvent, context: LambdaContext) -> Notified:
    wired = wiring()
    seconds = min(SEND_SECONDS, max(1.0, context.get_remaining_time_in_millis() / 1000 - SPARE_SECONDS))
    return notify(
        stage,
        DynamoNotificationLog(wired.table),
        wired.webhook(stage.run_id),
        holder=context.aws_request_id,
        now=datetime.now(UTC),
        seconds=seconds,
    )


def _report(stage: StageEvent, done: Notified) -> None:
    """One log line and one metric for each outcome."""
    extra = {"reason": done.reason, "posts": done.posts, "settled": done.settled}
    if done.outcome is Outcome.SENT:
        metrics.add_metric(name="NotificationSent", unit=MetricUnit.Count, value=1)
        logger.info("message sent", extra=extra)
    elif done.outcome is Outcome.FAILED:
        metrics.add_metric(name="NotificationFailed", unit=MetricUnit.Count, value=1)
        logger.error("message not sent, or not known to be; it is not repeated", extra=extra)
    else:
        metrics.add_metric(name="NotificationSkipped", unit=MetricUnit.Count, value=1)
        logger.info("no message sent", extra={**extra, "text": blocks(stage)["text"]})
