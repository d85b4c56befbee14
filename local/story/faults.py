"""The fault of the story: a worker node dies, and HyperPod says so, twice, and says the same of a stranger."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from local.config import StackConfig
from local.stack import Stack
from local.story.recovery import Recovery
from local.story.screen import Screen

STRANGER = "i-0123456789abcdef0"
_HEALTH_EVENT = "SageMaker HyperPod Cluster Node Health Event"


class Faults:
    """What happens to the data centre in this story."""

    def __init__(self, stack: Stack, screen: Screen) -> None:
        self._stack = stack
        self._screen = screen

    def kill_a_worker(self) -> tuple[str, Recovery]:
        """SIGKILL everything on one worker node; (its instance id, the measurement that begins now)."""
        victim = self._stack.hyperpod.worker_with_pod()
        self._stack.emit(node_health_event(self._stack.config, STRANGER))
        self._screen.line("hyperpod", f"event: {STRANGER} is unhealthy (a stranger: no pod of this run is on it)")
        recovery = Recovery(attempt=2, killed_at=time.time())
        self._stack.hyperpod.kill_node(victim)
        self._screen.line("fault", f"node {victim} is dead: SIGKILL to every process of its pods")
        for _ in range(2):
            self._stack.emit(node_health_event(self._stack.config, victim))
        self._screen.line("hyperpod", f"event, twice: {victim} is unhealthy")
        return victim, recovery


def node_health_event(config: StackConfig, instance_id: str) -> dict[str, Any]:
    """A full EventBridge event as HyperPod sends it when a node turns unhealthy."""
    cluster_arn = f"arn:aws:sagemaker:{config.region}:{config.account}:cluster/{config.hyperpod_cluster}"
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": _HEALTH_EVENT,
        "source": "aws.sagemaker",
        "account": config.account,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": config.region,
        "resources": [cluster_arn],
        "detail": {
            "ClusterName": config.hyperpod_cluster,
            "ClusterArn": cluster_arn,
            "InstanceId": instance_id,
            "Tags": {},
            "HealthSummary": {
                "HealthStatus": "Unhealthy",
                "HealthStatusReason": (
                    "HyperPod Health Monitoring Agent (HMA) has detected fault type NvidiaErrorTerminate on this node "
                    "and is unhealthy."
                ),
                "RepairAction": "None",
                "Recommendation": "Please Replace the Faulty Node.",
            },
        },
    }
