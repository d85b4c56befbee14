"""One configuration file for all processes of the local stack; written by the parent, read by each child."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

REPOSITORY = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"


class StackConfig(BaseModel):
    """Addresses, folders and names. All ports listen on the loopback interface only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path
    cloud_port: int
    kube_port: int
    endpoint_port: int
    admin_port: int
    slack_port: int
    functions_python: Path
    pod_python: Path
    account: str = "123456789012"
    region: str = "us-east-1"
    stack_name: str = "nightshift"
    eks_cluster: str = "local-eks"
    hyperpod_cluster: str = "local-hyperpod"
    namespace: str = "nightshift"
    bucket: str = "nightshift-local-artifacts"
    worker_nodes: int = 3
    schedule_speed: float = 1.0
    """Scheduled rules come this many times faster than their rate says."""

    enforces_iam: bool = False
    """Every call of a role is judged by its policies; pods get the role of their Pod Identity association."""

    spare_joins_after: float = 0.0
    """Seconds between a node's loss and the arrival of its replacement in Kubernetes."""

    images: dict[str, Path] = {}
    """Folder of what an image holds, by its reference; every other image holds this checkout."""

    @property
    def cloud_url(self) -> str:
        """moto: every AWS API, Lambda invocations, and the HTTP API's routes."""
        return f"http://{HOST}:{self.cloud_port}"

    @property
    def kube_url(self) -> str:
        return f"https://localhost:{self.kube_port}"

    @property
    def endpoint_url(self) -> str:
        """The authenticated endpoint in front of the Ray dashboard."""
        return f"https://localhost:{self.endpoint_port}"

    @property
    def admin_url(self) -> str:
        """Control of the pretended HyperPod: nodes, faults. Not part of any real interface."""
        return f"http://{HOST}:{self.admin_port}"

    @property
    def slack_url(self) -> str:
        return f"https://localhost:{self.slack_port}/services/T0/B0/local"

    @property
    def tls_dir(self) -> Path:
        """``ca.pem``; ``server.pem`` (certificate chain and key) for localhost and 127.0.0.1."""
        return self.state_dir / "tls"

    @property
    def ca_file(self) -> Path:
        return self.tls_dir / "ca.pem"

    @property
    def server_pem(self) -> Path:
        return self.tls_dir / "server.pem"

    @property
    def shared_dir(self) -> Path:
        """What the FSx claim is here: the folder that pods see as /shared."""
        return self.state_dir / "shared"

    @property
    def log_dir(self) -> Path:
        return self.state_dir / "logs"

    @property
    def aws_env(self) -> dict[str, str]:
        """Environment of a process that talks to the local AWS as the account's root."""
        return {
            "AWS_ENDPOINT_URL": self.cloud_url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def save(self) -> Path:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        path = self.state_dir / "stack.json"
        path.write_text(self.model_dump_json(indent=1))
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls.model_validate_json(path.read_text())


def free_ports(count: int) -> list[int]:
    """Different free TCP ports of the loopback interface."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def new_config(state_dir: Path) -> StackConfig:
    """A configuration with free ports and the project's own virtual environments."""
    cloud, kube, endpoint, admin, slack = free_ports(5)
    return StackConfig(
        state_dir=state_dir.resolve(),
        cloud_port=cloud,
        kube_port=kube,
        endpoint_port=endpoint,
        admin_port=admin,
        slack_port=slack,
        functions_python=REPOSITORY / ".venv-functions/bin/python",
        pod_python=Path(sys.executable),
    )
