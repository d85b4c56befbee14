"""Who may steer a run: its owner, the operators of the deployment, and whoever may call the API where nobody owns it."""

from __future__ import annotations

import re
from collections.abc import Sequence

ARN = "arn:"


def may_steer(owner: str, caller: str, operators: Sequence[str]) -> bool:
    """``owner`` is as the run's record has it. One that is no identity (a run that came as an event or a file) belongs to the
    whole account. ``operators`` are patterns of ARNs."""
    if caller == owner or not owner.startswith(ARN):
        return True
    return any(matches(pattern, caller) for pattern in operators)


def matches(pattern: str, arn: str) -> bool:
    """As ArnLike of IAM: ``*`` and ``?`` stand for anything but a colon. An assumed role has the form
    ``arn:aws:sts::<account>:assumed-role/<role>/<session>``."""
    parts = [{"*": "[^:]*", "?": "[^:]"}.get(char, re.escape(char)) for char in pattern]
    return re.fullmatch("".join(parts), arn) is not None


def patterns(text: str) -> tuple[str, ...]:
    """Of a list that commas separate."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
