"""The parent's own steps up to a running attempt: admit, preflight, provision, submit; and the succession."""

from __future__ import annotations

from nightshift.contract.control import Control, ControlCommand
from nightshift.contract.events import Stage
from nightshift.contract.layout import submission_id
from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import capacity_problems
from nightshift.core.causes import POLICIES, EndCause
from nightshift.core.errors import PermanentError, StaleExecution, bounded
from nightshift.core.measures import Measure, Metric
from nightshift.core.queueing import holder_text
from nightshift.core.run import Attempt, Run, RunState
from nightshift.core.scaling import could_be
from nightshift.steps.common import audit, emit, measure, next_shift, stage_key, start_execution
from nightshift.steps.ports import Ports
from nightshift.steps.reports import outcome_of, progress_of
from nightshift.steps.requests import Reply, StepRequest
from nightshift.steps.scaling import pool_scaling, scale_up

READY = "ready"


def admit(ports: Ports, request: StepRequest) -> Reply:
    """A new run goes into the queue of its pool. An execution that goes on with a run begins where the run is: the answer
    is its state, and what is under way is taken over. Nothing of it, and no deadline, begins anew."""
    run = ports.runs.load(request.run_id, request.k)
    if run.state is RunState.ADMITTED:
        run, spec = _as_retried(ports, run)
        queued = {"state": RunState.QUEUED, "waiting_since": ports.now(), **next_shift(run)}
        # A run that Kueue admits takes no place in the line of its pool: it would hold up those who need the lease.
        run = ports.runs.enqueue(run, **queued) if run.queue is None else ports.runs.update(run, **queued)
        audit(ports, run.run_id, "step", "admitted", detail=f"{spec.topology.gpus} GPUs, {run.total_steps} steps")
        waits_for = _waits_for(ports, run)
        if waits_for:
            emit(ports, run, spec, Stage.QUEUED, stage_key(run, "queued"), sentence=waits_for)
    elif not run.state.is_final:
        ending = run.verdict is not None and run.state is not RunState.TEARDOWN
        run = ports.runs.update(run, state=RunState.PUBLISHING if ending else run.state, **next_shift(run))
        audit(ports, run.run_id, "step", f"execution r{run.k} goes on", detail=f"the run is {run.state}")
    return Reply(decision=run.state.value, shift=str(run.shift_seq))


def _as_retried(ports: Ports, run: Run) -> tuple[Run, RunSpec]:
    """The run with its spec, changed as its retries want it: every later step, and the job, reads it from the bucket. A stop
    that the old attempt did not carry out is followed by another request, so that the next one does not carry it out."""
    spec = ports.artifacts.spec(run.run_id)
    if run.retry is None:
        return run, spec
    wanted = run.retry.applied_to(spec)
    if wanted != spec:
        ports.artifacts.put_spec(wanted)
    if run.control_command is ControlCommand.STOP_AFTER_CHECKPOINT:
        seq, command = run.control_seq + 1, ControlCommand.CHECKPOINT_NOW
        control = Control(run_id=run.run_id, seq=seq, command=command, reason="the run was retried", at=ports.now())
        ports.artifacts.control(control)
        run = ports.runs.update(run, control_seq=seq, control_command=command)
    return run, wanted


def _waits_for(ports: Ports, run: Run) -> str:
    """Whom a run waits for; empty where its pool is free and nobody is before it."""
    holder, first = ports.runs.lease_holder(run.pool), ports.runs.next_in_line(run.pool)
    is_free = run.queue is None and {holder, first} <= {None, run.run_id}
    return "" if is_free else holder_text(run, holder, first)


def successor(ports: Ports, request: StepRequest) -> Reply:
    """The run's next execution is started and alone in charge. A repeat finds that the record names the successor already,
    and starts it under the same name and with the same input: it runs once."""
    run = ports.runs.get(request.run_id)
    if run is not None and run.k == request.k:
        run = ports.runs.succeed(run)
    if run is None or run.k != request.k + 1:
        raise StaleExecution(request.run_id, request.k, "the run went on in other executions")
    start_execution(ports, run)
    audit(ports, run.run_id, "step", f"execution r{run.k} takes over", detail=f"after {run.history_base} turns in all")
    return Reply(decision=READY, shift=str(run.shift_seq))


def preflight(ports: Ports, request: StepRequest) -> Reply:
    """Nothing is created for a topology that the HyperPod cluster can never hold, scaled up as far as its pool allows; that is
    asked for here, and again by looks at the cluster that is waited for."""
    run = ports.runs.load(request.run_id, request.k)
    spec = ports.artifacts.spec(run.run_id)
    pool = pool_scaling(ports, run)
    problems = capacity_problems(spec.topology, could_be(ports.hyperpod.view(), pool))
    if problems:
        return _fail(ports, run, EndCause.CAPACITY_MISSING, "; ".join(problems))
    if pool is not None:
        run = scale_up(ports, run, spec)
    audit(ports, run.run_id, "step", "preflight passed")
    return Reply(decision=READY, shift=str(run.shift_seq))


def provision(ports: Ports, request: StepRequest) -> Reply:
    """The RayCluster is there after this step, whether this call, an earlier one or an earlier attempt created it."""
    run = ports.runs.load(request.run_id, request.k)
    spec = ports.artifacts.spec(run.run_id)
    try:
        created = ports.clusters.create(spec, run.owner, run.excluded)
    except PermanentError as error:
        return _fail(ports, run, EndCause.BAD_CONFIGURATION, str(error))
    # An execution that goes on with a run goes on with its wait: no deadline begins anew.
    goes_on = run.k > 1 and run.shift_seq - run.history_base <= 1 and run.waiting_since is not None
    since = run.waiting_since if goes_on else ports.now()
    try:
        run = ports.runs.update(run, waiting_since=since, **next_shift(run))
    except StaleExecution:
        ports.clusters.delete(run.raycluster)  # the run was ended meanwhile: nobody else would find this cluster
        raise
    if created:
        audit(ports, run.run_id, "step", "RayCluster created", detail=run.raycluster)
    elif run.excluded and ports.clusters.exclude(spec, run.owner, run.excluded):
        audit(ports, run.run_id, "step", "RayCluster kept off instances", detail=", ".join(run.excluded))
    return Reply(decision=READY, shift=str(run.shift_seq))


def submit(ports: Ports, request: StepRequest, bucket: str) -> Reply:
    """The next attempt's job is known to Ray after this step. A repeat of this step meets the attempt that it claimed
    before, and adopts the job where Ray has it already: one submit per attempt id."""
    run = ports.runs.load(request.run_id, request.k)
    spec = ports.artifacts.spec(run.run_id)
    run, attempt = _claim(ports, run, spec)
    ports.jobs(run.raycluster).submit(
        run.run_id,
        attempt.submission_id,
        job_command(run, attempt, bucket),
        {"run_id": run.run_id, "attempt": str(attempt.n), "owner": run.owner},
    )
    run = ports.runs.update(run, state=RunState.RUNNING, waiting_since=ports.now(), **next_shift(run))
    audit(ports, run.run_id, "step", f"attempt {attempt.n} submitted", detail=f"floor {attempt.floor}")
    return Reply(decision=READY, shift=str(run.shift_seq))


def job_command(run: Run, attempt: Attempt, bucket: str) -> str:
    """Every part is a validated label or a number: nothing in it needs quoting."""
    return (
        f"python -m training_job run --bucket {bucket} --run-id {run.run_id} "
        f"--attempt {attempt.n} --floor {attempt.floor}{' --smaller' if attempt.smaller else ''}"
    )


def _claim(ports: Ports, run: Run, spec: RunSpec) -> tuple[Run, Attempt]:
    attempts = ports.runs.attempts(run.run_id)
    if attempts and attempts[-1].ended_at is None:
        return run, _begun_now(ports, run, attempts[-1])
    if run.state is not RunState.PROVISIONING:  # a late repeat of this step: the last attempt has not been fenced yet
        raise StaleExecution(run.run_id, run.k, f"no attempt may be claimed while the run is {run.state}")
    floor = max([run.verified_step, *(_last_saved(ports, run, a) for a in attempts[-1:])])
    wanted = Attempt(
        n=run.attempt + 1,
        submission_id=submission_id(run.run_id, run.attempt + 1),
        floor=floor,
        started_at=ports.now(),
        last_saved_step=floor,
        gpus=spec.topology.gpus,
        smaller=run.smaller,
    )
    claimed = ports.runs.claim_attempt(run, wanted)
    if claimed is None:  # the same step of the same execution was here before, in another invocation
        return ports.runs.load(run.run_id, run.k), ports.runs.attempts(run.run_id)[-1]
    measure(ports, run.run_id, [Measure(Metric.ATTEMPTS)])
    return claimed, wanted


def _begun_now(ports: Ports, run: Run, attempt: Attempt) -> Attempt:
    """An attempt that was claimed and could not be submitted has waited for a cluster, for days perhaps: neither its GPU
    hours nor its start deadline may count from its claim."""
    if run.state is not RunState.PROVISIONING:
        return attempt
    begun = attempt.model_copy(update={"started_at": ports.now()})
    ports.runs.save_attempt(run, begun)
    return begun


def _last_saved(ports: Ports, run: Run, attempt: Attempt) -> int:
    """What the old attempt had verified when it was really over: it may have saved after the look that ended it."""
    progress, outcome = progress_of(ports, run, attempt.n), outcome_of(ports, run, attempt.n)
    return max(attempt.last_saved_step, *(d.saved_step for d in (progress, outcome) if d is not None), 0)


def _fail(ports: Ports, run: Run, cause: EndCause, why: str) -> Reply:
    run = ports.runs.update(
        run,
        state=RunState.PUBLISHING,
        verdict=RunState.FAILED,
        cause=cause,
        sentence=bounded(f"{POLICIES[cause].sentence} ({why})", 900),
        **next_shift(run),
    )
    audit(ports, run.run_id, "step", f"run failed: {cause}", detail=why)
    return Reply(decision=RunState.FAILED.value, shift=str(run.shift_seq))
