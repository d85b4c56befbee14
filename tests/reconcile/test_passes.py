"""Whole passes over the real table and bucket: each repair, what it must leave alone, and that a second pass does nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from nightshift.contract.events import Stage
from nightshift.core import reconcile as rules
from nightshift.core.causes import EndCause
from nightshift.core.errors import TransientError
from nightshift.core.observation import ClusterView, OwnedCluster
from nightshift.core.reconcile import ExecutionState, ExecutionStatus, Repair
from nightshift.core.run import Awaiting, RunState, SignalKind
from nightshift.steps.ending import finish_for
from nightshift.steps.intake import Deployment, request_run
from nightshift.steps.reconcile import Budget, Report, reconcile
from nightshift.steps.transitions import admit
from tests.builders import NOW, spec_json
from tests.steps.test_signals import running
from tests.steps.world import World, step


def passed(world: World, budget: Budget | None = None) -> Report:
    """One pass with all the time that it wants."""
    ports = replace(world.ports, remaining=lambda: 240.0)
    return reconcile(ports) if budget is None else reconcile(ports, budget)


def kinds(report: Report) -> list[Repair | None]:
    return [f.repair for f in report.repairs]


def nothing(report: Report) -> bool:
    return (report.repairs, report.alarms, report.left) == ((), (), 0)


def stop(world: World, name: str = "maze-1-r1", state: ExecutionState = ExecutionState.ABORTED) -> None:
    world.executions.ended[name] = ExecutionStatus(state, world.now(), "stopped by hand")


def holding(world: World, run_id: str) -> None:
    """A run that holds its pool, whose execution runs."""
    world.ask(run_id=run_id)
    admit(world.ports, step("admit", run_id))
    world.look(Awaiting.LEASE, f"lease-{run_id}", run_id=run_id)


def trail(world: World, run_id: str = "maze-1") -> list[str]:
    return [line.what for line in world.runs.audit_trail(run_id) if line.actor == "reconciler"]


# nothing to do ------------------------------------------------------------------------------------------------------


def test_a_healthy_run_is_left_alone_and_its_looks_are_on_time(world: World) -> None:
    running(world)
    world.clusters.labelled = [OwnedCluster("maze-1", "maze-1", NOW - timedelta(days=3))]
    report = passed(world)
    assert nothing(report) and report.oldest_look_age == 0.0
    assert world.clusters.deleted == [] and world.executions.answered == []


def test_without_any_run_there_is_nothing_to_do(world: World) -> None:
    report = passed(world)
    assert nothing(report) and report.oldest_look_age == 0.0


# looks --------------------------------------------------------------------------------------------------------------


def test_an_overdue_look_is_woken_by_its_token_once_and_alarmed_while_it_stays_overdue(world: World) -> None:
    running(world)
    world.later(60 + rules.OVERDUE.total_seconds())
    report = passed(world)
    assert kinds(report) == [Repair.WAKE_RUN] and report.alarms == ()
    assert report.oldest_look_age == rules.OVERDUE.total_seconds()
    assert [token for token, _ in world.executions.answered] == ["token-1"]
    assert [s.kind for s in world.runs.signals_since("maze-1", 0)][-1] is SignalKind.RECONCILE
    assert nothing(passed(world))
    world.later(rules.STUCK.total_seconds())
    late = passed(world)
    assert kinds(late) == [Repair.WAKE_RUN] and [a.run_id for a in late.alarms] == ["maze-1"]


def test_a_look_that_died_after_it_began_is_found_too(world: World) -> None:
    running(world)
    world.later(30)
    world.runs.begin_look("maze-1", 1, world.now())
    world.later(60 + rules.OVERDUE.total_seconds())
    assert kinds(passed(world)) == [Repair.WAKE_RUN]


# executions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [s for s in ExecutionState if s is not ExecutionState.RUNNING])
def test_a_run_whose_execution_is_over_is_ended_with_everything_that_belongs_to_it(
    world: World, state: ExecutionState
) -> None:
    running(world)
    stop(world, state=state)
    assert nothing(passed(world)), "the finisher comes first"
    world.later(rules.END_GRACE.total_seconds())
    assert kinds(passed(world)) == [Repair.FINISH_RUN]
    ended = world.run()
    assert (ended.state, ended.cause) == (RunState.FAILED, EndCause.CONTROLLER_FAULT)
    assert state.value in ended.sentence
    assert world.clusters.deleted and not world.clusters.current.exists
    assert world.runs.leases() == [] and world.runs.untold(10) == []
    assert [e.stage for e in world.stages.events][-1] is Stage.FAILED
    assert trail(world) == ["ends the run"]
    world.later(3_600)
    assert nothing(passed(world))


def test_a_run_that_the_finisher_ended_meanwhile_is_told_once(world: World) -> None:
    running(world)
    stop(world)
    world.later(rules.END_GRACE.total_seconds())
    status = world.executions.status

    def slow(name: str) -> ExecutionStatus | None:
        finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped by hand")
        return status(name)

    world.executions.status = slow  # type: ignore[method-assign]
    assert nothing(passed(world))
    assert [e.key for e in world.stages.events].count("final") == 1


def test_a_run_that_was_never_started_is_started_under_its_own_name(world: World) -> None:
    start, world.executions.start = world.executions.start, lambda *_: None  # type: ignore[method-assign]
    world.ask()
    world.executions.start = start  # type: ignore[method-assign]
    world.later(rules.START_GRACE.total_seconds() - 1)
    assert nothing(passed(world))
    world.later(1)
    assert kinds(passed(world)) == [Repair.START_EXECUTION]
    assert world.executions.started == [("maze-1-r1", {"version": 1, "run_id": "maze-1", "k": 1})]
    assert nothing(passed(world)) and trail(world) == ["started execution r1"]


def test_a_request_that_died_before_its_spec_was_stored_is_not_started_but_ended_and_told_in_the_end(
    world: World,
) -> None:
    broken = replace(world.ports, artifacts=_Refusing())  # type: ignore[arg-type]
    with pytest.raises(TransientError):
        request_run(broken, Deployment("hp", "ns"), spec_json(), "team")
    world.later(rules.SPEC_GRACE.total_seconds() - 1)
    assert nothing(passed(world))
    world.later(1)
    report = passed(world)
    assert kinds(report) == [Repair.FINISH_RUN] and len(report.alarms) == 1
    assert world.run().state is RunState.FAILED and "another run id" in world.run().sentence
    assert world.executions.started == []
    assert [e.stage for e in world.stages.events] == [Stage.FAILED]


class _Refusing:
    def put_spec(self, _: Any) -> None:
        raise TransientError("maze-1", "S3 throttles")


def test_a_successor_that_was_written_and_never_started_is_started_and_its_predecessor_is_not(world: World) -> None:
    running(world)
    world.runs.succeed(world.run())
    stop(world)
    world.later(60 + rules.OVERDUE.total_seconds())
    assert kinds(passed(world)) == [Repair.START_EXECUTION]
    assert world.executions.started[-1] == ("maze-1-r2", {"version": 1, "run_id": "maze-1", "k": 2})
    assert world.run().state is RunState.RUNNING and world.clusters.deleted == []


# RayClusters --------------------------------------------------------------------------------------------------------


def test_orphans_are_deleted_and_the_raycluster_of_an_open_run_never_is(world: World) -> None:
    running(world)
    holding(world, "maze-2")
    world.runs.finish(world.run("maze-2"), RunState.FAILED, ended_at=world.now())
    world.runs.told("maze-2")
    old = NOW - timedelta(hours=30)
    world.clusters.labelled = [OwnedCluster(n, n, old) for n in ("maze-1", "maze-2", "stranger")]
    world.clusters.labelled.append(OwnedCluster("young-stranger", "young-stranger", NOW - timedelta(hours=1)))
    world.later(rules.CLUSTER_GRACE.total_seconds())
    world.look(Awaiting.ATTEMPT, "token-2")
    report = passed(world)
    assert sorted(world.clusters.deleted) == ["maze-2", "stranger"]
    assert sorted(a.run_id for a in report.alarms) == ["stranger", "young-stranger"]
    assert trail(world, "maze-2") == ["orphan RayCluster deleted"]
    again = passed(world)
    assert again.repairs == () and [a.run_id for a in again.alarms] == ["young-stranger"]


def test_a_raycluster_of_an_unknown_run_is_kept_when_that_run_is_asked_for_before_it_is_deleted(world: World) -> None:
    world.clusters.labelled = [OwnedCluster("maze-1", "maze-1", NOW - timedelta(days=2))]
    get, asked = world.runs.get, list[str]()

    def late(run_id: str) -> object:
        found = get(run_id)
        if not asked:
            asked.append(run_id)
            world.ask()
        return found

    world.runs.get = late  # type: ignore[method-assign,assignment]
    assert passed(world).repairs == () and world.clusters.deleted == []


# leases and lines ---------------------------------------------------------------------------------------------------


def test_a_lease_of_a_run_that_is_over_is_given_back_and_the_next_in_line_is_woken(world: World) -> None:
    holding(world, "maze-1")
    world.ask(run_id="maze-2")
    admit(world.ports, step("admit", "maze-2"))
    assert world.look(Awaiting.LEASE, "token-2", run_id="maze-2") is None
    since = world.runs.leases()[0].since.isoformat(timespec="microseconds")
    world.runs.finish(world.run(), RunState.FAILED, ended_at=world.now())
    world.runs.told("maze-1")
    left_behind = {"pk": "POOL#default", "sk": "LEASE", "version": 1, "run_id": "maze-1", "since": since}
    world.table.put_item(Item={**left_behind, "pool_pk": "LEASES", "pool_sk": "default"})
    world.executions.answered.clear()
    assert kinds(passed(world)) == [Repair.RELEASE_LEASE]
    assert world.runs.leases() == [] and [t for t, _ in world.executions.answered] == ["token-2"]
    assert nothing(passed(world))


def test_a_lease_of_an_open_run_is_kept_though_the_run_looked_over_when_the_lease_was_judged(world: World) -> None:
    holding(world, "maze-1")
    get, asked = world.runs.get, list[str]()

    def once_over(run_id: str) -> object:
        found = get(run_id)
        asked.append(run_id)
        return found.model_copy(update={"state": RunState.FAILED}) if found and len(asked) == 2 else found

    world.runs.get = once_over  # type: ignore[method-assign,assignment]
    assert nothing(passed(world)) and len(asked) > 2
    assert world.runs.lease_holder("default") == "maze-1"


def test_the_first_in_line_of_a_free_pool_is_woken_once(world: World) -> None:
    holding(world, "maze-1")
    world.ask(run_id="maze-2")
    admit(world.ports, step("admit", "maze-2"))
    assert world.look(Awaiting.LEASE, "token-2", run_id="maze-2") is None
    world.runs.finish(world.run(), RunState.FAILED, ended_at=world.now())
    world.runs.told("maze-1")
    world.executions.answered.clear()
    assert nothing(passed(world)), "its own next look is due before long"
    world.later(rules.LINE_GRACE.total_seconds())
    assert kinds(passed(world)) == [Repair.WAKE_LINE]
    assert [t for t, _ in world.executions.answered] == ["token-2"]
    assert nothing(passed(world))


# messages -----------------------------------------------------------------------------------------------------------


def test_a_final_message_that_was_lost_is_sent_once(world: World) -> None:
    holding(world, "maze-1")
    world.runs.finish(world.run(), RunState.FAILED, ended_at=world.now())
    world.later(rules.TELL_GRACE.total_seconds() - 1)
    assert nothing(passed(world))
    world.later(1)
    world.stages.refusing = True
    refused = passed(world)
    assert refused.repairs == () and "did not accept" in refused.alarms[0].why
    world.stages.refusing = False
    assert kinds(passed(world)) == [Repair.SEND_MESSAGE]
    assert [e.key for e in world.stages.events] == ["final"]
    assert nothing(passed(world))


# bounds and faults --------------------------------------------------------------------------------------------------


def three_stopped(world: World) -> None:
    """Each on a pool of its own, stopped one after the other."""
    for number in (1, 2, 3):
        world.ask(run_id=f"maze-{number}", pool=f"pool-{number}")
        admit(world.ports, step("admit", f"maze-{number}"))
        world.look(Awaiting.LEASE, f"lease-{number}", run_id=f"maze-{number}")
        world.later(1)
        stop(world, f"maze-{number}-r1")
    world.later(rules.END_GRACE.total_seconds())


def test_one_run_that_cannot_be_repaired_is_an_alarm_and_stops_none_of_the_others(world: World) -> None:
    three_stopped(world)
    delete = world.clusters.delete

    def refuse(name: str) -> None:
        if name == "maze-1":
            raise TransientError(name, "the Kubernetes API failed")
        delete(name)

    world.clusters.delete = refuse  # type: ignore[method-assign]
    report = passed(world)
    assert [f.run_id for f in report.repairs] == ["maze-2", "maze-3"]
    assert [a.run_id for a in report.alarms] == ["maze-1"] and "Kubernetes" in report.alarms[0].why
    world.clusters.delete = delete  # type: ignore[method-assign]
    assert [f.run_id for f in passed(world).repairs] == ["maze-1"]


@pytest.mark.parametrize("broken", ["open_runs", "leases", "untold", "owned"])
def test_a_listing_that_fails_is_an_alarm_and_the_rest_is_done(world: World, broken: str) -> None:
    three_stopped(world)
    world.runs.finish(world.run("maze-3"), RunState.FAILED, ended_at=world.now())
    world.later(rules.TELL_GRACE.total_seconds())

    def fail(*_: object) -> object:
        raise TransientError("-", "it throttles")

    setattr(world.clusters if broken == "owned" else world.runs, broken, fail)
    report = passed(world)
    assert len(report.alarms) == 1 and "it throttles" in report.alarms[0].why
    wanted = {Repair.FINISH_RUN: 2, Repair.SEND_MESSAGE: 1}
    wanted.pop({"open_runs": Repair.FINISH_RUN, "untold": Repair.SEND_MESSAGE}.get(broken, Repair.WAKE_RUN), None)
    assert report.by_kind == wanted


def test_a_pass_with_a_budget_repairs_the_oldest_and_says_what_it_left(world: World) -> None:
    three_stopped(world)
    first = passed(world, Budget(repairs=2))
    assert ([f.run_id for f in first.repairs], first.left) == (["maze-1", "maze-2"], 1)
    assert [f.run_id for f in passed(world, Budget(repairs=2)).repairs] == ["maze-3"]


def test_a_pass_without_time_does_nothing_and_says_so(world: World) -> None:
    three_stopped(world)
    report = reconcile(replace(world.ports, remaining=lambda: 30.0))
    assert report.repairs == () and report.left >= 3
    assert world.run().state is RunState.PROVISIONING


def test_pods_that_do_not_go_take_a_bounded_time_of_each_run(world: World) -> None:
    three_stopped(world)
    world.clusters.delete = lambda name: None  # type: ignore[method-assign]
    world.clusters.current = ClusterView(exists=True)
    begun = world.now()
    ends = begun + timedelta(seconds=240)
    report = reconcile(replace(world.ports, remaining=lambda: (ends - world.now()).total_seconds()))
    assert [f.run_id for f in report.repairs] == ["maze-1", "maze-2", "maze-3"]
    assert (world.now() - begun).total_seconds() < 3 * 45


def test_a_record_that_cannot_be_read_is_logged_and_stops_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    three_stopped(world)
    world.table.update_item(
        Key={"pk": "RUN#maze-1", "sk": "RUN"},
        UpdateExpression="SET #s = :garbage",
        ExpressionAttributeNames={"#s": "state"},
        ExpressionAttributeValues={":garbage": "asleep"},
    )
    report = passed(world)
    assert [f.run_id for f in report.repairs] == ["maze-2", "maze-3"]
    assert "RUN#maze-1" in caplog.text
