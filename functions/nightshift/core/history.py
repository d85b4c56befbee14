"""How long histories become. Step Functions ends a Standard execution whose history holds 25,000 events, and no catcher
runs then: so a shift ends itself before that, and a parent starts its successor.

What things cost is measured by ``tests/horizon`` on the shipped state machines; the bounds hold even if every retry that
the machines allow were used every time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

HISTORY_LIMIT = 25_000
"""Events of one execution, by AWS."""

LOOK_EVENTS, NAP_EVENTS = 8, 6
"""A look that was answered or woken, with the choice after it; one that its timeout ended."""

SHIFT_EVENTS, STEP_EVENTS = 8, 7
"""In the parent: a shift, or a step, each with the choice after it."""

FAILED_TRY = 4
"""Most events of a try that failed and is repeated."""

LOOK_RETRIES, SHIFT_RETRIES, STEP_RETRIES = 8, 4, 8
"""As the state machines have them."""

SHIFT_FRAME = 6
"""A shift's own beginning and end."""

LOOK_AT_MOST = LOOK_EVENTS + LOOK_RETRIES * FAILED_TRY
TURN_AT_MOST = (SHIFT_EVENTS + SHIFT_RETRIES * FAILED_TRY) + (STEP_EVENTS + STEP_RETRIES * FAILED_TRY)
"""A turn is what moves ``Run.shift_seq`` by one: at most a shift, and one step (preflight, or a submit that failed) that did
not move it."""

PARENT_FRAME = 2 * (STEP_EVENTS + STEP_RETRIES * FAILED_TRY)
"""What an execution has had before its first turn: its beginning, admit and preflight."""


LEAST_TURNS = 8
"""An execution that goes on with a run while it provisions needs five turns to come to its attempt: a smaller bound would
hand the run over for ever."""

LEAST_PARENT_EVENTS = PARENT_FRAME + LEAST_TURNS * TURN_AT_MOST


@dataclass(frozen=True)
class Bounds:
    """When a shift ends although nothing was decided, and when a parent starts its successor."""

    looks: int = 600
    shift: timedelta = timedelta(hours=22)
    parent_events: int = 15_000

    @property
    def shift_at_most(self) -> int:
        """Events of the longest shift: a last look may find that the bound is reached."""
        return SHIFT_FRAME + (self.looks + 1) * LOOK_AT_MOST


BOUNDS = Bounds()


def parent_at_most(turns: int) -> int:
    """Events that an execution of ``training_run`` can have had after so many turns; usually a seventh of them."""
    return PARENT_FRAME + turns * TURN_AT_MOST


def succession_due(shift_seq: int, history_base: int, bounds: Bounds) -> bool:
    """``history_base`` is the run's ``shift_seq`` when the execution began."""
    return parent_at_most(shift_seq - history_base) >= bounds.parent_events
