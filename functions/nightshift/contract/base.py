"""Base models and bounded types that every contract document is built from."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints

CONTRACT_VERSION: Final = 1
"""Written into every document; a reader refuses a number that it does not know."""

MAX_EXTERNAL_TEXT = 2_000
"""Characters kept of any text that comes from outside (exception messages, log lines, status messages)."""


def _bounded(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_EXTERNAL_TEXT:
        half = MAX_EXTERNAL_TEXT // 2 - 10
        return f"{value[:half]} [...] {value[-half:]}"
    return value


ExternalText = Annotated[str, BeforeValidator(_bounded)]
"""Text from outside: cut in the middle to ``MAX_EXTERNAL_TEXT`` characters, so that its first and last words stay."""

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
"""A DNS-1035 label of at most 40 characters: room for suffixes in names limited to 53, 63 and 80."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
GitSha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=200)]
"""``module:Name``, as in entry points."""


class Model(BaseModel):
    """Immutable, and strict about fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Document(Model):
    """A model that is stored or sent: JSON with a version."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")

    version: Literal[1] = CONTRACT_VERSION

    def to_json(self) -> str:
        """Stable JSON text: the same document gives the same bytes."""
        return self.model_dump_json(exclude_none=True, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse; raises ``pydantic.ValidationError`` for anything that is not this document. A part of it may have a newer
        field, too: it is ignored there as it is at the top."""
        return cls.model_validate_json(text, extra="ignore")
