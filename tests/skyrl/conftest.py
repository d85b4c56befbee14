"""Contract tests against the real SkyRL package, in an environment of its own: ``make test-skyrl``."""

from __future__ import annotations

import os
import sys
import typing
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("skyrl") else ["*"]

if not collect_ignore_glob:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.version_info < (3, 12):
        # SkyRL asks for Python 3.12; with 3.11, pydantic refuses typing's own TypedDict.
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
