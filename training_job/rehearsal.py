"""What a rehearsal's job does beyond any other's: it dies once, as a driver may, and leaves nothing on /shared."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from typing import Final

from nightshift.contract.rehearsal import KILLED_AFTER
from training_job.job import Job

_FLUSH_SECONDS: Final = 60.0


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_as_rehearsed(job: Job, saved_step: int, kill: Callable[[], None] = _killed) -> None:
    """End this process by SIGKILL where it is a rehearsal's and has just saved and verified the first step: no handler and no
    ``finally`` runs, as in the death of a node. It comes once: the next attempt resumes at that step, and never saves it.

    What was made before is in S3 by then, for it would be after any step of a usual length. Raises StorageUnreachable where
    it cannot be brought there."""
    if job.spec.rehearsal is None or saved_step != KILLED_AFTER:
        return
    job.uploader.flush(_FLUSH_SECONDS)
    job.say(f"rehearsal: step {saved_step} is saved and verified; this driver is killed now, and the next one goes on")
    job.reporter.flush(_FLUSH_SECONDS)
    kill()


def leave_nothing_behind(job: Job) -> None:
    """Remove a rehearsal's folder on /shared, checkpoints and all. Only called once everything that was made is in S3. One that
    fails keeps its folder: it may show why."""
    if job.spec.rehearsal is None:
        return
    with job.watch.measure("rehearsal: clean up"):
        shutil.rmtree(job.paths.root, ignore_errors=True)
    gone = not job.paths.root.exists()
    job.say(f"rehearsal: {job.paths.root} {'is removed' if gone else 'could not be removed as a whole'}")
