"""An address of a run's Ray dashboard, for somebody who may steer the run: whoever has it can do to the cluster what Ray can."""

from __future__ import annotations

from datetime import timedelta

from nightshift.contract.api import DashboardLink
from nightshift.core.errors import PermanentError, bounded
from nightshift.core.run import RunState
from nightshift.steps.common import audit
from nightshift.steps.control import NoSuchRun, NotPossible
from nightshift.steps.ports import Dashboards, Ports

USABLE = timedelta(minutes=15)
"""How long a session can be begun with an address; the session itself lasts up to six hours."""

WITHOUT_CLUSTER = frozenset({RunState.ADMITTED, RunState.QUEUED})


def open_dashboard(ports: Ports, dashboards: Dashboards, run_id: str, who: str) -> DashboardLink:
    """In the trail before the address exists. Raises NoSuchRun, NotPossible, TransientError."""
    run = ports.runs.get(run_id)
    if run is None:
        raise NoSuchRun(run_id)
    if run.state.is_final or run.state in WITHOUT_CLUSTER:
        why = f"it is {run.state} and has no RayCluster"
        raise NotPossible(
            run_id, why, "Its diagnostics are among its artifacts." if run.state.is_final else "Ask later."
        )
    audit(ports, run_id, "person", "dashboard address asked for", detail=f"by {bounded(who, 200)}")
    until = ports.now() + USABLE
    try:
        url = dashboards.address(run.raycluster)
    except PermanentError as error:
        raise NotPossible(run_id, bounded(error, 500), "Nothing was changed.") from error
    return DashboardLink(run_id=run_id, url=url, expires_at=until)
