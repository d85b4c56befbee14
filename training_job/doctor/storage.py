"""The shared file system: there, mounted, writable, and large enough for the checkpoints of a run."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from nightshift.contract import SharedPaths
from nightshift.contract.layout import SHARED_ENV, SHARED_MOUNT
from training_job.checkpoints import room_needed, sizes_on_disk
from training_job.doctor.finding import Finding, Place, no, not_here, ok
from training_job.files import keeps

GB: Final = 1_000_000_000
ASSUMED_CHECKPOINT: Final = 35 * GB
"""Bytes of a checkpoint of an 8B model: the whole fp32 base and the adapter with its optimizer."""

MOUNT: Final = "Mount the FSx volume there: the claim is named by SharedClaimName (docs/deploying.md)."


def mounted(shared: Path, place: Place) -> Iterator[Finding]:
    """A folder on the root file system would vanish with its pod, and no other node would see it."""
    if not shared.is_dir():
        missing = f"{shared} is {'no folder' if shared.exists() else 'not there'}"
        yield no("shared", missing, MOUNT) if place.pod else not_here("shared", f"{missing}, and this is no pod")
        return
    if shared.stat().st_dev == Path("/").stat().st_dev:
        yield no("shared", f"{shared} is on the same device as /: nothing is mounted there", MOUNT)
    else:
        yield ok("shared", f"{shared} is a file system of its own")


def writable(shared: Path) -> Iterator[Finding]:
    """A file of 1 MiB is written, forced to disk, read back and removed, in the folder in which runs have theirs."""
    if not shared.is_dir():
        yield not_here("shared write", f"{shared} is not there")
        return
    folder = shared / "runs"
    probe = folder / f".doctor-{secrets.token_hex(8)}"
    made = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        try:
            same = keeps(probe, secrets.token_bytes(1 << 20))
        finally:
            if made:  # it would belong to whoever asks, not to whom the runs are of
                folder.rmdir()
    except OSError as error:
        fix = f"Let uid {os.geteuid()} write there, or make room: chown {os.geteuid()} {folder}"
        yield no("shared write", f"{folder}: {error.strerror or error}", fix, _may_pass(error))
        return
    if same:
        yield ok("shared write", f"1 MiB written to {folder}, forced to disk and read back")
    else:
        yield no("shared write", f"other bytes were read back from {folder}", "Do not use this file system.")


def space(shared: Path, keep: int, run_id: str | None, assumed: int = ASSUMED_CHECKPOINT) -> Iterator[Finding]:
    """One checkpoint more than are kept must fit: the new one is written before the oldest goes. What the run has already
    need not fit again."""
    if not shared.is_dir():
        yield not_here("shared space", f"{shared} is not there")
        return
    there = sizes_on_disk(SharedPaths(run_id, shared)) if run_id else []
    size = max(there, default=assumed)
    needed = room_needed(there, size, keep)
    free = shutil.disk_usage(shared).free
    told = (
        f"{_gb(free)} free; {keep + 1} checkpoints of {_gb(size)} ({'this run has such' if there else 'assumed'}) "
        f"need {_gb(needed)}{' more' if there else ''}"
    )
    if free >= needed:
        yield ok("shared space", told)
    else:
        fix = "Enlarge the file system, remove old runs below runs/, or lower training.max_ckpts_to_keep."
        yield no("shared space", told, fix)


def _may_pass(error: OSError) -> bool:
    """A file system that is away may come back; one that is read-only or forbids does not by itself."""
    return error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN)


def _gb(size: int) -> str:
    return f"{size / GB:,.1f} GB"


def shared_mount(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the job would look for it."""
    return given or Path(environment.get(SHARED_ENV) or SHARED_MOUNT)
