"""Which runs an event concerns. An event is a hint: it wakes, and everything is read afresh then."""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.core.run import Run, RunState, SignalKind

AWAITING_NODES = frozenset({RunState.PROVISIONING, RunState.RECOVERING})


@dataclass(frozen=True)
class NodeHint:
    """A HyperPod event, reduced to what matters. ``instance_id`` is None for events about a group or a cluster."""

    kind: SignalKind
    cluster: str
    instance_id: str | None
    detail: str


def concerns(run: Run, hint: NodeHint) -> bool:
    """A node event concerns a run only if the instance hosts one of its pods. A run that waits for nodes also wants to
    know of any change of the cluster itself: its replacement is an instance that it has never seen."""
    if run.state.is_final or run.hyperpod_cluster != hint.cluster:
        return False
    if hint.instance_id is not None and hint.instance_id in run.instances:
        return True
    return run.state in AWAITING_NODES and hint.kind in (SignalKind.CLUSTER_EVENT, SignalKind.CLUSTER_STATE)
