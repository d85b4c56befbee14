"""The parent of a run that is asked for: looked up once, before the run is there, and kept in its record."""

from __future__ import annotations

from collections.abc import Sequence

from nightshift.contract.evals import EvalSet, EvalSummary, is_superseded
from nightshift.contract.events import FieldError
from nightshift.contract.layout import RunKeys
from nightshift.contract.lineage import ADAPTER_FILES, Lineage
from nightshift.contract.publication import Manifest
from nightshift.contract.reading import Unreadable, read_document
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import PermanentError, bounded
from nightshift.core.evidence import exports_by_step
from nightshift.core.lineage import (
    PUBLISHED,
    NoParent,
    ancestors,
    hold_access,
    hold_fit,
    parts,
    step_asked,
    weights_at,
)
from nightshift.core.run import Attempt, Run
from nightshift.steps.common import model_of
from nightshift.steps.ports import Ports

JSON = "application/json"


def lineage_of(
    ports: Ports, spec: RunSpec, caller: str, operators: Sequence[str] = ()
) -> Lineage | list[FieldError] | None:
    """None where the spec names no parent; errors by field where it cannot begin from it. What a run that is there already was
    resolved to stays as it is. Raises TransientError."""
    if spec.parent is None:
        return None
    there = ports.runs.get(spec.run_id)
    if there is not None:
        return there.parent
    try:
        return _resolved(ports, spec, spec.parent, caller, operators)
    except NoParent as why:
        return [FieldError(field="parent", problem=bounded(why, 600))]


def keep_lineage(ports: Ports, run: Run) -> None:
    """Where the job reads it. It comes before the spec: whatever finds the spec may start the run."""
    if run.parent is not None:
        ports.artifacts.put(run.run_id, RunKeys(run.run_id).parent, run.parent.to_json().encode(), JSON)


def _resolved(ports: Ports, spec: RunSpec, asked: str, caller: str, operators: Sequence[str]) -> Lineage:
    name, at = parts(asked)
    if name == spec.run_id:
        raise NoParent("a run is not its own parent: to go on with a run that is over, retry it")
    run = ports.runs.get(name)
    if run is None:
        raise NoParent(f"there is no run {name}")
    hold_access(run, caller, operators)
    try:
        theirs = ports.artifacts.spec(name)
    except PermanentError as error:
        raise NoParent(f"the spec of {name} cannot be read any more") from error
    attempts = ports.runs.attempts(name)
    model = model_of(ports, theirs, attempts)
    hold_fit(spec, theirs, model)
    exports = exports_by_step(ports.artifacts.exports(name), attempts)
    step = step_asked(at, run, exports, _adapters(ports, run) if at in PUBLISHED else None)
    export = weights_at(step, run, exports)
    judged = _eval_at(ports, run, attempts, step)
    return Lineage(
        run_id=spec.run_id,
        parent=name,
        asked=asked,
        step=step,
        attempt=export.attempt if export is not None else None,
        files={one: export.files[one] for one in ADAPTER_FILES} if export is not None else {},
        spec_sha256=run.spec_sha256,
        model=model,
        solved=judged.solved if judged is not None else None,
        of=judged.of if judged is not None else None,
        ancestors=ancestors(run.parent),
        at=ports.now(),
    )


def _adapters(ports: Ports, run: Run) -> dict[str, int] | None:
    body = ports.artifacts.manifest(run.run_id) if run.published else None
    try:
        return read_document(Manifest, body).document.adapters if body is not None else None
    except Unreadable as problem:
        raise NoParent(f"the manifest of {run.run_id} cannot be used: {problem}") from problem


def _eval_at(ports: Ports, run: Run, attempts: Sequence[Attempt], step: int) -> EvalSummary | None:
    """What the parent solved of its fixed set with these weights, where it was evaluated. For people: it decides nothing."""
    resumed, keys = {a.n: a.resumed_step for a in attempts}, RunKeys(run.run_id)
    for attempt in reversed(attempts):
        if is_superseded(attempt.n, step, resumed):
            continue
        body = ports.artifacts.read_small(keys.eval_summary(attempt.n, step, EvalSet.FIXED))
        try:
            found = read_document(EvalSummary, body).document if body is not None else None
        except Unreadable:
            continue
        if found is not None and (found.run_id, found.step, found.attempt) == (run.run_id, step, attempt.n):
            return found
    return None
