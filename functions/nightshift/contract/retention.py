"""How long what a run left on /shared stays there. What is in the bucket is nobody's to remove by itself."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from nightshift.contract.base import Model

OVER: Final = ("succeeded", "failed", "cancelled")
"""States of a run in which no job of it can be alive. A failed or cancelled one may be retried."""

MAX_DAYS: Final = 3_650


class Retention(Model):
    """Days from a run's end; none: the deployment's. A run that a kept run names as its parent stays whole as long as that."""

    succeeded_days: int | None = Field(
        None, ge=0, le=MAX_DAYS, description="of a success: its newest verified checkpoint, and what is left beside it"
    )
    rest_days: int | None = Field(
        None, ge=0, le=MAX_DAYS, description="of a success: everything but its newest verified checkpoint"
    )
    failed_days: int | None = Field(None, ge=0, le=MAX_DAYS, description="of a failure: everything, for a retry")
    cancelled_days: int | None = Field(
        None, ge=0, le=MAX_DAYS, description="of a cancelled run: everything, for a retry"
    )
