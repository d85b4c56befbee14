"""Every private change that is made to moto, in one place: each module names the fault that it mends.

The changes reach into moto's internals, so they are valid for exactly one version of it; ``apply`` refuses any other.
``tests/local_cloud`` holds a probe for each of them that fails when the change is left out.
"""

from __future__ import annotations

from importlib.metadata import version

from local.cloud.patches import (
    answers,
    callbacks,
    clients,
    cloudformation,
    errors,
    events,
    executions,
    interrupts,
    jsonata,
    nested,
    parsing,
    permissions,
    roles,
    storage,
    tokens,
)

MOTO_VERSION = "5.2.5"

ALL = (
    parsing,
    permissions,
    roles,
    jsonata,
    answers,
    clients,
    errors,
    interrupts,
    executions,
    callbacks,
    tokens,
    nested,
    cloudformation,
    events,
    storage,
)


class WrongMotoVersionError(RuntimeError):
    """Another moto is installed than the one that these changes were made for."""


def apply() -> None:
    """Install all changes, once per process, before moto serves its first request."""
    found = version("moto")
    if found != MOTO_VERSION:
        raise WrongMotoVersionError(
            f"local.cloud needs moto {MOTO_VERSION} and found {found}: install the pinned requirements, or go through"
            " local/cloud/patches and its probes for the new version"
        )
    for module in ALL:
        module.install()
