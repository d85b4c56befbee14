"""The real table and bucket on moto, and an environment in which the handlers find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from moto import mock_aws

from nightshift.handlers import wiring
from tests.steps.world import BUCKET, SESSION, World

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "TABLE_NAME": "runs",
    "BUCKET_NAME": BUCKET,
    "TRAINING_RUN_ARN": "arn:aws:states:us-east-1:123456789012:stateMachine:training_run",
    "HYPERPOD_CLUSTER_NAME": "hp",
    "NAMESPACE": "ns",
    "CONTROLLER_ROLE_ARN": "arn:aws:iam::123456789012:role/controller",
    "CONTROLLER_SESSION_NAME": "nightshift",
    "EKS_CLUSTER_NAME": "eks",
    "SERVICE_ACCOUNT": "sa",
    "SHARED_CLAIM_NAME": "shared",
    "POWERTOOLS_TRACE_DISABLED": "true",
    "POWERTOOLS_METRICS_DISABLED": "true",
}


@dataclass
class Context:
    """What Lambda gives a handler beside the event."""

    function_name: str = "function"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:function"
    aws_request_id: str = "request-1"

    def get_remaining_time_in_millis(self) -> int:
        return 40_000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        wiring.client.cache_clear()
        wiring.table.cache_clear()
        yield World(SESSION)
    wiring.client.cache_clear()
    wiring.table.cache_clear()


@pytest.fixture
def refuses(world: World, caplog: pytest.LogCaptureFixture) -> Callable[[str], None]:
    """Asserts that an object was named in the log as not believed."""

    def check(key: str) -> None:
        told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert any(t.startswith(f"{key} is not believed: ") for t in told), told

    return check


def lay(world: World, key: str, body: Any) -> None:
    world.s3.put_object(Bucket=BUCKET, Key=key, Body=body if isinstance(body, bytes) else str(body).encode())


@pytest.fixture(autouse=True)
def no_metrics_are_left() -> Iterator[None]:
    """A handler that raised keeps its metrics for the process's next one; here that would be another test's."""
    yield
    from nightshift.handlers.observability import metrics

    metrics.clear_metrics()
