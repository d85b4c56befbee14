"""The local stack's own certificate authority: HTTPS is mandatory for the toolkit, and for Kubernetes clients."""

from __future__ import annotations

import fcntl
import os
import ssl
from pathlib import Path

import trustme

from local.config import HOST, StackConfig

NAMES = ("localhost", HOST)


def ensure(config: StackConfig) -> None:
    """Make ``ca.pem`` and ``server.pem`` (key, then certificate chain) in ``config.tls_dir``, unless both are there.

    The authority's key is never written: a lost folder means new certificates. Safe to call from several processes.
    """
    config.tls_dir.mkdir(parents=True, exist_ok=True)
    with (config.tls_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if config.ca_file.exists() and config.server_pem.exists():
            return
        authority = trustme.CA(organization_name="Nightshift local stack")
        server = authority.issue_cert(*NAMES)
        _write(config.server_pem, server.private_key_and_cert_chain_pem.bytes(), mode=0o600)
        _write(config.ca_file, authority.cert_pem.bytes(), mode=0o644)


def server_context(config: StackConfig) -> ssl.SSLContext:
    """For a listener on localhost. Call :func:`ensure` first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.server_pem)
    return context


def _write(path: Path, content: bytes, mode: int) -> None:
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
