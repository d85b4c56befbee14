"""The list of faults, and what must come of each. A fault's function starts its run, strikes it, and waits for its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from local.chaos import jobs, nodes, services
from local.chaos.evidence import Expected
from local.chaos.play import Play

LOST = frozenset({"node_replaced", "node_lost"})


@dataclass(frozen=True)
class Fault:
    """``few``: one of those that a short check plays too."""

    name: str
    title: str
    play: Callable[[Play], None]
    expected: Expected
    few: bool = False


_NODE = frozenset({"hyperpod_node_health", "hyperpod_cluster_event"})
_NOT_DISTURBED = Expected(attempts=(1, 1))
_STOPPED = Expected("failed", (1, 1), frozenset({"controller_fault"}), manifest=False)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "node-events", "node killed, only node events", nodes.node_events_only,
        Expected(causes=LOST, signals=_NODE), few=True,
    ),
    Fault(
        "node-outcome", "node killed, only the outcome", nodes.outcome_only,
        Expected(causes=frozenset({"node_lost"}), signals=frozenset({"outcome"})),
    ),
    Fault(
        "node-neither", "node killed, no signal at all", nodes.no_signal,
        Expected(causes=frozenset({"node_lost"}), signals=frozenset({"timer"})),
    ),
    Fault(
        "node-storm", f"node killed {nodes.STORM} times", nodes.storm,
        Expected(attempts=(nodes.STORM + 1, nodes.STORM + 1), causes=LOST, running_p95=10.0),
    ),
    Fault("node-cold", "node killed, no spare", nodes.cold_node, Expected(causes=LOST)),
    Fault(
        "frozen-host", "host frozen (SIGSTOP)", nodes.frozen_host,
        Expected(causes=LOST | {"worker_failed"}, decided_within=90.0),
    ),
    Fault("head", "head killed", nodes.head_killed, Expected(causes=frozenset({"head_lost"}))),
    Fault("head-node", "the driver's node killed", nodes.head_node_killed, Expected(causes=LOST | {"head_lost"})),
    Fault("driver", "driver killed", jobs.driver_killed, Expected(causes=frozenset({"worker_failed"}))),
    Fault("dashboard", "dashboard killed", jobs.dashboard_killed, Expected(causes=frozenset({"head_lost"}))),
    Fault("dashboard-silent", "dashboard frozen to the end", jobs.dashboard_silent, _NOT_DISTURBED),
    Fault("stubborn-job", "job ignores SIGTERM, node killed", jobs.stubborn_job, Expected(causes=LOST)),
    Fault("stuck-stop", "job that nobody can stop, node killed", jobs.stuck_stop, Expected(causes=LOST)),
    Fault(
        "torn-saves", "killed inside a save, 7 places", jobs.torn_saves,
        Expected(attempts=(8, 8), causes=frozenset({"worker_failed"}), rollbacks=1),
    ),
    Fault("cookie", "cookie expired, endpoint out of order", services.expired_cookie, _NOT_DISTURBED, few=True),
    Fault("refusals", "429 and 500 from S3 and DynamoDB, node killed", services.refusals, Expected(attempts=(2, 4))),
    Fault("mixed-events", "events doubled, reordered, lost", services.mixed_events, Expected(causes=LOST)),
    Fault("lambda-submit", "function killed after its submit", services.lambda_killed_after_submit, _NOT_DISTURBED, few=True),
    Fault("lambda-decision", "function killed after its decision", services.lambda_killed_after_decision, Expected(causes=LOST)),
    Fault("stopped", "StopExecution in the console", services.stopped_in_console, _STOPPED, few=True),
    Fault("stopped-unheard", "StopExecution, and its event lost", services.stopped_unheard, _STOPPED),
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
