"""Incidents of controllers: events twice, callbacks lost, histories full, counters stuck, messages refused."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.adapters.notification_log import DynamoNotificationLog
from nightshift.adapters.notifications import SlackWebhook
from nightshift.contract.events import Stage
from nightshift.contract.job import OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.core.budgets import spent_recoveries
from nightshift.core.causes import EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Verb
from nightshift.core.errors import StaleExecution
from nightshift.core.observation import JobState, JobView, Observation
from nightshift.core.run import Awaiting, RunState
from nightshift.report.slack import blocks
from nightshift.steps.ending import release
from nightshift.steps.look import MAX_LOOKS, MAX_SHIFT, look
from nightshift.steps.notify import Outcome, notify
from nightshift.steps.publish import publish, verify
from nightshift.steps.requests import LookRequest
from nightshift.steps.signals import receive
from nightshift.steps.transitions import admit, submit
from tests.builders import NOW, cluster, outcome, progress, run, spec
from tests.incidents.table import comes_out_right, must_not
from tests.report.support import Answer, event, receiver
from tests.report.test_slack import texts
from tests.steps.test_run import finish_attempt, lose_a_node, recovered
from tests.steps.test_signals import health, outcome_written, running
from tests.steps.world import BUCKET, TEMPLATE, World, step

KEYS = RunKeys("maze-1")
MACHINES = Path(TEMPLATE).parent / "statemachine"
SHIFT: dict[str, Any] = json.loads((MACHINES / "shift.asl.json").read_text())
PARENT: dict[str, Any] = json.loads((MACHINES / "training_run.asl.json").read_text())
MAX_EVENTS = 25_000
NAP = 60


def decided(world: World, token: str = "token-2") -> str | None:
    reply = world.look(Awaiting.ATTEMPT, token)
    return None if reply is None else reply.decision


@comes_out_right(17)
def test_the_same_request_again_is_the_same_run_and_a_late_duplicate_leaves_a_success_alone(world: World) -> None:
    recovered(world)
    world.ask()
    assert [name for name, _ in world.executions.started] == ["maze-1-r1"]
    finish_attempt(world)
    assert decided(world, "token-6") == "succeeded"
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    release(world.ports, step("release"))
    before = world.run()
    assert before.state is RunState.SUCCEEDED

    again = world.ask()
    assert not again.created and again.run is not None and again.run.state is RunState.SUCCEEDED
    with pytest.raises(StaleExecution):
        submit(world.ports, step("submit"), BUCKET)
    assert decided(world, "late") == "stale"
    assert world.run() == before and len(world.executions.started) == 1


@must_not(17)
def test_a_known_name_must_not_hide_another_request_nor_keep_a_new_one_from_starting(world: World) -> None:
    world.ask()
    other = world.ask(training={"max_turns": 16})
    assert other.conflict and other.run is None
    world.ask(run_id="maze-2")
    assert [name for name, _ in world.executions.started] == ["maze-1-r1", "maze-2-r1"]


@comes_out_right(18)
def test_a_lost_callback_is_found_by_the_timeout_which_reads_the_truth_again(world: World) -> None:
    running(world)
    world.executions.stale.add("token-1")  # SendTaskSuccess reaches nobody
    world.put(KEYS.outcome(1), outcome(OutcomeCause.CODE_ERROR, message="ValueError: x", step=0, exit_code=70))
    receive(world.ports, outcome_written())
    assert world.executions.answered == []

    waiting = SHIFT["States"]["Look"]
    assert waiting["TimeoutSeconds"] == "{% $interval %}" and SHIFT["States"]["Begin"]["Assign"]["interval"] == NAP
    assert [(c["ErrorEquals"], c["Next"]) for c in waiting["Catch"]] == [(["States.Timeout"], "Look")]
    world.later(NAP)
    assert decided(world) == "failed"
    assert "ValueError: x" in world.run().sentence


@must_not(18)
def test_a_timeout_must_not_be_taken_for_a_failure_of_the_job(world: World) -> None:
    running(world)
    for nap in range(5):
        world.later(NAP)
        assert decided(world, f"token-{nap + 2}") is None
    seen = world.run()
    assert (seen.state, seen.recoveries_without_progress) == (RunState.RUNNING, 0)
    assert world.jobs.stopped == [] and world.jobs.submits == ["maze-1-a1"]


def events_of(state: dict[str, Any]) -> int:
    """History events of passing a state once without an error."""
    waits = state.get("Resource", "").endswith((".waitForTaskToken", ".sync:2"))
    task = 6 if waits else 5  # entered, scheduled, started, submitted where it waits, succeeded or timed out, exited
    return task if state["Type"] == "Task" else 1 if state["Type"] in ("Fail",) else 2


POLL = events_of(SHIFT["States"]["Look"])
ANSWERED = POLL + events_of(SHIFT["States"]["Decided"])
FRAME = 2 + events_of(SHIFT["States"]["Begin"]) + events_of(SHIFT["States"]["Done"])


def poll(world: World, shift_started: Any, token: str) -> str | None:
    request = LookRequest(
        step="look",
        run_id="maze-1",
        k=1,
        awaiting=Awaiting.ATTEMPT,
        shift_name="maze-1-r1-s1",
        shift_started=shift_started,
        token=token,
    )
    reply = look(world.ports, request, NAP)
    return None if reply is None else reply.decision


def naps(world: World, count: int) -> None:
    """What so many polls that find nothing to do leave behind: a higher number, and a job that has made steps."""
    world.table.update_item(
        Key={"pk": "RUN#maze-1", "sk": "RUN"},
        UpdateExpression="ADD look_seq :n",
        ExpressionAttributeValues={":n": count},
    )
    world.later(count * NAP)
    steps = min(399, 25 + world.run().look_seq // 20)
    world.put(KEYS.progress(1), progress(step=steps, at=world.now()))


@comes_out_right(19)
def test_3000_polls_fit_into_shifts_that_end_long_before_a_history_is_full(world: World) -> None:
    running(world)
    polls, lengths = 0, []
    while polls < 3_000:
        started, first = world.now(), world.run().look_seq
        assert poll(world, started, "first") is None
        naps(world, MAX_LOOKS - 2 - (world.run().look_seq - world.run().shift_first_look))
        world.later(NAP)
        assert poll(world, started, "last but one") is None
        world.later(NAP)
        assert poll(world, started, "last") == "again"
        lengths.append(world.run().look_seq - first)
        polls += lengths[-1]
    assert (POLL, ANSWERED) == (6, 8)
    assert len(lengths) == 6 and max(lengths) <= MAX_LOOKS
    assert FRAME + ANSWERED * max(*lengths, MAX_LOOKS + 1) < MAX_EVENTS / 2, "half of it is left for retries"
    assert MAX_SHIFT.total_seconds() < SHIFT["TimeoutSeconds"] < PARENT["States"]["AwaitAttempt"]["TimeoutSeconds"]
    grown = events_of(PARENT["States"]["AwaitAttempt"]) + events_of(PARENT["States"]["AttemptDecision"])
    assert grown * len(lengths) == 48, "what 3,000 polls leave in the parent"


@comes_out_right(19)
def test_a_storm_of_signals_ends_a_shift_by_its_number_of_looks(world: World) -> None:
    running(world)
    started = world.now()
    naps(world, MAX_LOOKS)
    world.time = started + timedelta(minutes=30)
    assert poll(world, started, "token-2") == "again"


@must_not(19)
def test_a_new_shift_must_not_come_early_nor_restart_a_deadline_nor_touch_the_job(world: World) -> None:
    running(world)
    started, before = world.now(), world.run()
    naps(world, MAX_LOOKS - 100)
    assert poll(world, started, "token-2") is None, "500 polls are no reason yet"
    naps(world, MAX_LOOKS)
    assert poll(world, started, "token-3") == "again"
    after = world.run()
    assert after.shift_seq == before.shift_seq + 1, "its execution needs a name of its own"
    kept = ("state", "attempt", "waiting_since", "leased_at", "recoveries_without_progress", "signal_counter")
    assert {f: getattr(after, f) for f in kept} == {f: getattr(before, f) for f in kept}
    assert world.jobs.stopped == [] and world.jobs.submits == ["maze-1-a1"]


def fails(world: World, attempt: int, saved: int) -> str | None:
    """The current attempt fails after it had saved a step; the next one is submitted where there is one."""
    world.put(KEYS.progress(attempt), progress(attempt=attempt, step=saved + 5, saved_step=saved, total_steps=2_000))
    world.jobs.states[f"maze-1-a{attempt}"] = JobView(JobState.FAILED, "ActorDiedError")
    decision = decided(world, f"of-{attempt}")
    if decision == "recover":
        fenced = world.look(Awaiting.FENCE, "fence")
        assert fenced is not None and fenced.decision == "ready"
        submit(world.ports, step("submit"), BUCKET)
    return decision


@comes_out_right(21)
def test_faults_over_30_days_with_progress_between_them_are_survived(world: World) -> None:
    running(world, training={"total_steps": 2_000}, budgets={"wall_hours": 24 * 40})
    for fault in range(1, 7):
        world.later(timedelta(days=5).total_seconds())
        assert fails(world, fault, saved=20 * fault) == "recover"
        assert world.run().recoveries_without_progress == 1
    assert world.run().attempt == 7 and world.run().verdict is None
    assert world.runs.attempts("maze-1")[-1].floor == 120


@comes_out_right(21)
def test_the_50th_fault_is_judged_as_the_first_was_where_each_came_after_a_new_checkpoint() -> None:
    failed = Observation(cluster(), JobView(JobState.FAILED, "ActorDiedError"))
    asked = spec(training={"total_steps": 2_000}, budgets={"wall_hours": 24 * 40})
    now_run = run(created_at=NOW)
    for fault in range(1, 51):
        now = NOW + fault * timedelta(days=30) / 50
        now_run = now_run.model_copy(update={"verified_step": 20 * fault})
        assert decide(now_run, asked, Awaiting.ATTEMPT, failed, now).verb is Verb.RECOVER
        spent = {"recoveries_without_progress": spent_recoveries(now_run) + 1, "recovery_floor": now_run.verified_step}
        now_run = now_run.model_copy(update=spent)
        assert now_run.recoveries_without_progress == 1


@must_not(21)
def test_steps_without_a_verified_new_checkpoint_must_not_reset_the_counter(world: World) -> None:
    running(world, budgets={"max_recoveries_without_progress": 1})
    answers = []
    for fault in range(1, 3):
        world.later(60)
        world.put(KEYS.progress(fault), progress(attempt=fault, step=40 + fault, saved_step=20))
        answers.append(fails(world, fault, saved=20))
    assert answers == ["recover", "failed"]
    assert world.run().cause is EndCause.BUDGET_SPENT


LONG = "RuntimeError: " + "x" * 4_082


@comes_out_right(23)
def test_an_error_of_4_kb_is_cut_to_what_slack_accepts(world: World) -> None:
    running(world)
    world.put(KEYS.outcome(1), outcome(OutcomeCause.CODE_ERROR, message=LONG, step=0, exit_code=70))
    assert decided(world) == "failed"
    for told in (event(Stage.FAILED, sentence=world.run().sentence), event(Stage.FAILED, sentence=LONG, run_id=LONG)):
        payload = blocks(told)
        for kind, text in texts(payload):
            assert 0 < len(text) <= (150 if kind == "header" else 3_000)
        assert len(payload["text"]) <= 3_000 and len(payload["blocks"]) <= 50
        assert "RuntimeError: xxx" in json.dumps(payload)


@comes_out_right(23)
def test_a_message_that_slack_refuses_fails_no_run_and_is_not_repeated_for_ever(world: World, tmp_path: Path) -> None:
    running(world)
    world.stages.refusing = True
    lose_a_node(world)
    assert decided(world) == "recover"
    assert world.run().state is RunState.RECOVERING

    with receiver(tmp_path, Answer(400, body="invalid_blocks")) as slack:
        hook = SlackWebhook(slack.url, slack.allowed, ca_file=str(slack.ca_file), sleep=lambda _: None)
        told = event(Stage.FAILED, sentence=LONG)
        log = DynamoNotificationLog(world.table)
        done = [notify(told, log, hook, holder=f"request-{n}", now=world.now(), seconds=20) for n in (1, 2)]
    assert [one.outcome for one in done] == [Outcome.FAILED, Outcome.SKIPPED]
    assert "invalid_blocks" in done[0].reason and len(slack.posts) == 1
    assert world.run().state is RunState.RECOVERING


@must_not(23)
def test_text_that_fits_must_not_be_cut(world: World) -> None:
    sentence = "The disk is full: " + "y" * 1_400
    payload = blocks(event(Stage.FAILED, sentence=sentence))
    shown = "\n".join(text for _, text in texts(payload))
    assert sentence in shown and "…" not in shown
    (header,) = (text for kind, text in texts(payload) if kind == "header")
    assert header == "maze-demo failed"


@must_not(25)
def test_waking_must_not_be_believed_before_it_is_looked_at(world: World) -> None:
    running(world)
    assert receive(world.ports, health("i-w3")) == ["maze-1"]
    assert decided(world) is None
    assert world.run().state is RunState.RUNNING


@must_not(18)
def test_a_look_that_nobody_waits_for_must_not_start_another_run(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.executions.stale.add("lease")
    reply = world.look(Awaiting.LEASE, "lease")
    assert reply is not None and reply.decision == "ready"
    assert world.look(Awaiting.LEASE, "lease again") is not None
    assert world.runs.lease_holder("default") == "maze-1"
    assert [name for name, _ in world.executions.started] == ["maze-1-r1"]
