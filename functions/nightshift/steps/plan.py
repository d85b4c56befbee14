"""What a request would start: everything is checked, and nothing is started or kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.contract.api import Forecast, Plan, Rehearsed, Rollouts
from nightshift.contract.events import FieldError
from nightshift.contract.rehearsal import MAX_NUMBER, rehearsal_of
from nightshift.contract.spec import Priority, RunSpec, SeedData, spec_digest
from nightshift.core.admission import check_spec, known_ceiling
from nightshift.core.capacity import capacity_problems
from nightshift.core.errors import NightshiftError
from nightshift.core.prices import hourly, is_old
from nightshift.core.run import Run, RunState
from nightshift.core.scaling import could_be
from nightshift.steps.parents import lineage_of
from nightshift.steps.ports import Listings, Ports

COUNTED = 100


@dataclass(frozen=True)
class Planned:
    """``plan`` is None for what would be refused; ``conflict`` tells a used id from an invalid request."""

    plan: Plan | None
    conflict: bool = False
    errors: Sequence[FieldError] = ()


def plan_run(
    ports: Ports, listings: Listings, raw: dict[str, Any], owner: str, operators: Sequence[str] = ()
) -> Planned:
    """Refuses what ``request_run`` refuses, with the same errors."""
    spec = check_spec(raw)
    if not isinstance(spec, RunSpec):
        return Planned(None, errors=spec)
    there, digest = ports.runs.get(spec.run_id), spec_digest(spec)
    if there is not None and there.spec_sha256 != digest:
        taken = f"{spec.run_id} is a {there.state} run with other content; choose another id"
        return Planned(None, conflict=True, errors=[FieldError(field="run_id", problem=taken)])
    parent = lineage_of(ports, spec, owner, operators)
    if isinstance(parent, list):
        return Planned(None, errors=parent)
    problems, known = _capacity(ports, spec)
    line = listings.line_of(spec.pool, None, COUNTED) if spec.queue is None else None
    lease, ceiling = listings.lease_of(spec.pool), known_ceiling(spec)
    plan = Plan(
        run_id=spec.run_id,
        spec_sha256=digest,
        exists=there is not None,
        state=there.state.value if there is not None else None,
        pool=spec.pool,
        owner=there.owner if there is not None else owner,
        parent=parent,
        rollouts=rollouts(spec),
        forecast=forecast(ports, spec),
        ceiling=ceiling.share if ceiling is not None else None,
        capacity=list(problems),
        capacity_known=known,
        holder=lease.run_id if lease is not None and spec.queue is None else None,
        waiting=len(_before(line.items, spec)) if line is not None else None,
        waiting_is_more=line is not None and line.after is not None and spec.priority is not Priority.URGENT,
        rehearsed=rehearsed(ports, spec),
        spec=spec.model_dump(mode="json"),
    )
    return Planned(plan)


def rehearsed(ports: Ports, spec: RunSpec) -> Rehearsed | None:
    """The newest rehearsal of the spec's parts. They are numbered without gaps, so the first that is missing ends the search;
    most specs have one or none."""
    newest: Rehearsed | None = None
    for number in range(1, MAX_NUMBER + 1) if spec.rehearsal is None else ():
        run = ports.runs.get(rehearsal_of(spec, number).run_id)
        if run is None:
            break
        passed = run.state is RunState.SUCCEEDED and run.attempt > 1
        newest = Rehearsed(
            run_id=run.run_id, number=number, state=run.state.value, passed=passed, ended_at=run.ended_at
        )
    return newest


def _before(line: Sequence[Run], spec: RunSpec) -> list[Run]:
    """Who stays before it: a new run stands behind all others of its priority, and normal ones behind urgent ones."""
    urgent = spec.priority is Priority.URGENT
    return [r for r in line if r.run_id != spec.run_id and (not urgent or r.priority is Priority.URGENT)]


def _capacity(ports: Ports, spec: RunSpec) -> tuple[Sequence[str], bool]:
    try:
        pool = ports.scaling.get(spec.pool) if spec.queue is None else None
        return capacity_problems(spec.topology, could_be(ports.hyperpod.view(), pool)), True
    except NightshiftError:
        return (), False


def rollouts(spec: RunSpec) -> Rollouts:
    """What the sizes come to, by the same rules as ``batch_size_problems``."""
    training, gpus = spec.training, spec.topology.gpus
    per_step = training.train_batch_size * training.n_samples_per_prompt
    return Rollouts(
        gpus=gpus,
        per_step=per_step,
        per_gpu=per_step / gpus,
        updates_per_step=training.train_batch_size // training.policy_mini_batch_size,
        evals=1 + _times(training.total_steps, training.eval_interval),
        eval_items=len(spec.task.eval) if isinstance(spec.task.eval, SeedData) else None,
        checkpoints=_times(training.total_steps, training.ckpt_interval),
        max_rollback_steps=spec.max_rollback_steps,
    )


def _times(steps: int, interval: int) -> int:
    """Every interval, and at the last step."""
    return -(-steps // interval)


def forecast(ports: Ports, spec: RunSpec) -> Forecast:
    """The most by the budgets; most runs end far below."""
    costs, budgets = hourly(spec.topology), spec.budgets
    if costs is None:
        return Forecast(wall_hours=budgets.wall_hours, gpu_hours=budgets.gpu_hours)
    most = budgets.wall_hours * costs.dollars
    return Forecast(
        dollars_per_hour=costs.dollars,
        prices_as_of=costs.as_of.isoformat(),
        prices_old=is_old(costs.as_of, ports.now().date()),
        wall_hours=budgets.wall_hours,
        gpu_hours=budgets.gpu_hours,
        most_dollars=round(min(most, budgets.dollars) if budgets.dollars is not None else most, 2),
    )
