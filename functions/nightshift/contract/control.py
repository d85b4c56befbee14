"""control.json: what the controller asks of a running job."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from nightshift.contract.base import Document, ExternalText


class ControlCommand(StrEnum):
    """Read by the job between steps."""

    CHECKPOINT_NOW = "checkpoint_now"
    STOP_AFTER_CHECKPOINT = "stop_after_checkpoint"


class Control(Document):
    """One request; ``seq`` only rises, and the job acknowledges it in ``Progress.acknowledged``."""

    run_id: str
    seq: int = Field(ge=1)
    command: ControlCommand
    reason: ExternalText
    at: datetime
