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

    def kill_node(self, instance_id: str) -> dict[str, Any]:
        """SIGKILL all processes of the pods of this node, and let HyperPod tell and replace."""
        answer: dict[str, Any] = self._call("POST", "/faults/kill-node", {"instance_id": instance_id})
        return answer

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
