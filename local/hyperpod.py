"""Control of the pretended HyperPod: the admin API of ``local.kube``. No part of any real interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from local.config import StackConfig
from local.processes import StackError

_TIMEOUT_SECONDS = 20


class HyperPod:
    """What a data centre does by itself: nodes come and die."""

    def __init__(self, config: StackConfig) -> None:
        self._config = config

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes as [{instance_id, instance_group, instance_type, status, pods}]."""
        answer: list[dict[str, Any]] = self._call("GET", "/nodes")
        return answer

    def pods(self) -> list[str]:
        """The names of all pods on all nodes."""
        return sorted(_pod_name(pod) for node in self.nodes() for pod in node["pods"])

    def worker_with_pod(self) -> str:
        """The instance id of a node that runs a worker pod and not the head."""
        for node in self.nodes():
            names = [_pod_name(pod) for pod in node["pods"]]
            if names and not any("head" in name for name in names) and "r5d" not in node["instance_type"]:
                instance_id: str = node["instance_id"]
                return instance_id
        raise StackError(f"no node runs a worker pod: {self.nodes()}")

    def head(self) -> str:
        """The instance id of the node that runs the head pod."""
        for node in self.nodes():
            if any("head" in _pod_name(pod) for pod in node["pods"]):
                instance_id: str = node["instance_id"]
                return instance_id
        raise StackError(f"no node runs a head pod: {self.nodes()}")

    def rayclusters(self) -> list[str]:
        """The names of all RayClusters."""
        answer: list[str] = self._call("GET", "/rayclusters")
        return answer

    def processes(self) -> list[dict[str, Any]]:
        """What runs for the pods, as [{pid, what}], with this service itself and orphans among it."""
        answer: list[dict[str, Any]] = self._call("GET", "/processes")
        return answer

    def kill_node(self, instance_id: str, emit_events: bool = True, joins_after: float | None = None) -> dict[str, Any]:
        """SIGKILL all processes of the pods of this node, and let HyperPod tell and replace."""
        body = {"instance_id": instance_id, "emit_events": emit_events, "joins_after": joins_after}
        answer: dict[str, Any] = self._call("POST", "/faults/kill-node", body)
        return answer

    def kill_head(self, raycluster: str) -> dict[str, Any]:
        """SIGKILL all processes of the head pod; its node stays."""
        answer: dict[str, Any] = self._call("POST", "/faults/kill-head", {"raycluster": raycluster})
        return answer

    def freeze_node(self, instance_id: str, unnoticed: float) -> dict[str, Any]:
        """SIGSTOP all processes of the pods of this node; Kubernetes notices after so many seconds."""
        answer: dict[str, Any] = self._call(
            "POST", "/faults/freeze-node", {"instance_id": instance_id, "unnoticed": unnoticed}
        )
        return answer

    def expire_sessions(self) -> int:
        """End every session of the endpoint, as after six hours; returns how many there were."""
        return int(self._call("POST", "/faults/expire-sessions")["expired"])

    def fail_endpoint(self, trouble: str, seconds: float) -> None:
        """For so long the endpoint answers nothing else: refuse, unauthorized, login_page or server_error."""
        self._call("POST", "/faults/endpoint", {"trouble": trouble, "seconds": seconds})

    def endpoint_troubled(self) -> int:
        """How many calls the endpoint has answered so."""
        return int(self._call("GET", "/faults/endpoint")["troubled"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._config.admin_url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read()[:500].decode(errors="replace")
            raise StackError(f"{method} {path} of the admin API answered {error.code}: {text}") from error
        except OSError as error:
            raise StackError(f"the admin API does not answer {method} {path}: {error}") from error


def _pod_name(pod: Any) -> str:
    return str(pod["name"]) if isinstance(pod, dict) else str(pod)
