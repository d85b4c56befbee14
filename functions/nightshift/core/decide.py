"""``decide(run, spec, awaiting, observation, now)``: the controller's judgement, without I/O and without a clock."""

from __future__ import annotations

from datetime import datetime

from nightshift.contract.spec import RunSpec
from nightshift.core.decision import Decision
from nightshift.core.decisions.attempt import decide_attempt
from nightshift.core.decisions.cluster import decide_cluster
from nightshift.core.decisions.fence import decide_fence
from nightshift.core.decisions.lease import decide_lease
from nightshift.core.observation import Observation
from nightshift.core.run import Awaiting, Run


def decide(run: Run, spec: RunSpec, awaiting: Awaiting, seen: Observation, now: datetime) -> Decision:
    """One look's decision. ``run.waiting_since`` must be set: it is when this wait began."""
    match awaiting:
        case Awaiting.LEASE:
            return decide_lease(run, seen, now)
        case Awaiting.CLUSTER:
            return decide_cluster(run, spec, seen, now)
        case Awaiting.FENCE:
            return decide_fence(run, seen, now)
        case Awaiting.ATTEMPT:
            return decide_attempt(run, spec, seen, now)
