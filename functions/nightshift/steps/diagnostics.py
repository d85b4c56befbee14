"""What is kept of an attempt that ended, while it can still be had: files under ``attempts/<n>/diagnostics/``.

All parts are gathered at once and each may be missing: a sentence in its file says why. They never decide anything, never
break anything, and never hold a recovery up: what a training run loses while its GPUs stand idle is worth more than a log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

from nightshift.contract.layout import RunKeys
from nightshift.contract.redaction import without_secrets
from nightshift.core.causes import EndCause
from nightshift.core.errors import NightshiftError
from nightshift.core.run import Attempt, Run
from nightshift.steps.ports import Ports

HURRIED_SECONDS = 2.0
"""In all, where the next attempt is waited for: of the ten seconds that a recovery may take, Ray needs five."""

PATIENT_SECONDS = 45.0
"""In all, where nothing hurries: the attempt has stood still for minutes, or no other one follows."""

RESERVE_SECONDS = 15.0
"""Of the invocation, for what has to be written after this."""

LAST_SECONDS = 3.0
"""For the sentences about what is missing."""

STANDING_STILL = frozenset({EndCause.HUNG, EndCause.START_DEADLINE, EndCause.PROGRESS_UNWRITABLE})
"""Causes for which these files are the only explanation, and after minutes of waiting."""

DRIVER_LOG, MISSING = "driver.log", "missing: "
"""A file's name, and what a text file begins with whose part could not be had."""

TEXT, JSON = "text/plain; charset=utf-8", "application/json"


def save_diagnostics(ports: Ports, run: Run, attempt: Attempt, hurried: bool = False) -> None:
    """Gather and store everything, within ``HURRIED_SECONDS`` or ``PATIENT_SECONDS`` and never longer than the invocation
    allows. Raises nothing. What an earlier call has stored is replaced by something newer, never by a sentence.

    Called where an attempt ends, which is before anything is published: a part that comes too late is dropped, since a
    manifest may by then have said what these files hold."""
    seconds = min(HURRIED_SECONDS if hurried else PATIENT_SECONDS, ports.remaining() - RESERVE_SECONDS)
    seconds = max(1.0, seconds)
    folder = RunKeys(run.run_id).diagnostics(attempt.n)
    parts, over = _parts(ports, run, attempt, seconds), Event()

    def store(name: str) -> None:
        text = parts[name]()
        if not over.is_set():
            ports.artifacts.put(run.run_id, f"{folder}{name}", text.encode(), _kind(name))

    def say(name: str, why: str) -> None:
        if ports.artifacts.read_small(f"{folder}{name}") is None:
            said = _json({"missing": why}) if _kind(name) == JSON else without_secrets(f"{MISSING}{why}")
            ports.artifacts.put(run.run_id, f"{folder}{name}", said.encode(), _kind(name))

    missing = ports.together({name: partial(store, name) for name in parts}, seconds)
    over.set()
    ports.together({name: partial(say, name, why) for name, why in missing.items()}, LAST_SECONDS)


def _parts(ports: Ports, run: Run, attempt: Attempt, seconds: float) -> dict[str, Callable[[], str]]:
    clusters, name, share = ports.clusters, run.raycluster, seconds * 0.8
    with suppress(NightshiftError):
        ports.jobs(name)  # here, so that not every part makes a client and credentials of its own
    return {
        DRIVER_LOG: lambda: without_secrets(ports.jobs(name).logs(attempt.submission_id)),
        "stacks.txt": lambda: without_secrets(ports.jobs(name).stacks(share)),
        "infra.log": lambda: without_secrets(ports.jobs(name).infra_logs(share)),
        "ray-state.json": lambda: _json(ports.jobs(name).records()),
        "pods.json": lambda: _json(clusters.pod_records(name)),
        "events.json": lambda: _json(clusters.event_records(name)),
        "nodes.json": lambda: _json(clusters.node_records(frozenset(run.instances))),
    }


def _kind(name: str) -> str:
    return JSON if name.endswith(".json") else TEXT


def _json(value: Any) -> str:
    return json.dumps(_cleaned(value), indent=1)


def _cleaned(value: Any) -> Any:
    """Text by text: a whole JSON document might not be one any more after a replacement."""
    match value:
        case Mapping():
            return {str(k): _cleaned(v) for k, v in value.items()}
        case list() | tuple():
            return [_cleaned(v) for v in value]
        case str():
            return without_secrets(value)
        case int() | float() | None:
            return value
    return without_secrets(str(value))
