"""The world of the step tests: real table, bucket and adapters on moto."""

from __future__ import annotations

from tests.steps.conftest import world

__all__ = ["world"]
