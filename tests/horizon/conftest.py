"""The shipped machines in a local cloud of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.cloud.deploy import deploy
from tests.horizon.drive import Stack
from tests.horizon.measure import Counts, Found, measure
from tests.horizon.stack import PARAMETERS, written
from tests.local_cloud.support import Cloud, probe_config, start

A_FEW = Counts(timed_out=3, woken=6, answered=6)
"""As many as `make test` has time for; ``python -m tests.horizon`` takes thousands."""


@pytest.fixture(scope="session")
def horizon_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("horizon")
    config = probe_config(folder / "cloud")
    child = start(config)
    running = Cloud(config)
    try:
        running.outputs = deploy(config, written(folder), PARAMETERS)
        yield running
    finally:
        assert child.stop() == 0


@pytest.fixture(scope="session")
def found(horizon_cloud: Cloud) -> Found:
    return measure(horizon_cloud, A_FEW)


@pytest.fixture
def stack(horizon_cloud: Cloud) -> Stack:
    return Stack(horizon_cloud)
