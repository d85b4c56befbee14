"""What keeps a run spec the same request, readable by older images and controllers, while its model grows.

The base is the contract that the first release had. A field that came later is left out wherever it is at its default: the
request's digest stays what it was, and an older reader, which refuses what it does not know, reads the spec. Where it is set, the
older reader refuses the spec, and should.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel
from pydantic_core import to_json

if TYPE_CHECKING:
    from nightshift.contract.spec import RunSpec

LATER: Final = (
    "budgets.download_minutes", "parent", "plateau", "project", "publish", "rehearsal", "retention", "secrets",
    "task.eval.first", "task.holdout.first", "task.train.first", "tracking",
)  # fmt: skip
"""Dotted paths of every field that the base does not have. Whoever adds a field adds it here; what is here stays."""

MOVED: Final = {"tracker": "console", "project": "nightshift"}
"""Fields that the base has under ``training.skyrl`` and that are under ``tracking`` now, with their defaults there."""


def written(spec: RunSpec) -> dict[str, Any]:
    """The spec as plain JSON with all defaults of the base filled in, and none of later fields."""
    dumped = spec.model_dump(mode="json")
    for path in LATER:
        *above, name = path.split(".")
        holder: Any = spec
        place: Any = dumped
        for one in above:
            holder, place = getattr(holder, one, None), place.get(one) if isinstance(place, dict) else None
        if isinstance(holder, BaseModel) and isinstance(place, dict) and name in place:
            default = type(holder).model_fields[name].get_default(call_default_factory=True)
            if getattr(holder, name) == default:
                del place[name]
    return dumped


def spec_file(spec: RunSpec) -> bytes:
    """What lies in the bucket as the run's spec."""
    return to_json(written(spec), indent=1, inf_nan_mode="null")


def digested(spec: RunSpec) -> bytes:
    """What a request's digest is over: the base's own JSON for every request that the base could make, moved fields in their
    old place."""
    dumped = written(spec)
    tracking = dumped.pop("tracking", {})
    moved = {name: tracking.pop(name, default) for name, default in MOVED.items()}
    if any(value is not None for value in tracking.values()):
        dumped["tracking"] = tracking
    skyrl = dumped["training"]["skyrl"]
    overrides = skyrl.pop("overrides")  # the base's order
    skyrl |= {**moved, "overrides": overrides}
    return to_json(dumped, inf_nan_mode="null")


def read_moved(raw: Any) -> Any:
    """A spec as it was sent or stored -> the same with moved fields where they are now. One at its old default says nothing,
    and is dropped; one that contradicts ``tracking`` stays, and is refused there as unknown."""
    skyrl = _part(_part(raw, "training"), "skyrl")
    old = {name: skyrl[name] for name in MOVED if name in skyrl}
    tracking = raw.get("tracking", {}) if isinstance(raw, Mapping) else None
    if not old or not isinstance(tracking, Mapping):
        return raw
    told = {name: value for name, value in old.items() if value != MOVED[name]}
    clear = {name for name, value in old.items() if name not in told or tracking.get(name, value) == value}
    tracking = {**tracking, **{name: value for name, value in told.items() if name in clear}}
    kept = {name: value for name, value in skyrl.items() if name not in clear}
    moved = {**raw, "training": {**raw["training"], "skyrl": kept}}
    return moved | {"tracking": tracking} if tracking else moved


def _part(raw: Any, name: str) -> Mapping[str, Any]:
    found = raw.get(name) if isinstance(raw, Mapping) else None
    return found if isinstance(found, Mapping) else {}
