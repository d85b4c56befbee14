"""The faults, one function each. A function starts its run, strikes it, and waits for its end; ``judge`` does the rest."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from local.chaos.evidence import Expected
from local.chaos.play import Play
from local.chaos.sabotage import Kill, Plan
from local.story.watch import StoryFailed

LOST = frozenset({"node_replaced", "node_lost"})
UNNOTICED_SECONDS = 40.0
"""What Kubernetes' node controller waits for a heartbeat before it calls a node unreachable."""

COLD_SECONDS = 25.0
STORM = 12
OUTCOME_EVENT = {"what": "event", "detail_type": "Object Created", "contains": "outcome.json"}
NODE_EVENT = {"what": "event", "detail_type": "SageMaker HyperPod*"}


@dataclass(frozen=True)
class Fault:
    """``few``: one of those that a short check plays too."""

    name: str
    title: str
    play: Callable[[Play], None]
    expected: Expected
    few: bool = False


def _recovery(play: Play) -> None:
    play.until_recovered()
    play.until_final()


def kill_worker(play: Play, attempt: int, emit_events: bool = True, joins_after: float | None = None) -> None:
    """SIGKILL to everything on a node that has a worker."""
    victim = play.hyperpod.worker_with_pod()
    play.hit(attempt, f"SIGKILL to all of node {victim}")
    play.hyperpod.kill_node(victim, emit_events, joins_after)


def node_events_only(play: Play) -> None:
    play.start()
    play.fault({**OUTCOME_EVENT, "do": "drop"})
    play.until_saved(1)
    kill_worker(play, 1)
    play.until_recovered()
    play.calm(must_have_struck=False)  # the fence is usually faster than the job's own outcome
    play.until_final()


def outcome_only(play: Play) -> None:
    play.start()
    play.until_saved(1)
    kill_worker(play, 1, emit_events=False)
    _recovery(play)


def no_signal(play: Play) -> None:
    play.start()
    play.fault({**OUTCOME_EVENT, "do": "drop"})
    play.until_saved(1)
    kill_worker(play, 1, emit_events=False)
    play.until_decided()
    play.calm()
    _recovery(play)


def storm(play: Play) -> None:
    """The same run loses a node again and again; each time it has saved a new checkpoint before."""
    play.start(steps=10 * STORM)
    saved = 0
    for attempt in range(1, STORM + 1):
        play.until_saved(attempt, saved + 2)
        kill_worker(play, attempt)
        play.until_recovered()
        now = play.progress(attempt + 1)
        saved = now.resumed_step or 0 if now is not None else 0
    play.until_final()


def cold_node(play: Play) -> None:
    """There is no spare: it died first, and both replacements join late."""
    play.start(steps=24)
    play.until_saved(1)
    (idle,) = (one for one in play.hyperpod.nodes() if not one["pods"])
    play.hyperpod.kill_node(idle["instance_id"], joins_after=COLD_SECONDS)
    kill_worker(play, 1, joins_after=COLD_SECONDS)
    play.notes.append(f"the replacement joined after {COLD_SECONDS:g} s")
    _recovery(play)


def frozen_host(play: Play) -> None:
    """SIGSTOP: nothing dies, nothing answers. HyperPod replaces the node after the run has seen it."""
    play.start()
    play.until_saved(1)
    victim = play.hyperpod.worker_with_pod()
    play.hit(1, f"SIGSTOP to all of node {victim}")
    play.hyperpod.freeze_node(victim, UNNOTICED_SECONDS)
    play.until_decided()
    play.hyperpod.kill_node(victim)
    _recovery(play)


def head_killed(play: Play) -> None:
    play.start()
    play.until_saved(1)
    play.hit(1, "SIGKILL to all of the head pod")
    play.hyperpod.kill_head(play.hyperpod.rayclusters()[0])
    _recovery(play)


def head_node_killed(play: Play) -> None:
    """The driver's node: the entrypoint is pinned to the head. HyperPod says nothing about the health of a CPU node."""
    play.start()
    play.until_saved(1)
    victim = play.hyperpod.head()
    play.hit(1, f"SIGKILL to all of node {victim}, which has the head and the driver")
    play.hyperpod.kill_node(victim)
    _recovery(play)


def driver_killed(play: Play) -> None:
    play.start()
    play.until_saved(1)
    pid = play.driver(1).pid
    play.hit(1, f"SIGKILL to the driver, {pid}")
    play.kill_processes([pid])
    _recovery(play)


def _dashboard(play: Play) -> int:
    found = [one["pid"] for one in play.hyperpod.processes() if "dashboard.py" in one["what"]]
    if not found:
        raise StoryFailed("no dashboard is running")
    return int(found[0])


def dashboard_killed(play: Play) -> None:
    """``ray start --block`` ends when one of its processes dies, so the head's container starts again, job and all."""
    play.start()
    play.until_saved(1)
    pid = _dashboard(play)
    play.hit(1, f"SIGKILL to the dashboard, {pid}")
    play.kill_processes([pid])
    _recovery(play)


def dashboard_silent(play: Play) -> None:
    """Connections are taken and never answered, to the end of the run: the job must not be judged by that."""
    play.start(steps=60)
    play.until_saved(1)
    pid = _dashboard(play)
    play.screen.line("fault", f"SIGSTOP to the dashboard, {pid}")
    play.kill_processes([pid], signal.SIGSTOP)
    play.nudge()
    play.until_final()


def stubborn_job(play: Play) -> None:
    """A node is lost; the old driver ignores SIGTERM and goes on as if nothing had happened."""
    play.start(sabotage=Plan(stubborn=(1,)))
    play.until_saved(1)
    old = play.driver(1)
    kill_worker(play, 1)
    play.until_recovered()
    if any(one.pid == old.pid for one in play.drivers()):
        raise StoryFailed("the old driver still runs beside the new attempt")
    play.until_final()


TORN = {
    1: Kill(point="bytes", part="model", at=1),
    2: Kill(point="bytes", part="optim", at=20_000),
    3: Kill(point="bytes", part="extra_state", at=-1),
    4: Kill(point="no_pointer"),
    5: Kill(point="empty_pointer"),
    6: Kill(point="torn", part="optim"),
    7: Kill(point="rot", part="model", at=10_000),
}


def torn_saves(play: Play) -> None:
    """Seven attempts die in the middle of a save, each at another place; each has saved a new checkpoint before."""
    play.start(steps=40, sabotage=Plan(kills=TORN))
    for attempt, kill in TORN.items():
        play.until_driver(attempt, alive=True)
        play.until_driver(attempt, alive=False)
        play.hit(attempt, f"attempt {attempt} died in a save: {kill.point} {kill.part} {kill.at}")
        _nudge_until_decided(play, attempt)
    play.notes.append(", ".join(dict.fromkeys(kill.point for kill in TORN.values())))
    play.until_final()


def _nudge_until_decided(play: Play, attempt: int) -> None:
    """A driver that is merely gone sends no signal, and seven naps are long."""
    for _ in range(30):
        play.nudge()
        play.pause(2.0)
        line = play.line(attempt)
        if line is not None and line.ended_at is not None:
            return
    raise StoryFailed(f"attempt {attempt} was not judged although it is dead")


def expired_cookie(play: Play) -> None:
    """Sessions end, first while looks are held, then in mid-run; then the endpoint is out of order in four ways."""
    play.start(steps=90)
    ended = 0
    for _ in range(60):
        ended += play.hyperpod.expire_sessions()
        play.pause(0.4)
        if play.progress(1) is not None:
            break
    play.until_saved(1)
    for _ in range(3):
        ended += play.hyperpod.expire_sessions()
        play.nudge()
        play.pause(1.5)
    for trouble in ("unauthorized", "login_page", "server_error", "refuse"):
        play.expect_alive()
        play.hyperpod.fail_endpoint(trouble, 4.0)
        play.nudge()
        play.pause(4.0)
    refused = play.hyperpod.endpoint_troubled()
    if not ended or not refused:
        raise StoryFailed(f"{ended} sessions ended and {refused} calls were refused: nothing was shown")
    play.notes.append(f"{ended} sessions ended, {refused} calls refused")
    play.until_final()


def refusals(play: Play) -> None:
    """S3 and DynamoDB refuse a half of all calls with 429 and 500, then all; meanwhile a node dies."""
    play.start(steps=60)
    play.until_saved(1)
    calls = {"what": "call", "seconds": 25}
    play.fault(
        {**calls, "services": ["s3"], "every": 3, "status": 429, "code": "SlowDown"},
        {**calls, "services": ["dynamodb"], "every": 3, "status": 429, "code": "ThrottlingException"},
        {**calls, "services": ["s3"], "every": 4, "status": 500, "code": "InternalError"},
        {**calls, "services": ["dynamodb"], "every": 4, "status": 500, "code": "InternalServerError"},
    )
    play.pause(5.0)
    kill_worker(play, 1)
    play.pause(15.0)
    times = play.struck()
    play.calm()
    play.fault(
        {"what": "call", "services": ["s3"], "status": 500, "code": "InternalError", "seconds": 5},
        {"what": "call", "services": ["dynamodb"], "status": 500, "code": "InternalServerError", "seconds": 5},
    )
    play.pause(6.0)
    play.notes.append(f"{sum(times)} calls refused, then all for 5 s")
    play.calm(must_have_struck=False)
    play.until_final()


def mixed_events(play: Play) -> None:
    """Every event is doubled and overtaken by later ones, and every third is lost: one node, one recovery."""
    play.fault(
        {"what": "event", "detail_type": "Training Run*", "do": "double"},
        {**NODE_EVENT, "do": "double"},
        {**NODE_EVENT, "do": "late"},
        {**NODE_EVENT, "do": "drop", "every": 3},
        {**OUTCOME_EVENT, "do": "double"},
    )
    play.start()
    play.until_saved(1)
    kill_worker(play, 1)
    play.until_recovered()
    play.until_final()
    play.calm()


def lambda_killed_after_submit(play: Play) -> None:
    """Ray has the job, and the function dies before it can say or write so."""
    write = {"what": "call", "services": ["dynamodb"], "who": "functions", "operation": "UpdateItem"}
    play.fault({**write, "contains": '"running"', "times": 1, "hold": 5.0})
    play.start()
    _kill_held_controller(play)
    play.until_final()


def lambda_killed_after_decision(play: Play) -> None:
    """The decision to recover is written, and the function dies before it can answer its token."""
    play.start()
    play.until_saved(1)
    answer = {"what": "call", "services": ["states"], "who": "functions", "operation": "SendTaskSuccess"}
    play.fault({**answer, "contains": "recover", "times": 1, "hold": 5.0})
    kill_worker(play, 1)
    _kill_held_controller(play)
    _recovery(play)


def _kill_held_controller(play: Play) -> None:
    play.until("a held call", lambda: play.struck() == [1], 300)
    pids = play.function_processes("ControllerFunction")
    play.screen.line("fault", f"SIGKILL to the controller function's processes {pids}")
    play.kill_processes(pids)
    play.calm()


def stopped_in_console(play: Play) -> None:
    play.start(steps=60)
    play.until_saved(1)
    machine = play.stack.outputs["TrainingRunArn"]
    (mine,) = (one for one in play.stack.account.executions(machine) if one["name"].startswith(f"{play.run_id}-r"))
    play.screen.line("fault", f"StopExecution of {mine['name']}")
    play.stack.account.states.stop_execution(executionArn=mine["executionArn"], cause="a person in the console")
    play.until_final()


_NODE = frozenset({"hyperpod_node_health", "hyperpod_cluster_event"})
_NOT_DISTURBED = Expected(attempts=(1, 1))
_STOPPED = Expected("failed", (1, 1), frozenset({"controller_fault"}), manifest=False)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "node-events", "node killed, only node events", node_events_only,
        Expected(causes=LOST, signals=_NODE), few=True,
    ),
    Fault(
        "node-outcome", "node killed, only the outcome", outcome_only,
        Expected(causes=frozenset({"node_lost"}), signals=frozenset({"outcome"})),
    ),
    Fault(
        "node-neither", "node killed, no signal at all", no_signal,
        Expected(causes=frozenset({"node_lost"}), signals=frozenset({"timer"})),
    ),
    Fault(
        "node-storm", f"node killed {STORM} times", storm,
        Expected(attempts=(STORM + 1, STORM + 1), causes=LOST, running_p95=10.0),
    ),
    Fault("node-cold", "node killed, no spare", cold_node, Expected(causes=LOST)),
    Fault("frozen-host", "host frozen (SIGSTOP)", frozen_host, Expected(decided_within=90.0)),
    Fault("head", "head killed", head_killed, Expected(causes=frozenset({"head_lost"}))),
    Fault("head-node", "the driver's node killed", head_node_killed, Expected(causes=LOST | {"head_lost"})),
    Fault("driver", "driver killed", driver_killed, Expected()),
    Fault("dashboard", "dashboard killed", dashboard_killed, Expected(causes=frozenset({"head_lost"}))),
    Fault("dashboard-silent", "dashboard frozen to the end", dashboard_silent, _NOT_DISTURBED),
    Fault("stubborn-job", "job ignores SIGTERM, node killed", stubborn_job, Expected(causes=LOST)),
    Fault(
        "torn-saves", "killed inside a save, 7 places", torn_saves,
        Expected(attempts=(8, 8), rollbacks=1),
    ),
    Fault("cookie", "cookie expired, endpoint out of order", expired_cookie, _NOT_DISTURBED, few=True),
    Fault("refusals", "429 and 500 from S3 and DynamoDB, node killed", refusals, Expected(attempts=(2, 4))),
    Fault("mixed-events", "events doubled, reordered, lost", mixed_events, Expected(causes=LOST)),
    Fault("lambda-submit", "function killed after its submit", lambda_killed_after_submit, _NOT_DISTURBED, few=True),
    Fault("lambda-decision", "function killed after its decision", lambda_killed_after_decision, Expected(causes=LOST)),
    Fault("stopped", "StopExecution in the console", stopped_in_console, _STOPPED, few=True),
)  # fmt: skip
"""In the order of the table."""


def chosen(names: list[str], fewer: bool) -> list[Fault]:
    """All, the few, or the named ones. Raises ValueError for an unknown name."""
    known = {one.name: one for one in FAULTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no fault is named {', '.join(unknown)}; there are: {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    return [one for one in FAULTS if one.few or not fewer]
