"""What a run's first attempt found under the addresses of its spec, so that every later attempt trains with the same.

``/shared/runs/<run_id>/pins.json``; a branch of the hub, a prefix in S3 or a file may be changed by others while a run lives.
"""

from __future__ import annotations

from pydantic import ValidationError

from nightshift.contract import SharedPaths
from nightshift.contract.base import Document, Model
from training_job.files import write_atomically


class Pin(Model):
    """``field`` of the spec held ``source``, which meant ``address``, and its files had the digest ``content``."""

    field: str
    source: str
    address: str
    content: str


class _PinFile(Document):
    pins: list[Pin] = []


class Pins:
    """Of one run. Attempts of a run never live at the same time, so nobody else writes."""

    def __init__(self, paths: SharedPaths) -> None:
        self._path = paths.root / "pins.json"

    def read(self, field: str, source: str) -> Pin | None:
        """What was pinned for a field that held this source."""
        return next((one for one in self._all() if (one.field, one.source) == (field, source)), None)

    def write(self, pin: Pin) -> None:
        kept = [one for one in self._all() if one.field != pin.field]
        write_atomically(self._path, _PinFile(pins=[*kept, pin]).to_json().encode())

    def every(self) -> list[Pin]:
        """All pins of the run."""
        return self._all()

    def _all(self) -> list[Pin]:
        try:
            return _PinFile.from_json(self._path.read_bytes()).pins
        except (FileNotFoundError, ValidationError):
            return []
