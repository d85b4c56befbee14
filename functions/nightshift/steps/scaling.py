"""The pool's instance groups: larger for a run that is about to be provisioned, smaller when nobody has needed them for long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nightshift.contract.events import Stage
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import NightshiftError, TransientError, bounded
from nightshift.core.run import Run
from nightshift.core.scaling import MAX_CALLS, PoolScaling, coming, lowered, needed, raised, told, unused
from nightshift.steps.common import audit, emit, spec_or_none, stage_key
from nightshift.steps.ports import Ports

MAX_SAID = 500
logger = logging.getLogger(__name__)


def pool_scaling(ports: Ports, run: Run) -> PoolScaling | None:
    """What may be scaled for a run; None where nothing may, and where Kueue admits it in place of a lease."""
    return ports.scaling.get(run.pool) if run.queue is None else None


def scale_up(ports: Ports, run: Run, spec: RunSpec) -> Run:
    """Ask HyperPod for the nodes that the run lacks, and note what it waits for. Repeated, it finds that they are meant to
    be there, and asks for nothing. Why HyperPod refuses is kept as what the run waits for: the next look tries again, until the
    wait's own deadline. Raises StaleExecution; what HyperPod does not answer is no reason to end the run."""
    pool = pool_scaling(ports, run)
    if pool is None:
        return run
    try:
        view = ports.hyperpod.view()
        targets = raised(spec.topology, needed(s.topology for s in _others(ports, run)), view, pool)
        if not targets:
            return _noted(ports, run, coming(spec.topology, view, pool))
        if run.scalings >= MAX_CALLS:
            return _noted(ports, run, f"its pool is not scaled up any more, after {MAX_CALLS} tries")
        run = ports.runs.update(run, scalings=run.scalings + 1)  # counted first: a call that dies is a call
        refused = ports.hyperpod.resize(targets)
    except TransientError as error:
        return _noted(ports, run, f"HyperPod: {bounded(error, 300)}")
    change = told(view, targets)
    if refused:
        why = bounded(f"HyperPod: {change} is refused, {refused}", MAX_SAID)
        if run.waiting_for != why:
            audit(ports, run.run_id, "step", "scaling up was refused", detail=f"{change}: {refused}")
        return _noted(ports, run, why)
    audit(ports, run.run_id, "step", "instance groups scaled up", detail=change)
    emit(
        ports, run, spec, Stage.QUEUED, stage_key(run, f"scaled-{change}"), sentence=f"Waiting for new nodes: {change}."
    )
    return _noted(ports, run, f"new nodes: {change}")


def _others(ports: Ports, run: Run) -> Sequence[RunSpec]:
    """Specs of the other runs that hold a pool, and so nodes, now."""
    found = [spec_or_none(ports, lease.run_id) for lease in ports.runs.leases() if lease.run_id != run.run_id]
    return [s for s in found if s is not None]


def _noted(ports: Ports, run: Run, text: str) -> Run:
    text = bounded(text, MAX_SAID)
    return run if run.waiting_for == text else ports.runs.update(run, waiting_for=text)


def scale_down(ports: Ports, limit: int = 1_000) -> dict[str, int]:
    """One pass: groups of use to nobody are noted, and those whose grace is over shrink to their minimum; group -> new target of
    those that were changed. What cannot be read leaves everything as it is. Raises NightshiftError where HyperPod refuses."""
    if not ports.scaling:
        return {}
    now, view = ports.now(), ports.hyperpod.view()
    occupied = ports.clusters.occupied()
    open_runs = ports.runs.open_runs(limit)
    wanted = needed(ports.artifacts.spec(r.run.run_id).topology for r in open_runs)
    if "" in occupied or len(open_runs) >= limit:
        logger.warning("no instance group is scaled down: not all pods or runs could be told apart")
        return {}
    free = unused(view, ports.scaling, wanted.keys(), occupied.keys())
    since = {}
    for group in sorted({name for pool in ports.scaling.values() for name in pool.groups}):
        if group in free:
            since[group] = ports.runs.free_since(group, now)
        else:
            ports.runs.needed_again(group)
    targets = lowered(free, since, view, ports.scaling, now)
    if not targets:
        return {}
    change, refused = told(view, targets), ports.hyperpod.resize(targets)
    if refused:
        raise NightshiftError(
            "-",
            f"HyperPod refuses to scale down {change}: {refused}",
            "The next pass tries again; it costs idle nodes till then.",
        )
    logger.info("instance groups scaled down: %s", change, extra={"scaled": targets})
    return targets
