"""Where a run's weights come from that begins from another run: ``parent.json``, resolved once, when the run is admitted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from nightshift.contract.base import Document, Model, Sha256
from nightshift.contract.job import FileDigest

ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
"""What beginning from an adapter needs of it."""

MAX_ANCESTORS: Final = 20
"""Runs before the parent that are named; a longer chain goes on in the last one's own ``parent.json``."""

ShortText = Annotated[str, StringConstraints(max_length=1_100)]


class Ancestor(Model):
    """A run further back, and the step of it from which the next one began."""

    run_id: str
    step: int = Field(ge=1)


class Lineage(Document):
    """The parent of a run: which weights of which run it begins with, at its own step 0 and with an optimizer of
    its own."""

    run_id: str = Field(description="the run that begins")
    parent: str = Field(description="the run whose weights it begins with")
    asked: str = Field(description="as the spec names it: <run_id>@<step>, or @best, @final, @latest")
    step: int = Field(ge=1, description="of the parent")
    attempt: int | None = Field(None, ge=1, description="of the parent that exported it; none: it is a checkpoint")
    files: dict[str, FileDigest] = Field(
        {}, description="of the adapter that the parent exported; empty where only a checkpoint has the step"
    )
    spec_sha256: Sha256 = Field(description="of the parent's spec")
    model: ShortText = Field(description="the parent's base model, with the commit that it was resolved to")
    solved: int | None = Field(None, ge=0, description="of the parent's fixed set at that step; none: not evaluated")
    of: int | None = Field(None, ge=1)
    ancestors: tuple[Ancestor, ...] = Field((), description="the parent's own parent first")
    at: datetime

    @property
    def chain(self) -> tuple[Ancestor, ...]:
        """The parent, its parent, and so on."""
        return (Ancestor(run_id=self.parent, step=self.step), *self.ancestors)
