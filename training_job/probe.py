"""Before step 0: may the attempt leave what it will make, and is there room for it? Each refusal is one line with its cause.

A run that finds out at its first checkpoint, or when it uploads its first export, has cost its nodes for hours by then.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nightshift.contract import EvalSet, RunKeys, SharedPaths
from nightshift.contract.layout import SHARED_ENV
from training_job.checkpoints import room_needed, sizes_on_disk
from training_job.errors import BadConfiguration, StorageFull, StorageUnreachable
from training_job.files import keeps
from training_job.job import Job
from training_job.store import ObjectStore

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})
_BYTES: Final = 1 << 16
_MAX_HEADER: Final = 100_000_000


def probe(
    store: ObjectStore, bucket: str, run_id: str, attempt: int, paths: SharedPaths, say: Callable[[str], None]
) -> None:
    """Try what an attempt will do: write below its prefix in S3, and write, read and remove a file on the shared mount.

    Raises BadConfiguration where it may not, for that only a person changes, and else what the storage's own error means.
    Leaves nothing behind, and clears away what uploads of this run's dead attempts have left unfinished.
    """
    _shared(paths, attempt)
    _s3(store, bucket, run_id, attempt)
    _clear(store, run_id, say)


def _shared(paths: SharedPaths, attempt: int) -> None:
    mount, file = paths.mount, paths.root / f".probe-a{attempt}"
    if not mount.is_dir():
        raise StorageUnreachable(
            f"the shared mount {mount} is not there: mount the filesystem on every pod, or name another folder by {SHARED_ENV}"
        )
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        same = keeps(file, os.urandom(_BYTES))
    except OSError as error:
        if error.errno in _FORBIDDEN:
            raise BadConfiguration(
                "shared mount",
                f"{paths.root} may not be written to by uid {os.geteuid()} ({error.strerror}): change its owner or the "
                "image's user",
            ) from error
        raise
    if not same:
        raise StorageUnreachable(f"{paths.root}: other bytes were read back than were written")


def _s3(store: ObjectStore, bucket: str, run_id: str, attempt: int) -> None:
    """Each folder by itself: a role may be allowed one and not the other."""
    keys = RunKeys(run_id)
    for key in (
        f"{keys.attempt(attempt)}probe",
        f"{keys.export(attempt, 0)}probe",
        f"{keys.eval_rows(attempt, 0, EvalSet.FIXED)}.probe",
    ):
        try:
            store.may_write(key)
        except Exception as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code")
            if code in ("AccessDenied", "403", "AllAccessDisabled", "NoSuchBucket", "InvalidBucketName"):
                what = "does not exist" if code == "NoSuchBucket" else f"may not be written ({code})"
                raise BadConfiguration(
                    "bucket",
                    f"s3://{bucket}/{key.rsplit('/', 1)[0]}/ {what}: allow the job's role s3:PutObject there (JobRole in "
                    "template.yaml)",
                ) from error
            raise


def _clear(store: ObjectStore, run_id: str, say: Callable[[str], None]) -> None:
    """Parts of uploads that nobody will finish. Only good manners: a rule of the bucket drops them after days."""
    try:
        dropped = store.abort_unfinished(RunKeys(run_id).exports)
    except Exception as error:  # noqa: BLE001 - whatever it is, the attempt can do without
        say(f"unfinished uploads of earlier attempts cannot be looked for: {type(error).__name__}: {str(error)[:200]}")
        return
    if dropped:
        say(f"{dropped} unfinished uploads of earlier attempts were dropped")


def hold_space(job: Job, base: Path) -> None:
    """Raises BadConfiguration where the checkpoints of a run could never fit on its shared mount, and StorageFull where they
    do not fit now. One more than are kept: the new one is written before the oldest goes."""
    paths, kept = job.paths, job.spec.training.max_ckpts_to_keep + 1
    there = sizes_on_disk(paths)
    one = max(there, default=0) or checkpoint_bytes(base)
    whole, needed = one * kept, room_needed(there, one, kept - 1)
    disk = shutil.disk_usage(paths.mount)
    told = f"{kept} checkpoints of {_gb(one)} (training.max_ckpts_to_keep and one more)"
    if whole > disk.total:
        raise BadConfiguration(
            "training.max_ckpts_to_keep", f"{told} do not fit on {paths.mount}, which has {_gb(disk.total)} in all"
        )
    if needed > disk.free:
        raise StorageFull(
            f"{told} need {_gb(needed)} on {paths.mount}, where {_gb(disk.free)} are free: make room, enlarge it, or keep fewer"
        )
    job.say(f"shared mount: {told} need {_gb(needed)}, {_gb(disk.free)} are free")


def checkpoint_bytes(base: Path) -> int:
    """About what a checkpoint of this base model takes: SkyRL's model files hold every parameter in fp32, and beside that
    the adapter and its optimizer are little. Parameters are counted in the headers of its safetensors files; 0 where there
    are none."""
    return 4 * sum(_parameters(path) for path in base.glob("*.safetensors"))


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            return 0
        try:
            header = json.loads(file.read(length))
            shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return 0
    return sum(math.prod(map(int, shape)) for shape in shapes)


def _gb(amount: int) -> str:
    return f"{amount / 1e9:,.1f} GB"
