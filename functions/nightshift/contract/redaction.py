"""Secrets that programs print into their logs, taken out before anything is kept."""

from __future__ import annotations

import re

SECRETS = (
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bhf_[A-Za-z0-9]{20,}\b"),
    re.compile(r"\bxox[a-z]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk-[A-Za-z0-9_-]{20,})"),
    re.compile(r"\bwandb_v1_\w{20,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    re.compile(r"\beyJ[\w-]{10,500}\.[\w-]{10,}\.[\w-]{10,}"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{16,}"),
    re.compile(
        r"(?i)((?:secret|password|passwd|token|api[_-]?key|access[_-]?key|credentials?)"
        r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&}]{8,}"
    ),
)
"""AWS key ids, tokens of Hugging Face, Slack, GitHub, GitLab and W&B, private keys, JWTs, bearer tokens, and last what is
named like a secret. No pattern scans the same text from many starts: a log may be one line of 64,000 characters."""

HIDDEN = "[hidden]"


def is_secret(text: str) -> bool:
    """Whether the text holds something in the form of a credential, whatever it is called."""
    return any(pattern.search(text) for pattern in SECRETS[:-1])


def without_secrets(text: str) -> str:
    """The text with everything that looks like a credential replaced. Names stay, so that a person sees what was there."""
    for pattern in SECRETS:
        text = pattern.sub(lambda found: f"{found[1]}{HIDDEN}" if found.re.groups else HIDDEN, text)
    return text
