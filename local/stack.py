"""The local stack: starts everything, deploys the project's own template, and ends everything."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from samtranslator.yaml_helper import yaml_parse

from local import proctree, tls
from local.account import Account
from local.cloud.deploy import deploy
from local.config import REPOSITORY, StackConfig, new_config
from local.hyperpod import HyperPod
from local.memory import MemorySampler
from local.processes import StackError, Supervisor, undisturbed
from local.story.slack import SlackMessage, read_messages

TEMPLATE = REPOSITORY / "template.yaml"
_TEMPORARY, _PREFIX, _OWNER = Path("/tmp"), "ns-", "owner"
"""Ray puts unix sockets below the state folder, and their names are limited to 107 characters: it must be short."""

_READY_SECONDS = 60.0
_HEALTHY_SECONDS = 30.0


class Stack:
    """Everything that the embedded default consists of; use as a context manager, in the main thread.

    Entering returns when a run could be asked for. Leaving ends every process, and ``left_over`` then names those that
    were found running after their end (there should be none). Logs are copied to ``logs_to``, where given;
    ``settings`` are fields of the configuration that are to be other than usual; memory need not be measured.
    ``template`` and ``python`` are what is deployed first, with ``parameters`` in place of the usual ones.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        logs_to: Path | None = None,
        measures_memory: bool = True,
        template: Path = TEMPLATE,
        python: Path | None = None,
        parameters: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self._say = say
        self._logs_to, self._measures_memory = logs_to, measures_memory
        self._template, self._python = template, python
        self._asked = dict(parameters or {})
        self._exit = ExitStack()
        self.config: StackConfig = new_config(new_state_dir()).model_copy(update=settings)
        self.supervisor = Supervisor(self.config.log_dir)
        self.memory = MemorySampler(self.supervisor.note)
        self.account = Account(self.config)
        self.hyperpod = HyperPod(self.config)
        self.outputs: dict[str, str] = {}
        self.left_over: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def processes(self) -> list[str]:
        """Every process that runs below this one now, as ``pid name``."""
        return [f"{process.pid} {process.name}" for process in self.supervisor.note()]

    @property
    def slack(self) -> list[SlackMessage]:
        """Messages that Slack has received."""
        return read_messages(self.config.state_dir / "slack.jsonl")

    def _up(self) -> None:
        config = self.config
        config_path = config.save()
        config.shared_dir.mkdir(parents=True, exist_ok=True)
        tls.ensure(config)
        children = [
            self.supervisor.start(name, [str(config.pod_python), "-m", f"local.{name}", str(config_path)])
            for name in ("cloud", "kube")
        ]
        if self._measures_memory:
            self._exit.enter_context(self.memory)
        for child in children:
            self.supervisor.wait_ready(child, _READY_SECONDS)
        self._say(f"cloud and kubernetes are up; deploying {self._template.name}")
        self._given = self._parameters() | self._asked
        self.deploy(self._template, self._python)
        self._wait_healthy()

    def deploy(self, template: Path, python: Path | None = None) -> None:
        """Create the stack, or update it to another release's template, state machines and functions, which lie beside
        it. Runs may be under way. ``python`` has that release's requirements, where they are others."""
        declared = yaml_parse(template.read_text(encoding="utf-8"))["Parameters"]
        given = {name: value for name, value in self._given.items() if name in declared}
        self.outputs = deploy(self.config, template, given, python)
        self.account.api_url = self.outputs["ApiUrl"]
        self._allow_controller()

    def _parameters(self) -> dict[str, str]:
        """What a person would answer to ``sam deploy --guided``; the webhook is a secret that exists before."""
        config = self.config
        secret = self.account.client("secretsmanager").create_secret(
            Name="nightshift/slack", SecretString=json.dumps({"webhook_url": config.slack_url})
        )
        return {
            "HyperPodClusterName": config.hyperpod_cluster,
            "EksClusterName": config.eks_cluster,
            "Namespace": config.namespace,
            "BucketName": config.bucket,
            "SlackSecretArn": secret["ARN"],
            "SlackAllowedHosts": f"localhost:{config.slack_port}",
            # No night: what happens is told at once, at whatever hour somebody tries it.
            "NightBegins": "0",
            "NightEnds": "0",
        }

    def _allow_controller(self) -> None:
        """The template's EKS access entry, made known to the local Kubernetes API, which has no EKS to ask."""
        entries = {"principals": [self.outputs["ControllerRoleArn"]]}
        (self.config.state_dir / "access_entries.json").write_text(json.dumps(entries))

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + _HEALTHY_SECONDS
        while True:
            self.supervisor.check()
            status, body = self.account.api("GET", "/runs/no-such-run")
            if status == 404 and len(self.hyperpod.nodes()) > self.config.worker_nodes:
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"the stack is not healthy after {_HEALTHY_SECONDS:g} s: GET /runs answers {status} {body}"
                )
            time.sleep(0.2)

    def close(self) -> None:
        """End everything; more than once is fine."""
        with undisturbed():
            try:
                self._exit.close()
            finally:
                self.supervisor.stop()
                self.left_over = self.supervisor.leftovers()
                self._keep_logs()
                shutil.rmtree(self.config.state_dir, ignore_errors=True)

    def _keep_logs(self) -> None:
        if self._logs_to is None or not self.config.log_dir.exists():
            return
        shutil.rmtree(self._logs_to, ignore_errors=True)
        shutil.copytree(self.config.log_dir, self._logs_to, ignore_dangling_symlinks=True)


def new_state_dir() -> Path:
    """A fresh folder, marked as this process's; folders of owners that were killed are removed first."""
    for marker in _TEMPORARY.glob(f"{_PREFIX}*/{_OWNER}"):
        if not _is_owned(marker):
            shutil.rmtree(marker.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMPORARY))
    me = proctree.look_up(os.getpid())
    assert me is not None, "this process is in the process table"
    (folder / _OWNER).write_text(_mark(me))
    return folder


def _is_owned(marker: Path) -> bool:
    try:
        text = marker.read_text()
    except FileNotFoundError:
        return True  # its owner is just removing it
    pid = text.partition(" ")[0]
    owner = proctree.look_up(int(pid)) if pid.isdigit() else None
    return not text or (owner is not None and text == _mark(owner))


def _mark(process: proctree.Process) -> str:
    return f"{process.pid} {process.started}"
