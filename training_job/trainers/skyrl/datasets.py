"""The task's items as files that SkyRL reads: JSON lines on the shared mount, written once for all attempts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from nightshift.contract import EvalSet, SharedPaths
from training_job.files import write_atomically
from training_job.plug import Items
from training_job.trainers.skyrl.config import ENVIRONMENT_ID

ITEM: Final = "nightshift_item"
"""Column of a row that names its item."""

PLACEHOLDER: Final = [{"role": "user", "content": "."}]
"""SkyRL wants a prompt in every row; an environment whose ``init`` makes the first message does not look at it."""


def row_of(items: Items, number: int, source: str) -> dict[str, Any]:
    """A row in SkyRL's dataset format."""
    row = dict(items.row(number))
    return {
        "prompt": row.pop("prompt", PLACEHOLDER),
        "env_class": ENVIRONMENT_ID,
        **{name: value for name, value in row.items() if name not in ("env_class", "data_source")},
        "data_source": source,
        ITEM: items.name(number),
    }


def write_rows(paths: SharedPaths, items: Items, source: str) -> Path:
    """``data/<source>-<digest>.jsonl``: the same items give the same file, and a later attempt finds it there."""
    lines = (json.dumps(row_of(items, number, source), sort_keys=True) for number in range(len(items)))
    content = "".join(f"{line}\n" for line in lines).encode()
    path = paths.data / f"{source}-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    if not path.is_file() or path.stat().st_size != len(content):
        write_atomically(path, content)
    return path


def source_of(which: EvalSet | None) -> str:
    """The data source's name of an eval set, or of the training set: SkyRL names its dumps after it."""
    return "train" if which is None else str(which)
