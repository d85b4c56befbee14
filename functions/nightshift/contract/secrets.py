"""Secrets in a run spec: by name only. The job reads them by its own role; nobody else ever sees a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, StringConstraints

from nightshift.contract.redaction import is_secret, without_secrets

FORBIDDEN = (
    r"(AWS|RAY|LD|DYLD|NIGHTSHIFT|NCCL|CUDA|NVIDIA|VLLM|SKYRL|TORCH|OMP|MALLOC|KUBERNETES|GIT|BASH|HF_HUB)_.*"
    r"|PYTHON.*|PATH|HOME|USER|SHELL|ENV|IFS|TMPDIR|HF_HOME|HF_ENDPOINT|MLFLOW_TRACKING_URI|WANDB_BASE_URL"
    r"|(HTTPS?|NO|ALL)_PROXY|(SSL|CURL|REQUESTS)_.*"
)
"""Names that decide what is run, where it connects to, or what other parts of the job rely on."""


def _may_be_set(name: str) -> str:
    if re.fullmatch(FORBIDDEN, name):
        raise ValueError(f"{name} is not to be set by a secret: it decides what is run or where it connects to")
    return name


SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,99}$"), AfterValidator(_may_be_set)]
"""An environment variable of the job's driver process."""

SecretId = Annotated[
    str,
    StringConstraints(
        pattern=r"^(arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:)?[A-Za-z0-9/_+=.@-]{1,512}(#[\w.-]{1,100})?$",
        max_length=800,
    ),
]
"""Name or ARN of a secret in Secrets Manager; with ``#key`` one text of a JSON secret."""

_NAMED_LIKE_ONE = re.compile(r"(?i)(password|passwd|api_?key|access_?key|secret_?key|auth_?token|access_?token)$")
_BARE_KEY = re.compile(r"[0-9a-f]{32,128}|[A-Za-z0-9+=]{40,}")
"""What API keys without a prefix of their own look like (W&B's are 40 hexadecimal digits): no name that a person gives."""

_MAX_NODES = 20_000
_WHY = "name a secret of Secrets Manager under secrets instead: specs are stored and shown"


def secret_problems(raw: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """(field, problem) pairs for everything in a spec, as it was sent, that looks like a secret's value. Values are never
    repeated. Bounded: what is larger than any spec is not looked at further."""
    found: list[tuple[str, str]] = []
    for path, name, value in _texts(raw):
        under_secrets = path.startswith("secrets.")
        if is_secret(value) or (under_secrets and _BARE_KEY.fullmatch(value.rpartition("#")[0] or value)):
            found.append((without_secrets(path), f"this looks like a secret's value; {_WHY}"))
        elif not under_secrets and len(value) >= 8 and _NAMED_LIKE_ONE.search(name):
            found.append((without_secrets(path), f"it is named like a secret; {_WHY}"))
    return found[:50]


def _texts(raw: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(dotted path, last name of it, text) of every text in a document."""
    todo: list[tuple[str, str, Any]] = [("", "", raw)]
    for _ in range(_MAX_NODES):
        if not todo:
            return
        path, name, value = todo.pop()
        if isinstance(value, str):
            yield path, name, value
        elif isinstance(value, Mapping):
            todo += [(f"{path}.{key}" if path else str(key), str(key), one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            todo += [(f"{path}.{number}", name, one) for number, one in enumerate(value)]
