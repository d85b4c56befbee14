"""The weights that a run begins with where its spec names a parent: found once, checked, and kept in the run's own folder.

They are an adapter. The optimizer and the step counter are the run's own from the start; so an attempt that has a checkpoint of
this run goes on from that, and never looks at the parent again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nightshift.contract import Lineage, RunKeys, RunSpec, SharedPaths
from nightshift.contract.job import FileDigest
from nightshift.contract.lineage import ADAPTER_FILES
from nightshift.contract.reading import Unreadable
from training_job.adapters import check_export, hold_adapter
from training_job.checkpoints import adapter_of, problems_in
from training_job.errors import BadConfiguration, CheckpointUnusable
from training_job.files import write_atomically
from training_job.job import Job
from training_job.store import ObjectStore, digest_of, read

FIELD: Final = "parent"
_COMMIT: Final = re.compile(r"^(hf://[^@]+)@([0-9a-f]{40})(/.*)?$")


def read_lineage(store: ObjectStore, spec: RunSpec) -> Lineage | None:
    """What the controller has resolved the spec's parent to; None where it names none. Raises BadConfiguration."""
    if spec.parent is None:
        return None
    key = RunKeys(spec.run_id).parent
    try:
        found = read(store, Lineage, key)
    except Unreadable as problem:
        raise BadConfiguration(FIELD, f"{key} cannot be used: {problem}") from problem
    if found is None:
        raise BadConfiguration(FIELD, f"{key} does not exist: was the run admitted by a controller that knows parents?")
    if (found.run_id, found.asked) != (spec.run_id, spec.parent):
        raise BadConfiguration(FIELD, f"{key} is of run {found.run_id[:40]} and its parent {found.asked[:60]}")
    return found


def parent_adapter(job: Job, base: Path) -> Path | None:
    """The folder of the adapter that an attempt begins with, which begins at step 0; None where the run has no parent.

    Raises BadConfiguration (``parent``) where the weights are gone, are others than were promised, or do not fit."""
    lineage = read_lineage(job.store, job.spec)
    if lineage is None:
        return None
    _hold_base(lineage, job.record.model)
    folder, where = job.paths.parent, f"{lineage.parent} at step {lineage.step}"
    if not _is_kept(folder, lineage):
        content, origin = _weights(job, lineage)
        for name in ADAPTER_FILES:  # the weights come last: they say that the folder is whole
            write_atomically(folder / name, content[name])
        job.say(f"parent: the adapter of {where}, from {origin}")
    try:
        check_export(folder)
        hold_adapter(folder, job.spec.model, base)
    except (CheckpointUnusable, BadConfiguration) as error:
        raise BadConfiguration(FIELD, f"the adapter of {where} cannot be begun with: {error}") from error
    told = f", which solved {lineage.solved} of {lineage.of}" if lineage.of is not None else ""
    job.say(f"Beginning with the adapter of {where}{told}")
    return folder


def _hold_base(lineage: Lineage, address: str | None) -> None:
    """A branch of the hub may have moved on since the parent was trained."""
    theirs, ours = _COMMIT.match(lineage.model), _COMMIT.match(address or "")
    if theirs and ours and theirs.groups() != ours.groups():
        raise BadConfiguration(
            FIELD,
            f"{lineage.parent} adapts {lineage.model}, and model.source means {address} now: name the commit there",
        )


def _is_kept(folder: Path, lineage: Lineage) -> bool:
    """An attempt before this one has brought it, whole. Of a checkpoint no digest is known: what was kept stays."""
    there = {name: _bytes_or_none(folder / name) for name in ADAPTER_FILES}
    if lineage.files:
        return _are(there, lineage.files)
    return all(content is not None for content in there.values())


def _weights(job: Job, lineage: Lineage) -> tuple[dict[str, bytes], str]:
    """(file -> its bytes, where they are from). What lies on the shared mount is taken where it is what was exported, byte for
    byte; otherwise the export in S3."""
    theirs = SharedPaths(lineage.parent, job.paths.mount)
    places = [theirs.export(lineage.step), adapter_of(theirs, lineage.step)]
    if not lineage.files:
        return _of_checkpoint(theirs, lineage)
    for folder in places:
        there = {name: _bytes_or_none(folder / name) for name in ADAPTER_FILES}
        if _are(there, lineage.files):
            return {name: content for name, content in there.items() if content is not None}, str(folder)
    prefix = RunKeys(lineage.parent).export(lineage.attempt or 1, lineage.step)
    found = {name: job.store.get(f"{prefix}{name}") for name in ADAPTER_FILES}
    gone = [name for name, content in found.items() if content is None]
    if gone:
        raise BadConfiguration(
            FIELD, f"{prefix}{gone[0]} is gone: name another step of {lineage.parent}, or another parent"
        )
    if not _are(found, lineage.files):
        raise BadConfiguration(
            FIELD, f"{prefix} holds other bytes than {lineage.parent} exported (SHA-256): it is not used"
        )
    return {name: content for name, content in found.items() if content is not None}, f"s3 {prefix}"


def _of_checkpoint(theirs: SharedPaths, lineage: Lineage) -> tuple[dict[str, bytes], str]:
    folder = adapter_of(theirs, lineage.step)
    checkpoint = theirs.checkpoint(lineage.step)
    problems = problems_in(checkpoint, [folder / name for name in ADAPTER_FILES])
    if problems:
        raise BadConfiguration(
            FIELD,
            f"step {lineage.step} of {lineage.parent} was not exported, and its checkpoint is of no use any more "
            f"({'; '.join(problems)}): name a step that was exported",
        )
    return {name: (folder / name).read_bytes() for name in ADAPTER_FILES}, str(folder)


def _are(there: Mapping[str, bytes | None], wanted: Mapping[str, FileDigest]) -> bool:
    return all(content is not None and digest_of(content) == wanted.get(name) for name, content in there.items())


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
