"""SkyRL asks for Python 3.12; with 3.11, pydantic refuses typing's own TypedDict. To be imported before SkyRL is."""

from __future__ import annotations

import sys
import typing

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
