"""Requests as API Gateway hands them to the functions, and the dashboards that a test plays."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3
import pytest
from botocore.config import Config

from nightshift.adapters.downloads import S3Downloads
from nightshift.core.errors import NightshiftError
from nightshift.core.run import Run, RunState
from nightshift.handlers import api, dashboard
from nightshift.handlers.wiring import ApiPorts
from tests.steps.world import BUCKET, World

ME = "arn:aws:sts::123456789012:assumed-role/Trainer/me@example.org"
OTHER = "arn:aws:sts::123456789012:assumed-role/Trainer/you@example.org"
ENVIRONMENT = {
    "TABLE_NAME": "runs", "BUCKET_NAME": BUCKET, "AWS_REGION": "us-east-1", "TRAINING_RUN_ARN": "arn:x",
    "HYPERPOD_CLUSTER_NAME": "hp", "NAMESPACE": "ns", "POWERTOOLS_TRACE_DISABLED": "1", "CONTROLLER_ROLE_ARN": "arn:r",
    "CONTROLLER_SESSION_NAME": "nightshift-controller", "EKS_CLUSTER_NAME": "eks", "SERVICE_ACCOUNT": "job",
    "SHARED_CLAIM_NAME": "shared",
}  # fmt: skip
CONTEXT = SimpleNamespace(
    function_name="api", memory_limit_in_mb=1, invoked_function_arn="arn:f", aws_request_id="1",
    get_remaining_time_in_millis=lambda: 20_000,
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    status: int
    kind: str
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """The kind of problem."""
        assert self.kind == "application/problem+json" and self.body["status"] == self.status
        return str(self.body["type"]).removeprefix("urn:nightshift:problem:")


@dataclass
class Dashboards:
    """Mints addresses, or fails as it is told to."""

    failing: NightshiftError | None = None
    asked: list[str] = field(default_factory=list)

    def address(self, raycluster: str) -> str:
        self.asked.append(raycluster)
        if self.failing is not None:
            raise self.failing
        return f"https://dash.example.org/bearer-auth?token={raycluster}-t0ken"


class Http:
    """``say`` is one signed request; ``operators`` are the deployment's."""

    def __init__(self, world: World, session: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.dashboards, self._patch = world, Dashboards(), monkeypatch
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        signing = session.client("s3", config=Config(signature_version="s3v4"))
        wired = ApiPorts(world.ports, world.runs, S3Downloads(signing, BUCKET), world.runs)
        monkeypatch.setattr(api, "api_ports", lambda *_: wired)
        monkeypatch.setattr(dashboard, "store_ports", lambda *_: world.ports)
        monkeypatch.setattr(dashboard, "dashboards", lambda _: self.dashboards)

    def operators(self, patterns: str) -> None:
        self._patch.setenv("OPERATOR_ARNS", patterns)

    def say(
        self, method: str, address: str, body: Any = None, who: str = ME, raw: str | None = None, **event: Any
    ) -> Said:
        parts = urlsplit(address)
        sent: dict[str, Any] = {
            "version": "2.0",
            "rawPath": parts.path,
            "rawQueryString": parts.query,
            "requestContext": {
                "http": {"method": method, "path": parts.path},
                "stage": "$default",
                "authorizer": {"iam": {"userArn": who}},
            },
            "headers": {},
            "body": raw if raw is not None else None if body is None else json.dumps(body),
        } | event
        if parts.query:
            sent["queryStringParameters"] = dict(parse_qsl(parts.query, keep_blank_values=True))
        function = dashboard if parts.path.endswith("/dashboard") else api
        told = function.handler(sent, CONTEXT)  # type: ignore[arg-type]
        headers = {name: values[0] if isinstance(values, list) else values for name, values in told["headers"].items()}
        return Said(told["statusCode"], headers["Content-Type"], json.loads(told["body"]), headers)

    def get(self, address: str, who: str = ME) -> Said:
        return self.say("GET", address, who=who)

    def post(self, address: str, body: Any = None, who: str = ME) -> Said:
        return self.say("POST", address, body, who)

    def start(self, run_id: str, who: str = ME, **changes: Any) -> Said:
        from tests.builders import spec_json

        return self.post("/runs", {"spec": spec_json(run_id=run_id, **changes)}, who)

    def over(self, run_id: str, state: RunState = RunState.FAILED, **changes: Any) -> Run:
        """The run's last write, and its last message."""
        run = self.world.runs.finish(self.world.run(run_id), state, ended_at=self.world.now(), **changes)
        self.world.runs.told(run_id)
        return run
