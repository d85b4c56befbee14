"""The real handlers over the real table and bucket on moto; only the executions and the clock are played."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from tests.api.support import Http
from tests.steps.world import World


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> Iterator[Http]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield Http(World(boto3.Session(region_name="us-east-1")), monkeypatch)
