"""What to do next. The shell carries a decision out; it never makes one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift.contract.control import ControlCommand
from nightshift.core.causes import EndCause


class Verb(StrEnum):
    """HOLD looks again within the same invocation; NAP sleeps until a signal or the interval's end.
    The others end the shift and are the parent's transitions."""

    HOLD = "hold"
    NAP = "nap"
    READY = "ready"
    RECOVER = "recover"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Decision:
    """``why`` is one sentence for the audit trail. ``ask`` puts a question to a person, about that cause; the run goes on
    waiting meanwhile. ``delete_pods`` and ``recreate_cluster`` are a fence's stronger means. ``smaller``: from here on the
    run trains with the spec's smaller values."""

    verb: Verb
    why: str
    cause: EndCause | None = None
    node: str | None = None
    control: ControlCommand | None = None
    stop_job: bool = False
    create_cluster: bool = False
    delete_pods: bool = False
    recreate_cluster: bool = False
    ask: EndCause | None = None
    smaller: bool = False
