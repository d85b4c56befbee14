"""A pod's insides: real Ray processes on a loopback address of the pod's own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from local.config import REPOSITORY, StackConfig, free_ports
from local.kube import pods, processes, sessions
from local.kube.errors import Json
from local.kube.pod_roles import PodRoles

START_SECONDS = 180.0
"""A pod that is not Ready after this long has failed."""

ASK_TIMEOUT = aiohttp.ClientTimeout(total=3)

DASHBOARD = "dashboard/dashboard.py"
CLIENT_SERVER = "ray.util.client.server"

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would kill job processes when the whole computer, not the pod, is short of memory.
    "RAY_memory_monitor_refresh_ms": "0",
    # No idle workers in advance: they hold memory, and a job's own environment cannot use them.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_BACKEND_LOG_LEVEL": "warning",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    # A busy computer: Ray's 30 s are for one that has nothing else to do.
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120",
}


@dataclass
class Runtime:
    """What runs for one pod. ``ports`` are the head's only, ``head_uid`` is a worker's only."""

    ip: str
    log: Path
    temp_dir: Path
    started: list[subprocess.Popen[bytes]]
    ports: pods.RayPorts | None = None
    head_uid: str | None = None
    has_dashboard: bool = False
    joinable: bool = False
    since: float = field(default_factory=time.monotonic)

    @property
    def exit_code(self) -> int | None:
        """Of the first of its main processes that has ended."""
        return next((code for top in self.started if (code := top.poll()) is not None), None)

    @property
    def late(self) -> bool:
        return time.monotonic() - self.since > START_SECONDS

    @property
    def dashboard_url(self) -> str | None:
        return f"http://{self.ip}:{self.ports.dashboard}" if self.ports else None


class RayPods:
    """Starts, asks and ends the Ray processes of pods. Keeps the record of every process that this package started."""

    def __init__(self, config: StackConfig, http: aiohttp.ClientSession) -> None:
        self._config, self._http = config, http
        self._network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self._numbers = itertools.count(1)
        self.runtimes: dict[str, Runtime] = {}
        """By the pod's uid."""

        self._sessions = sessions.make(config.state_dir)
        self._roles = PodRoles(config)

    @property
    def started(self) -> dict[int, subprocess.Popen[bytes]]:
        return {top.pid: top for runtime in self.runtimes.values() for top in runtime.started}

    def log_of(self, pod: Json) -> Path:
        return self._config.log_dir / f"pod-{pod['metadata']['name']}-{pod['metadata']['uid'][:8]}.log"

    def start_head(self, pod: Json, slot: pods.Slot) -> Runtime:
        """Raises OSError where the process cannot be started."""
        ip, ports = self._new_ip(), pods.RayPorts(*free_ports(3))
        runtime = self._launch(pod, ip, pods.head_command(self._ray, pod, slot.start, ip, ports))
        runtime.ports = ports
        return runtime

    def start_worker(self, pod: Json, slot: pods.Slot, head: Runtime, head_uid: str) -> Runtime:
        """``head`` must have its GCS up. Raises OSError where the process cannot be started."""
        assert head.ports is not None, "a head has ports"
        ip = self._new_ip()
        gcs = f"{head.ip}:{head.ports.gcs}"
        runtime = self._launch(pod, ip, pods.worker_command(self._ray, pod, slot.start, ip, gcs))
        runtime.head_uid = head_uid
        return runtime

    def advance_head(self, pod: Json, head: Runtime) -> bool:
        """Start the dashboard as soon as the GCS is up; say whether workers may be started.

        ``ray start`` runs its own minimal dashboard only once the GCS answers, and the raylet after that; the raylet
        joins when its agents have written their ports. A worker that finds no head node in the GCS sleeps for 2 s.
        """
        if head.joinable or head.ports is None:
            return head.joinable
        below = [(process, processes.words(process)) for process in processes.tree([head.started[0].pid])]
        minimal = [(process, words) for process, words in below if any(w.endswith(DASHBOARD) for w in words)]
        if minimal and not head.has_dashboard:
            command = pods.dashboard_command(minimal[0][1], head.ip, head.ports.dashboard, self._modules())
            env = self._env(pod, head.ip) | {"DASHBOARD_METRIC_PORT": str(free_ports(1)[0])}
            head.started.append(processes.start(command, env, head.log, self._config.state_dir))
            head.has_dashboard = True
        # Not offered here, so not paid for; ``ray start --block`` takes an end by SIGTERM as meant.
        processes.send((process for process, words in below if CLIENT_SERVER in words), signal.SIGTERM)
        if any(words and words[0].endswith("/raylet") for _, words in below):
            processes.send((process for process, _ in minimal), signal.SIGTERM)
        head.joinable = any(head.temp_dir.glob("session_latest/metrics_agent_port_*"))
        return head.joinable

    async def alive(self, head: Runtime) -> set[str]:
        """Pod addresses that Ray lists as living nodes; empty while the dashboard does not answer."""
        try:
            url = f"{head.dashboard_url}/api/v0/nodes?limit=1000"
            async with self._http.get(url, timeout=ASK_TIMEOUT) as answer:
                rows = (await answer.json())["data"]["result"]["result"]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            return set()
        return {row["node_ip"] for row in rows if row["state"] == "ALIVE"}

    async def end(self, uid: str, grace: float) -> list[int]:
        """End a pod's processes and remove its session folder. Idempotent. Returns pids that could not be ended."""
        runtime = self.runtimes.get(uid)
        if runtime is None:
            return []
        left = await processes.end(runtime.started, grace)
        self.runtimes.pop(uid, None)
        await asyncio.to_thread(shutil.rmtree, runtime.temp_dir, ignore_errors=True)
        return left

    async def end_all(self) -> None:
        """Everything that this process ever started, orphans included; then the session folders."""
        await asyncio.gather(*(self.end(uid, grace=0) for uid in list(self.runtimes)))
        await asyncio.to_thread(processes.end_all_below)
        shutil.rmtree(self._sessions, ignore_errors=True)

    def _launch(self, pod: Json, ip: str, command: list[str]) -> Runtime:
        log, temp_dir = self.log_of(pod), self._sessions / secrets.token_hex(3)
        temp_dir.mkdir(parents=True)
        # A folder of its own for each: nodes that start at once in one folder take the same socket names.
        command = [*command, f"--temp-dir={temp_dir}"]
        top = processes.start(command, self._env(pod, ip), log, self._config.state_dir)
        runtime = Runtime(ip, log, temp_dir, [top])
        self.runtimes[pod["metadata"]["uid"]] = runtime
        return runtime

    def _modules(self) -> Sequence[str]:
        """``dashboard_modules.json``: a list, for tests of what Ray offers beyond the few modules that every head pays
        for."""
        try:
            return [str(one) for one in json.loads((self._config.state_dir / "dashboard_modules.json").read_text())]
        except FileNotFoundError:
            return pods.DASHBOARD_MODULES

    @property
    def _bin(self) -> Path:
        return self._config.pod_python.parent

    @property
    def _ray(self) -> str:
        return str(self._bin / "ray")

    def _env(self, pod: Json, ip: str) -> dict[str, str]:
        """Nothing of this process's own environment but what a login shell would have."""
        shared = str(self._config.shared_dir)
        inherited = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL", "TZ") if name in os.environ}
        code = self._config.images.get(pod["spec"]["containers"][0]["image"], REPOSITORY)
        return {
            "NIGHTSHIFT_SHARED": shared,
            **inherited,
            **RAY_ENVIRONMENT,
            **self._roles.environment(pod),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **pods.container_env(pod, ip, shared),
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": os.pathsep.join((str(code / "functions"), str(code))),
            "POD_NAME": pod["metadata"]["name"],
        }

    def _new_ip(self) -> str:
        return f"{self._network}.{next(self._numbers) % 254 + 1}"
