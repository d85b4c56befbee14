"""``decide(run, spec, awaiting, observation, now)``: the controller's judgement, without I/O and without a clock."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from nightshift.contract.spec import RunSpec
from nightshift.core.budgets import spent_budget
from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.attempt import decide_attempt
from nightshift.core.decisions.cluster import decide_cluster
from nightshift.core.decisions.fence import decide_fence
from nightshift.core.decisions.lease import decide_lease
from nightshift.core.observation import Observation
from nightshift.core.run import Awaiting, Run, RunState

ON_THE_WAY = frozenset({Verb.HOLD, Verb.NAP, Verb.READY})


def decide(run: Run, spec: RunSpec, awaiting: Awaiting, seen: Observation, now: datetime) -> Decision:
    """One look's decision. ``run.waiting_since`` must be set: it is when this wait began."""
    match awaiting:
        case Awaiting.LEASE:
            return decide_lease(run, seen, now)
        case Awaiting.CLUSTER:
            return _within_budget(run, spec, now, decide_cluster(run, spec, seen, now))
        case Awaiting.FENCE:
            return _within_budget(run, spec, now, decide_fence(run, seen, now))
        case Awaiting.ATTEMPT:
            return decide_attempt(run, spec, seen, now)
    assert_never(awaiting)


def _within_budget(run: Run, spec: RunSpec, now: datetime, decision: Decision) -> Decision:
    """Nodes are held, and paid for, while a run recovers: no budget is passed by waiting. A run that waits in a Kueue queue
    holds none, and a teardown gives them back."""
    if run.state is RunState.TEARDOWN or run.queue is not None or decision.verb not in ON_THE_WAY:
        return decision
    spent = spent_budget(run, spec, 0.0, now)
    if spent is None:
        return decision
    return Decision(Verb.FAILED, f"{spent} are spent: {decision.why}", EndCause.BUDGET_SPENT, stop_job=True)
