"""Secrets that programs print into their logs, taken out before anything is kept."""

from __future__ import annotations

import re

SECRETS = (
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bhf_[A-Za-z0-9]{20,}\b"),
    re.compile(r"\bxox[a-z]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{16,}"),
    re.compile(
        r"(?i)(?<![A-Za-z])([\w-]*(?:secret|password|passwd|token|api[_-]?key|access[_-]?key|credentials?)"
        r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&}]{8,}"
    ),
)
"""AWS key ids, Hugging Face and Slack tokens, JWTs, bearer tokens, and values that are named like a secret."""

HIDDEN = "[hidden]"


def without_secrets(text: str) -> str:
    """The text with everything that looks like a credential replaced. Names stay, so that a person sees what was there."""
    for pattern in SECRETS:
        text = pattern.sub(lambda found: f"{found[1]}{HIDDEN}" if found.re.groups else HIDDEN, text)
    return text
