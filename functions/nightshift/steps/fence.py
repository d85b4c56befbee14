"""A fence's stronger means, carried out. Each may be repeated at any moment, by this look or by the next one."""

from __future__ import annotations

from nightshift.contract.spec import RunSpec
from nightshift.core.decision import Decision
from nightshift.core.decisions.fence import PODS_DELETED, RECREATED
from nightshift.core.errors import StaleExecution
from nightshift.core.run import Run
from nightshift.steps.common import audit
from nightshift.steps.ports import Ports


def escalate(ports: Ports, run: Run, spec: RunSpec, decision: Decision) -> Run:
    """The level and the moment of its beginning are written first: whatever is from before that moment has to go, also
    where this look dies in the middle. Raises StaleExecution where a later look is in charge or the run is over."""
    level = RECREATED if decision.recreate_cluster else PODS_DELETED
    if run.fence_level < level:
        # In whole seconds, as Kubernetes writes its times: what it creates from now on is never taken for older.
        began = ports.now().replace(microsecond=0)
        run = ports.runs.update(run, run.look_seq, fence_level=level, fence_level_at=began)
        what = "fence: pods deleted" if level == PODS_DELETED else "fence: RayCluster made anew"
        audit(ports, run.run_id, "look", what, detail=decision.why)
    if level == RECREATED:
        ports.clusters.delete(run.raycluster)
        # A pod that the level before could not end has a node that does not confirm: the API forgets it.
        ports.clusters.delete_pods(run.raycluster, created_before=run.fence_level_at, force=True)
        create_again(ports, run, spec)
    else:
        ports.clusters.delete_pods(run.raycluster, created_before=run.fence_level_at)
    return run


def create_again(ports: Ports, run: Run, spec: RunSpec) -> None:
    """Unless the run was ended meanwhile: then it was its end that deleted the RayCluster."""
    ports.clusters.create(spec, run.owner, run.excluded)
    now = ports.runs.load(run.run_id, run.k)
    if now.verdict is not None or now.state.is_final:
        ports.clusters.delete(run.raycluster)
        raise StaleExecution(run.run_id, run.k, "the run was ended while its RayCluster was created again")
