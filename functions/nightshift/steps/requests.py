"""What the state machines send to the controller function, and what it answers. Versioned: running executions meet new
code at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nightshift.contract.base import Document, ExternalText
from nightshift.core.run import Awaiting

StepName = Literal[
    "admit",
    "look",
    "preflight",
    "provision",
    "submit",
    "publish",
    "verify",
    "teardown",
    "release",
    "notify",
    "abandon",
    "successor",
]


class Fault(Document):
    """A state machine's error output: ``Error`` is its name, ``Cause`` a text or a Lambda's error document."""

    error: ExternalText = Field("unknown", alias="Error")
    cause: Annotated[str, StringConstraints(max_length=32_768)] = Field("", alias="Cause")


class StepRequest(Document):
    """Payload of every call. ``error`` comes with ``abandon`` only."""

    step: StepName
    run_id: str = Field(max_length=40)
    k: int = Field(ge=1)
    error: Fault | None = None


class LookRequest(StepRequest):
    """``token`` is answered by this look, or registered for signals. ``entered`` is when its state was entered, ``retry``
    how often that was tried again; executions from before these were sent have neither. ``parent`` is the version of the
    parent's machine: running executions meet new code at once, and one of before 2 knows no successor."""

    awaiting: Awaiting
    parent: int = Field(1, ge=1)
    shift_name: str
    shift_started: datetime
    token: str
    entered: datetime | None = None
    retry: int = Field(0, ge=0)

    @property
    def entry(self) -> str:
        """Sorts looks of a run by when their token was made: each look's state is entered after the one before was left,
        and each further try has a token of its own. A repeated invocation of a look has the same. Empty if unknown."""
        if self.entered is None:
            return ""
        return f"{self.entered.astimezone(UTC).isoformat(timespec='microseconds')}#{self.retry:03d}"


class Reply(Document):
    """``decision`` is the parent's transition; ``shift`` numbers the next shift; ``interval`` is the next nap in seconds."""

    decision: str
    shift: str = "0"
    interval: int = Field(60, ge=1)
