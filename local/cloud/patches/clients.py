"""Fault: the interpreter makes a new boto3 client for every call (5 to 100 ms each), at ``localhost``, from the shared
default session, which is not safe to use from several threads. Here each service has one client, made under a lock."""

from __future__ import annotations

import sys
import threading
from typing import Any

import boto3
from botocore.config import Config
from moto.settings import moto_server_port
from moto.stepfunctions.parser.asl.utils import boto_client

CONNECTIONS = 64
"""Calls that may be under way at once for one service: each waiting state of an execution may hold one."""

_LOCK = threading.Lock()
_CLIENTS: dict[tuple[str, str], Any] = {}


def client_for(region: str, service: str, state_credentials: Any = None) -> Any:
    """The interpreter's client for one service of this server. Roles in ``Credentials`` are not assumed."""
    with _LOCK:
        key = (region, service)
        if key not in _CLIENTS:
            _CLIENTS[key] = boto3.session.Session().client(
                service,
                region_name=region,
                endpoint_url=f"http://127.0.0.1:{moto_server_port()}",
                aws_access_key_id="test",
                aws_secret_access_key="test",
                config=Config(
                    parameter_validation=False,
                    retries={"max_attempts": 0, "total_max_attempts": 1},
                    max_pool_connections=CONNECTIONS,
                    read_timeout=1_000,
                ),
            )
        return _CLIENTS[key]


def install() -> None:
    original = boto_client.boto_client_for
    for module in list(sys.modules.values()):
        if getattr(module, "boto_client_for", None) is original:
            module.boto_client_for = client_for  # type: ignore[attr-defined]
