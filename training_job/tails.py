"""The root cause behind an exception that only says that an engine or a worker is gone: in the last lines of SkyRL's infra
log and of Ray's worker logs on this node. SkyRL's actors write theirs to the shared mount from whatever node they are on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nightshift.contract import OutcomeCause
from nightshift.contract.failures import RANKS, cause_of_text
from training_job.errors import JobError, by_cause, classify

TAIL_BYTES: Final = 256 * 1024
"""Read of the end of a log."""

MAX_FILES: Final = 24
MAX_LINE: Final = 400
"""Characters of the line that a message quotes."""

VAGUE: Final = frozenset({OutcomeCause.ENGINE_FAILURE, OutcomeCause.WORKER_LOST, OutcomeCause.NCCL_FAILURE})
"""What may be the consequence of something else, which then ranks before it."""

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HARMLESS: Final = re.compile(
    r"\b(INFO|WARNING|DEBUG|SUCCESS)\b|^\[?[WI]\d{4,}|\[[WI]\d{3,} |UserWarning|FutureWarning|destroy_process_group"
)
"""Lines of lower levels (Python's, loguru's, glog's): they warn of what may come, or of what was left over at the end."""


def explained(error: BaseException, infra: Path, since: float, ray_logs: Path | None = None) -> JobError:
    """``classify``, and for a vague end the cause that the logs name, with the line that says so. ``since`` (seconds of the
    epoch) leaves out logs of earlier attempts. Never raises."""
    known = classify(error)
    if known.outcome not in VAGUE:
        return known
    try:
        found = _root_cause(known.outcome, _logs(infra, ray_logs or session_logs(), since))
    except OSError:  # a shared mount that is gone is told by what else goes wrong
        return known
    if found is None:
        return known
    cause, line, path = found
    return by_cause(cause, f"{line} ({path.name}; the job itself saw: {_short(str(known), 600)})")


def session_logs() -> Path:
    """Where Ray's processes of this node write."""
    return Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "session_latest" / "logs"


def _logs(infra: Path, ray_logs: Path, since: float) -> list[Path]:
    """SkyRL's first, then Ray's; of each the newest."""
    groups = [
        infra.glob("infra-*.log"),
        (one for kind in ("worker-*.err", "worker-*.out") for one in ray_logs.glob(kind)),
    ]
    found: list[Path] = []
    for group in groups:
        dated = [(path.stat().st_mtime, path) for path in group if path.is_file()]
        found += [path for when, path in sorted(dated, reverse=True) if when >= since][: MAX_FILES // 2]
    return found


def _root_cause(known: OutcomeCause, logs: list[Path]) -> tuple[OutcomeCause, str, Path] | None:
    """The cause nearest to the root among all last lines, where it is nearer than what is known; of equals the first said."""
    found: tuple[OutcomeCause, str, Path] | None = None
    rank = RANKS[known]
    for path in logs:
        for line in _last_lines(path):
            cause = cause_of_text(line)
            if cause is not None and RANKS[cause] < rank:
                found, rank = (cause, _short(line, MAX_LINE), path), RANKS[cause]
    return found


def _last_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        text = file.read(TAIL_BYTES).decode(errors="replace")
    for line in _ANSI.sub("", text).splitlines():
        if not _HARMLESS.search(line):
            yield line.strip()


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 6]} [...]"
