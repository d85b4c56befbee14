"""Fault: the interpreter makes a new boto3 client for every call (5 to 100 ms each), at ``localhost``, from the shared
default session, which is not safe to use from several threads. Here each service has one client, made under a lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.config import Config
from moto.settings import moto_server_port
from moto.stepfunctions.parser.asl.utils import boto_client

CONNECTIONS = 64
"""Calls that may be under way at once for one service: each waiting state of an execution may hold one."""

Credentials = Mapping[str, str]
"""As boto3.client takes them: ``aws_access_key_id``, ``aws_secret_access_key``, ``aws_session_token``."""

_LOCK = threading.Lock()
_CLIENTS: dict[tuple[str, str, str], Any] = {}
_ROOT: Credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
_OF_ROLE: list[Callable[[str], Credentials]] = []


def call_as_role(credentials: Callable[[str], Credentials]) -> None:
    """From now on a machine's calls are made with the credentials of its role, not with the account's."""
    _OF_ROLE.append(credentials)


def client_for(region: str, service: str, state_credentials: Any = None) -> Any:
    """The interpreter's client for one service of this server, as the account or, if asked for, as the state's role."""
    role = state_credentials.role_arn if _OF_ROLE and state_credentials is not None else ""
    with _LOCK:
        key = (region, service, role)
        if key not in _CLIENTS:
            _CLIENTS[key] = boto3.session.Session().client(
                service,
                region_name=region,
                endpoint_url=f"http://127.0.0.1:{moto_server_port()}",
                **(_OF_ROLE[-1](role) if role else _ROOT),
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
