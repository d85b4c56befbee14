"""Faults of machines: nodes, hosts, the head."""

from __future__ import annotations

from local.chaos.play import Play

UNNOTICED_SECONDS = 40.0
"""What Kubernetes' node controller waits for a heartbeat before it calls a node unreachable."""

COLD_SECONDS = 25.0
STORM = 12
OUTCOME_EVENT = {"what": "event", "detail_type": "Object Created", "contains": "outcome.json"}


def recovery(play: Play) -> None:
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
    recovery(play)


def no_signal(play: Play) -> None:
    play.start()
    play.fault({**OUTCOME_EVENT, "do": "drop"})
    play.until_saved(1)
    kill_worker(play, 1, emit_events=False)
    play.until_decided()
    play.calm()
    recovery(play)


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
    recovery(play)


def frozen_host(play: Play) -> None:
    """SIGSTOP: nothing dies, nothing answers. HyperPod replaces the node after the run has seen it."""
    play.start()
    play.until_saved(1)
    victim = play.hyperpod.worker_with_pod()
    play.hit(1, f"SIGSTOP to all of node {victim}")
    play.hyperpod.freeze_node(victim, UNNOTICED_SECONDS)
    play.until_decided()
    play.hyperpod.kill_node(victim)
    recovery(play)


def head_killed(play: Play) -> None:
    play.start()
    play.until_saved(1)
    play.hit(1, "SIGKILL to all of the head pod")
    play.hyperpod.kill_head(play.hyperpod.rayclusters()[0])
    recovery(play)


def head_node_killed(play: Play) -> None:
    """The driver's node: the entrypoint is pinned to the head. HyperPod says nothing about the health of a CPU node."""
    play.start()
    play.until_saved(1)
    victim = play.hyperpod.head()
    play.hit(1, f"SIGKILL to all of node {victim}, which has the head and the driver")
    play.hyperpod.kill_node(victim)
    recovery(play)
