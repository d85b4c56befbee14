"""A request comes in: it becomes a run, or a record that names every error by field.

Four ways in, one intake: an event, the API, a schedule, and a file dropped under ``requests/``. Each ends in ``request_run``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from nightshift.contract.events import FieldError, RequestAnswer, ScheduledStart, Stage, StageEvent
from nightshift.contract.reading import Unreadable, read_document
from nightshift.contract.spec import RunSpec, spec_digest
from nightshift.core.admission import check_spec, request_digest, shown_run_id
from nightshift.core.errors import bounded
from nightshift.core.measures import Measure, Metric
from nightshift.core.prices import hourly
from nightshift.core.requests import (
    MAX_SPEC_BYTES,
    SCHEDULES,
    answer_key,
    ending_problem,
    read_request,
    request_name,
    scheduled_request,
    stem,
    too_late,
)
from nightshift.core.run import Run, RunState
from nightshift.steps.common import audit, measure, start_execution
from nightshift.steps.parents import keep_lineage, lineage_of
from nightshift.steps.ports import Ports, Rejection


@dataclass(frozen=True)
class Deployment:
    """Where this stack's runs take place. ``operators``: who may begin from runs of others before they are published."""

    hyperpod_cluster: str
    namespace: str
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class DroppedFile:
    """An object that appeared under ``requests/``. S3 tells the account that put it there and from where, and no more.
    ``version`` is the one that was put there: another may lie over it by the time that it is read."""

    key: str
    size: int
    requester: str
    source_ip: str
    version: str = ""


@dataclass(frozen=True)
class Intake:
    """``run`` is None for a refused request; ``conflict`` tells a used id from an invalid request."""

    run: Run | None
    created: bool = False
    conflict: bool = False
    errors: tuple[FieldError, ...] = ()


def request_run(ports: Ports, deployment: Deployment, raw: dict[str, Any], owner: str, via: str = "") -> Intake:
    """Idempotent: the same content is the same run, however often and however late it is asked for. The conditional put
    decides; what follows it is repeated by the next identical request if this one dies half-way. ``via`` is for the trail."""
    checked = check_spec(raw)
    if not isinstance(checked, RunSpec):
        return _refuse(ports, raw, owner, checked)
    parent = lineage_of(ports, checked, owner, deployment.operators)
    if isinstance(parent, list):
        return _refuse(ports, raw, owner, parent)
    now, costs = ports.now(), hourly(checked.topology)
    wanted = Run(
        run_id=checked.run_id,
        k=1,
        state=RunState.ADMITTED,
        owner=bounded(owner, 200),
        pool=checked.pool,
        project=checked.project,
        spec_sha256=spec_digest(checked),
        image=checked.image,
        parent=parent,
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
    if created:
        measure(ports, there.run_id, [Measure(Metric.RUNS_STARTED)])
    if there.spec_sha256 != wanted.spec_sha256:
        taken = FieldError(
            field="run_id", problem=f"{checked.run_id} is a {there.state} run with other content; choose another id"
        )
        return _refuse(ports, raw, owner, [taken], conflict=True)
    if there.state is RunState.ADMITTED and not there.reopenings:  # a retry may have changed the spec
        keep_lineage(ports, there)
        ports.artifacts.put_spec(checked)
        start_execution(ports, there)
    if created:
        audit(
            ports,
            there.run_id,
            "intake",
            "run requested",
            detail=f"by {there.owner}, pool {there.pool}{_begins(there)}{via and f', {via}'}",
        )
    return Intake(there, created)


def _begins(run: Run) -> str:
    return f", begins from {run.parent.parent} at step {run.parent.step}" if run.parent is not None else ""


def request_of_file(ports: Ports, deployment: Deployment, dropped: DroppedFile) -> Intake | None:
    """A spec that somebody dropped; None for what is no file. The answer is kept beside, under ``answers/``: nothing is ever
    written under ``requests/``, where it would be a request again."""
    name = request_name(dropped.key)
    if name is None:
        return None
    done = _request_of_file(ports, deployment, dropped, name)
    answer = RequestAnswer(
        request=dropped.key,
        run_id=done.run.run_id if done.run is not None else None,
        created=done.created,
        errors=list(done.errors),
    )
    key = answer_key(name)
    if key is not None and not _is_answered(ports, key, answer):
        ports.artifacts.put(stem(name), key, answer.to_json().encode(), "application/json")
    return done


def _is_answered(ports: Ports, key: str, answer: RequestAnswer) -> bool:
    """A repeat of what began a run does not write over the answer that says so."""
    if answer.run_id is None or answer.created:
        return False
    there = ports.artifacts.read_small(key)
    try:
        before = read_document(RequestAnswer, there).document if there is not None else None
    except Unreadable:
        return False
    return before is not None and before.run_id == answer.run_id


def _request_of_file(ports: Ports, deployment: Deployment, dropped: DroppedFile, name: str) -> Intake:
    wrong = ending_problem(name)
    read: dict[str, Any] | list[FieldError] = [wrong] if wrong is not None else []
    body = b""
    if wrong is None:
        found = _file(ports, dropped.key, dropped.size, dropped.version)
        body, read = (found, read_request(found)) if isinstance(found, bytes) else (b"", [found])
    if isinstance(read, dict):
        via = f"dropped as {dropped.key} from {dropped.source_ip or 'an unknown address'}"
        return request_run(ports, deployment, read, dropped.requester, bounded(via, 300))
    shown = {"run_id": stem(name), "file": dropped.key, "sha256": hashlib.sha256(body).hexdigest()}
    return _refuse(ports, shown, dropped.requester, read)


def request_of_schedule(ports: Ports, deployment: Deployment, start: ScheduledStart, bucket: str) -> Intake:
    """The run of one scheduled time. One that comes too late starts nothing, and is recorded as refused, unless its run is
    there already. ``bucket`` is the only one that is read."""
    owner = f"schedule {start.schedule.rsplit('/', 1)[-1] or 'without a name'}"
    raw = start.spec if start.spec is not None else _scheduled_spec(ports, start.spec_uri or "", bucket)
    filled = scheduled_request(raw, start.scheduled_time) if isinstance(raw, dict) else raw
    if not isinstance(filled, dict):
        shown = {"run_id": stem(start.spec_uri or owner), "at": start.scheduled_time.isoformat()}
        return _refuse(ports, shown, owner, filled)
    late = too_late(start.scheduled_time, ports.now())
    if late is None:
        return request_run(ports, deployment, filled, owner, f"for {start.scheduled_time.isoformat()}")
    there = ports.runs.get(shown_run_id(filled))
    return Intake(there) if there is not None else _refuse(ports, filled, owner, [late])


def _scheduled_spec(ports: Ports, address: str, bucket: str) -> dict[str, Any] | list[FieldError]:
    root = f"s3://{bucket}/{SCHEDULES}"
    if not address.startswith(root) or address == root:
        return [FieldError(field="spec_uri", problem=f"it must be below {root}: nothing else is read for a schedule")]
    found = _file(ports, address.removeprefix(f"s3://{bucket}/"))
    if isinstance(found, bytes):
        return read_request(found)
    return [FieldError(field="spec_uri", problem=f"{bounded(address, 200)}: {found.problem}")]


def _file(ports: Ports, key: str, size: int = 0, version: str = "") -> bytes | FieldError:
    """A small file's bytes, or why there are none. ``size`` is what its event says: a large one is not even asked for."""
    large = f"more than {MAX_SPEC_BYTES:,} bytes"
    if size > MAX_SPEC_BYTES:
        return FieldError(field="file", problem=f"it has {size:,} bytes, {large}")
    body = ports.artifacts.read_small(key, MAX_SPEC_BYTES, version)
    return body if body is not None else FieldError(field="file", problem=f"it is not there any more, or has {large}")


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
