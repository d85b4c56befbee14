"""Write a decision that ends a shift, and hand it over."""

from __future__ import annotations

from typing import Any

from nightshift.contract.events import Stage
from nightshift.contract.spec import RunSpec
from nightshift.core.blame import after_blame
from nightshift.core.budgets import recoveries_after
from nightshift.core.causes import POLICIES, Action, EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.errors import NightshiftError, bounded
from nightshift.core.measures import queue_left, recovery_begins, recovery_given_up
from nightshift.core.queueing import admission
from nightshift.core.run import Awaiting, Run, RunState
from nightshift.steps.common import audit, emit, measure, next_shift
from nightshift.steps.diagnostics import STANDING_STILL, save_diagnostics
from nightshift.steps.judge import Judged
from nightshift.steps.ports import Ports
from nightshift.steps.requests import Reply


def ready(ports: Ports, awaiting: Awaiting, judged: Judged, look_seq: int, interval: int) -> Reply | None:
    """What was waited for is there. None where another run was faster to take the pool's lease."""
    run, now = judged.run, ports.now()
    changes: dict[str, Any] = {"seen_counter": judged.counter, "question": None}
    if awaiting is Awaiting.LEASE and run.queue is None and not ports.runs.take_lease(run, now):
        return None
    if awaiting is Awaiting.LEASE and run.queue is None:
        measure(ports, run.run_id, queue_left(run, now))
    if awaiting is Awaiting.LEASE and run.queue is not None and run.state is RunState.QUEUED:
        changes["state"] = RunState.PROVISIONING
    if awaiting is Awaiting.CLUSTER:
        if run.waiting_for:  # nodes, as its pool was scaled up
            changes["waiting_for"] = ""
        changes |= {"instances": judged.seen.cluster.instances, **admission(run, judged.seen.cluster, now)}
    if awaiting is Awaiting.FENCE and run.state is RunState.RECOVERING:
        changes["state"] = RunState.PROVISIONING  # only from here on may another attempt be claimed
    changes |= _told_late(ports, judged)
    audit(ports, run.run_id, "look", f"{awaiting} ready", judged.seen.signal, judged.decision.why)
    before, run = run, ports.runs.update(run, look_seq, **changes, **next_shift(run))
    if awaiting is Awaiting.CLUSTER and run.queue is not None and run.leased_at is not None:
        measure(ports, run.run_id, queue_left(before, run.leased_at))
    return Reply(decision=Verb.READY.value, shift=str(run.shift_seq), interval=interval)


def _told_late(ports: Ports, judged: Judged) -> dict[str, Any]:
    """An event about the lost node that came after the decision: the cause was right, but it was not a silent loss."""
    run, wrong, right = judged.run, EndCause.NODE_LOST, EndCause.NODE_REPLACED
    named = {s.instance_id for s in judged.seen.signals if s.kind.is_node_event}
    if run.cause is not wrong or run.lost_instance not in named:
        return {}
    ports.runs.correct_cause(run, run.attempt, wrong, right)
    audit(ports, run.run_id, "look", f"attempt {run.attempt} ended: {right}", judged.seen.signal, "its event came late")
    return {"cause": right}


def _end_attempt(ports: Ports, judged: Judged, look_seq: int) -> None:
    attempt, decision = judged.attempt, judged.decision
    if attempt is None or attempt.ended_at is not None:
        return
    hurried = decision.verb is Verb.RECOVER and decision.cause not in STANDING_STILL
    save_diagnostics(ports, judged.run, attempt, hurried)
    ports.runs.save_attempt(
        judged.run,
        attempt.model_copy(
            update={
                "ended_at": ports.now(),
                "end_cause": decision.cause,
                "signal": judged.seen.signal,
                "message": bounded(decision.why),
                "node": decision.node,
            }
        ),
        look_seq,
    )


def recover(ports: Ports, spec: RunSpec, judged: Judged, look_seq: int, interval: int) -> Reply:
    """The attempt is over and another follows: the record says why, what is blamed and what will be different."""
    run, decision, now = judged.run, judged.decision, ports.now()
    _end_attempt(ports, judged, look_seq)
    run = ports.runs.update(
        run,
        look_seq,
        state=RunState.RECOVERING,
        cause=decision.cause,
        lost_instance=decision.node,
        **_blame(ports, spec, run, decision),
        smaller=run.smaller or decision.smaller,
        recoveries_without_progress=recoveries_after(run, decision.cause),
        recovery_floor=run.verified_step,
        recovering_since=now,
        fence_level=0,
        fence_level_at=None,
        announced=(),
        taken_away=(),
        witness=None,
        witness_at=None,
        waiting_since=now,
        seen_counter=judged.counter,
        **next_shift(run),
    )
    measure(ports, run.run_id, recovery_begins(decision.cause))
    audit(ports, run.run_id, "look", f"attempt {run.attempt} ended: {decision.cause}", judged.seen.signal, decision.why)
    if decision.smaller:
        values = spec.recovery.on_out_of_memory
        detail = values.model_dump_json(exclude_none=True) if values is not None else ""
        audit(ports, run.run_id, "look", "from here on with smaller values", judged.seen.signal, detail)
    if decision.cause is None or POLICIES[decision.cause].action is not Action.ASK:  # else a question has been put
        emit(
            ports,
            run,
            spec,
            Stage.RECOVERING,
            f"recovering-a{run.attempt}",
            attempt=run.attempt,
            cause=decision.cause,
            node=decision.node,
            step=run.verified_step,
            sentence=_on_recovery(decision),
        )
    return Reply(decision=Verb.RECOVER.value, shift=str(run.shift_seq), interval=interval)


def _on_recovery(decision: Decision) -> str:
    if decision.smaller:
        return "A GPU ran out of memory; the run is tried once more with the smaller values that its spec names."
    return POLICIES[decision.cause].sentence if decision.cause is not None else ""


def _blame(ports: Ports, spec: RunSpec, run: Run, decision: Decision) -> dict[str, Any]:
    """An instance that is blamed for the second time hosts no pod of the run any more, and is replaced where the spec
    allows it. Asked for before the record says so: HyperPod takes a repeat for what it is."""
    blamed, twice = after_blame(run.blamed, decision.node)
    if twice is None or twice in run.excluded:
        return {"blamed": blamed}
    audit(
        ports, run.run_id, "look", "instance excluded", detail=f"{twice} was blamed for {blamed.count(twice)} attempts"
    )
    if spec.recovery.replace_nodes:
        _replace(ports, run, twice)
    return {"blamed": blamed, "excluded": (*run.excluded, twice)}


def _replace(ports: Ports, run: Run, instance: str) -> None:
    """Whatever comes of it, the run goes on without that instance."""
    try:
        why = ports.hyperpod.replace((instance,)).get(instance, "HyperPod's answer does not name it")
    except NightshiftError as error:
        why = str(error)
    what = "replacement refused" if why else "replacement asked for"
    audit(ports, run.run_id, "look", what, detail=f"{instance}: {why}" if why else instance)


def verdict(ports: Ports, judged: Judged, to: RunState, look_seq: int, interval: int) -> Reply:
    run, decision = judged.run, judged.decision
    _end_attempt(ports, judged, look_seq)
    run = ports.runs.update(
        run,
        look_seq,
        state=RunState.PUBLISHING,
        verdict=to,
        cause=decision.cause,
        sentence=_sentence(decision),
        seen_counter=judged.counter,
        **next_shift(run),
    )
    measure(ports, run.run_id, recovery_given_up(decision.cause, to))
    audit(ports, run.run_id, "look", f"run {to}: {decision.cause}", judged.seen.signal, decision.why)
    return Reply(decision=decision.verb.value, shift=str(run.shift_seq), interval=interval)


def _sentence(decision: Decision) -> str:
    policy = POLICIES[decision.cause].sentence if decision.cause is not None else ""
    return bounded(policy if decision.verb is Verb.SUCCEEDED else f"{policy} ({decision.why})", 900)
