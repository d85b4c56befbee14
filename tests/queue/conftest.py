"""The real table, bucket and adapters on moto, as for the other steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto import mock_aws

from tests.steps.world import SESSION, World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield World(SESSION)
