"""Waiting for the pool.

One run holds a pool. The others stand in line: ``urgent`` ones before all others, each level in the order of creation.
Nobody is interrupted. Where a Kueue queue is named, Kueue does all of this, and no lease is taken.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.common import waited
from nightshift.core.observation import Observation
from nightshift.core.run import Run

LEASE_DEADLINE = timedelta(days=30)


def decide_lease(run: Run, seen: Observation, now: datetime) -> Decision:
    """One look at the pool."""
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "cancelled while queued", EndCause.CANCELLED)
    if run.queue is not None:
        return Decision(Verb.READY, f"no lease is taken: Kueue's queue {run.queue} admits the run")
    if seen.lease_holder == run.run_id:
        return Decision(Verb.READY, f"holds pool {run.pool}")
    if waited(run, now) > LEASE_DEADLINE:
        return Decision(
            Verb.FAILED, f"pool {run.pool} was not free for {LEASE_DEADLINE.days} days", EndCause.CAPACITY_MISSING
        )
    if seen.lease_holder is None and seen.next_in_line in (None, run.run_id):
        return Decision(Verb.READY, f"pool {run.pool} is free and nobody is before this run")
    holder = f"held by {seen.lease_holder}" if seen.lease_holder else f"promised to {seen.next_in_line}"
    return Decision(Verb.NAP, f"pool {run.pool} is {holder}")
