"""A request comes in: it becomes a run, or a record that names every error by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightshift.contract.events import FieldError, Stage, StageEvent
from nightshift.contract.spec import RunSpec, spec_digest
from nightshift.core.admission import check_spec, request_digest, shown_run_id
from nightshift.core.errors import bounded
from nightshift.core.prices import hourly
from nightshift.core.run import Run, RunState
from nightshift.steps.common import audit, execution_name
from nightshift.steps.ports import Ports, Rejection


@dataclass(frozen=True)
class Deployment:
    """Where this stack's runs take place."""

    hyperpod_cluster: str
    namespace: str


@dataclass(frozen=True)
class Intake:
    """``run`` is None for a refused request; ``conflict`` tells a used id from an invalid request."""

    run: Run | None
    created: bool = False
    conflict: bool = False
    errors: tuple[FieldError, ...] = ()


def request_run(ports: Ports, deployment: Deployment, raw: dict[str, Any], owner: str) -> Intake:
    """Idempotent: the same content is the same run, however often and however late it is asked for. The conditional put
    decides; what follows it is repeated by the next identical request if this one dies half-way."""
    checked = check_spec(raw)
    if not isinstance(checked, RunSpec):
        return _refuse(ports, raw, owner, checked)
    now, costs = ports.now(), hourly(checked.topology)
    wanted = Run(
        run_id=checked.run_id,
        k=1,
        state=RunState.ADMITTED,
        owner=bounded(owner, 200),
        pool=checked.pool,
        spec_sha256=spec_digest(checked),
        image=checked.image,
        hyperpod_cluster=deployment.hyperpod_cluster,
        namespace=deployment.namespace,
        raycluster=checked.run_id,
        created_at=now,
        total_steps=checked.training.total_steps,
        priority=checked.priority,
        queue=checked.queue,
        dollars_per_hour=costs.dollars if costs is not None else None,
        prices_as_of=costs.as_of if costs is not None else None,
    )
    there, created = ports.runs.create(wanted)
    if there.spec_sha256 != wanted.spec_sha256:
        taken = FieldError(
            field="run_id", problem=f"{checked.run_id} is a {there.state} run with other content; choose another id"
        )
        return _refuse(ports, raw, owner, [taken], conflict=True)
    if there.state is RunState.ADMITTED and not there.reopenings:  # a retry may have changed the spec
        ports.artifacts.put_spec(checked)
        ports.executions.start(execution_name(there), {"version": 1, "run_id": there.run_id, "k": there.k})
    if created:
        audit(ports, there.run_id, "intake", "run requested", detail=f"by {there.owner}, pool {there.pool}")
    return Intake(there, created)


def _refuse(ports: Ports, raw: dict[str, Any], owner: str, errors: list[FieldError], conflict: bool = False) -> Intake:
    digest, run_id = request_digest(raw), shown_run_id(raw)
    new = ports.runs.reject(Rejection(digest, run_id, bounded(owner, 200), errors, ports.now()))
    if new:
        ports.stages.emit(
            StageEvent(
                run_id=run_id,
                stage=Stage.REJECTED,
                key=f"rejected-{digest[:16]}",
                owner=bounded(owner, 200),
                at=ports.now(),
                errors=errors,
            )
        )
    return Intake(None, conflict=conflict, errors=tuple(errors))
