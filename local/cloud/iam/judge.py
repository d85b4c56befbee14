"""One judgement of moto's evaluator over the policies of a role. Pure; a recorded request can be judged again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult

Document = Mapping[str, Any]
"""A policy document, as JSON."""


@dataclass(frozen=True)
class Ask:
    """One permission that a request needs: ``dynamodb:GetItem`` on an ARN. ``context`` holds its condition keys."""

    action: str
    resource: str
    context: Mapping[str, str | list[str]] = field(default_factory=dict)


def permits(policies: Iterable[Document], ask: Ask, principal: str | None = None) -> bool:
    """Whether one of the policies allows it and none denies it. ``principal`` is given for trust policies only.

    Raises UnjudgedError for a condition whose operator is not judged here.
    """
    said = [
        IAMPolicy(json.dumps(one)).is_action_permitted(ask.action, ask.resource, principal, dict(ask.context))  # type: ignore[arg-type]
        for one in policies
    ]
    return PermissionResult.PERMITTED in said and PermissionResult.DENIED not in said
