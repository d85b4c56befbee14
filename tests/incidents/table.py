"""The incidents: what went wrong for others who run such jobs, and which tests show that it comes out right here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Incident:
    """One row: its number, where it was reported, and what was seen there."""

    number: int
    source: str
    title: str

    @property
    def id(self) -> str:
        return f"{self.number}-{self.source.replace(' ', '-')}"


TABLE = tuple(
    Incident(*row)
    for row in (
        (1, "skypilot#6133", "an outage hides success; the job is rerun"),
        (2, "ray#65608", "exit 0 recorded as FAILED after a head swap"),
        (3, "ray#65025", "FAILED on a transient error of the control store while the driver lives"),
        (4, "kuberay#3903", "the head restarted, the job is gone, the GPUs are held"),
        (5, "qiskit-serverless#685", "a poller loops for ever on 404"),
        (6, "ray#31356", "the same submission id twice at once: both fail"),
        (7, "kuberay#2154", "a retry after a lost reply duplicates the job"),
        (8, "ray#55133", "PENDING past 15 minutes"),
        (9, "kuberay#2188", "the cluster is called ready while worker pods are pending"),
        (10, "kuberay#4272", "a bad image is retried for ever"),
        (11, "ray#49119", "SUCCEEDED without finishing"),
        (12, "RLinf#1469", "half a checkpoint is chosen"),
        (13, "SkyRL pointer", "an empty or far-behind pointer crash-loops"),
        (14, "SkyRL restart", "a silent restart from 0"),
        (15, "marin#9209", "a checkpoint save stalls while the workers live"),
        (16, "vllm#34186", "an adapter is silently ignored, rejected or empty"),
        (17, "IDP#989", "the same start event twice; a stale duplicate overwrites success"),
        (18, "IDP#755", "a callback is lost: a silent hang"),
        (19, "load-testing#335", "an execution reaches 25,000 events"),
        (20, "eksauth#2", "401 after 15 minutes in a warm process"),
        (21, "tracker#643", "a retry counter never resets"),
        (22, "SkyRL#284", "resubmitting at once finds ports or GPUs held"),
        (23, "Slack limits", "text over 3,000 or a header over 150 characters is refused"),
        (24, "michelangelo#1450", "failed clusters pile up"),
        (25, "HyperPod events", "one replacement, several events; healthy and unrelated ones too"),
    )
)
BY_NUMBER = {one.number: one for one in TABLE}

RIGHT: dict[int, list[str]] = {one.number: [] for one in TABLE}
TWINS: dict[int, list[str]] = {one.number: [] for one in TABLE}
"""Number -> names of its tests: the right behaviour, and what would follow if that were overdone."""


def comes_out_right(number: int) -> Callable[[Test], Test]:
    """The test shows the right behaviour for the incident; its id is the row's."""
    return _about(number, RIGHT)


def must_not(number: int) -> Callable[[Test], Test]:
    """The test fails where the right behaviour for the incident is overdone; its id is the row's."""
    return _about(number, TWINS)


def _about(number: int, ledger: dict[int, list[str]]) -> Callable[[Test], Test]:
    incident = BY_NUMBER[number]
    rows = pytest.mark.parametrize("incident", [incident], ids=[incident.id], indirect=True)

    def mark(test: Test) -> Test:
        if test.__name__ not in ledger[number]:
            ledger[number].append(test.__name__)
        return pytest.mark.usefixtures("incident")(rows(test))  # type: ignore[no-any-return]

    return mark
