"""What is known about one fault's run when all is over, most of it not from the run's own record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from local.chaos.processes import Driver
from nightshift.contract import Progress
from nightshift.contract.api import RunView


@dataclass(frozen=True)
class Expected:
    """What must have come of a fault. ``causes`` and ``signals`` say what may stand at each attempt that ended early;
    where ``signals`` is empty, anything may. ``rollbacks`` counts checkpoints that the fault broke after they had been
    verified: each may cost one interval more.
    """

    state: str = "succeeded"
    attempts: tuple[int, int] = (2, 2)
    causes: frozenset[str] = frozenset()
    signals: frozenset[str] = frozenset()
    rollbacks: int = 0
    decided_within: float | None = None
    running_p95: float | None = None
    manifest: bool = True


@dataclass(frozen=True)
class Hit:
    """A fault and what followed: ``attempt`` is the one that was hit; all times are seconds since the epoch."""

    attempt: int
    at: float
    decided: float | None = None
    running: float | None = None
    first_step: float | None = None

    @property
    def to_decided(self) -> float | None:
        return None if self.decided is None else self.decided - self.at

    @property
    def to_running(self) -> float | None:
        return None if self.running is None else self.running - self.at

    @property
    def to_first_step(self) -> float | None:
        return None if self.first_step is None else self.first_step - self.at


@dataclass(frozen=True)
class Evidence:
    """``progress`` is what each attempt reported last, ``struck`` how often each planned fault of the cloud did strike.

    ``finals`` are the headlines of the messages that told the end; ``pods``, ``rayclusters``, ``lease_holders`` and
    ``processes`` are what was left over.
    """

    run_id: str
    ckpt_interval: int
    view: RunView | None
    progress: Mapping[int, Progress]
    drivers: Sequence[Driver]
    hits: Sequence[Hit]
    manifest_state: str | None
    finals: Sequence[str]
    pods: Sequence[str] = ()
    rayclusters: Sequence[str] = ()
    lease_holders: Sequence[str] = ()
    processes: Sequence[str] = ()
    executions: Mapping[str, str] = field(default_factory=dict)
    struck: Sequence[int] = ()
    notes: Sequence[str] = ()

    @property
    def losses(self) -> list[tuple[int, int]]:
        """(attempt, steps) that were done, reported, and had to be done again by the attempt after it."""
        pairs = ((self.progress.get(n), self.progress.get(n + 1)) for n in sorted(self.progress))
        return [
            (before.attempt, max(0, before.step - after.resumed_step))
            for before, after in pairs
            if before is not None and after is not None and after.resumed_step is not None
        ]


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
