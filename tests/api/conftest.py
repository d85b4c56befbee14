"""The real handlers over the real table and bucket on moto; only the executions and the clock are played."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from tests.api.support import Http
from tests.steps.world import World


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    """One for all accounts: reading the services' descriptions is what costs most."""
    return boto3.Session("testing", "testing", region_name="us-east-1")


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch, session: boto3.Session) -> Iterator[Http]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield Http(World(session), session, monkeypatch)
