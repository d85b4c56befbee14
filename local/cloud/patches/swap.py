"""The one way in which something of moto is replaced."""

from __future__ import annotations

from typing import Any


def swap(owner: Any, name: str, replacement: Any) -> Any:
    """Put ``replacement`` in the place of a function, method or value of moto; gives what was there.

    Raises AttributeError where moto has no such thing (any more).
    """
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return original
