"""The run's secrets: read from Secrets Manager by the job's own role, kept in this process, and in no word that it says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from nightshift.contract import RunSpec
from nightshift.contract.redaction import HIDDEN, without_secrets
from training_job.errors import BadConfiguration, StorageUnreachable

_SHORTEST: Final = 6
"""Characters of the shortest value that is looked for in texts: a shorter one would be found everywhere."""

_REFUSALS: Final = {
    "ResourceNotFoundException": "there is no such secret in this account and region: check its name",
    "AccessDeniedException": (
        "the job's role may not read it: allow secretsmanager:GetSecretValue on it, and kms:Decrypt on its key if that is "
        "one of your own"
    ),
    "DecryptionFailure": "its key cannot be used: allow kms:Decrypt on it to the job's role",
    "InvalidRequestException": "it cannot be read now: is it marked for deletion?",
    "InvalidParameterException": "Secrets Manager takes this for no name of a secret",
}


class Secrets:
    """Values by their names. Nothing of this class prints them."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def put_into(self, environment: dict[str, str] | os._Environ[str]) -> None:
        """Only ever this process's own: Ray's workers do not get them."""
        environment.update(self._values)

    @contextmanager
    def taken_out_of(self, environment: dict[str, str] | os._Environ[str]) -> Iterator[None]:
        """Without them for a while: SkyRL copies some variables into Ray's runtime environment, which the dashboard shows."""
        there = {name: environment.pop(name) for name in self._values if name in environment}
        try:
            yield
        finally:
            environment.update(there)

    def hide(self, text: str) -> str:
        """The text without the values, and without whatever else looks like a secret."""
        return without_secrets(self.hide_values(text))

    def hide_values(self, text: str) -> str:
        """The text without the values; all else stays as it is."""
        for value in sorted(self._values.values(), key=len, reverse=True):
            if len(value) >= _SHORTEST and value in text:
                text = text.replace(value, HIDDEN)
        return text


def read_secrets(spec: RunSpec, client_of: Callable[[str | None], Any] | None = None) -> Secrets:
    """All of ``spec.secrets``. ``client_of`` makes a client of Secrets Manager for a region (None: the job's own).

    Raises BadConfiguration by field where one is missing, may not be read or is not what the spec says, and
    StorageUnreachable where Secrets Manager does not answer.
    """
    if not spec.secrets:
        return Secrets()
    client_of = client_of or _client
    return Secrets({name: _value(f"secrets.{name}", wanted, client_of) for name, wanted in spec.secrets.items()})


def _client(region: str | None) -> Any:
    import boto3
    from botocore.config import Config

    retries: Any = {"mode": "standard", "total_max_attempts": 5}
    config = Config(connect_timeout=5, read_timeout=10, retries=retries)
    return boto3.client("secretsmanager", region_name=region, config=config)


def _value(field: str, wanted: str, client_of: Callable[[str | None], Any]) -> str:
    from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

    which, _, key = wanted.partition("#")
    region = which.split(":")[3] if which.startswith("arn:") else None
    try:
        answer = client_of(region).get_secret_value(SecretId=which)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code not in _REFUSALS:
            raise
        raise BadConfiguration(field, f"{which}: {_REFUSALS[code]}") from None
    except (EndpointConnectionError, HTTPClientError) as error:
        raise StorageUnreachable(f"Secrets Manager does not answer for {field}: {type(error).__name__}") from None
    text = answer.get("SecretString")
    if not isinstance(text, str):
        raise BadConfiguration(field, f"{which} holds bytes, where a text is needed")
    value = (_selected(field, which, text, key) if key else text).strip()
    if not value or "\0" in value:
        raise BadConfiguration(field, f"{wanted} is empty or no text that an environment variable can hold")
    return value


def _selected(field: str, which: str, text: str, key: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        document = None  # the error would quote the secret
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        raise BadConfiguration(field, f"{which} is no JSON object with a text under {key!r}")
    return value


class _Quiet:
    """A text stream that leaves the secrets out of what is written to it."""

    def __init__(self, stream: Any, secrets: Secrets) -> None:
        self._stream, self._secrets = stream, secrets

    def write(self, text: str) -> int:
        self._stream.write(self._secrets.hide_values(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_out_of_logs(secrets: Secrets) -> None:
    """From here on nothing that this process's Python code prints holds a value, whoever prints it."""
    if not secrets:
        return
    streams: Any = sys
    streams.stdout, streams.stderr = _Quiet(sys.stdout, secrets), _Quiet(sys.stderr, secrets)
