"""What the local Lambda imports: it sees this folder alone, so the repository is put on its path first."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "functions"), str(REPOSITORY)]

handler = import_module("tests.horizon.app").handler
