"""``python -m training_job run``: one attempt, from spec.json to outcome.json."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

from nightshift.contract import Control, ExitCode, Outcome, OutcomeCause, Phase, Progress, RunKeys, RunSpec, SharedPaths
from nightshift.contract.layout import SHARED_ENV, SHARED_MOUNT
from nightshift.contract.reading import Unreadable
from nightshift.contract.smaller import FIELD, with_smaller_values
from nightshift.contract.spec import Trainer
from nightshift.contract.tracking import tracking_problems
from training_job.clock import Stopwatch, process_age
from training_job.doctor.software import hold_ray_version
from training_job.errors import BadConfiguration, Terminated
from training_job.job import Ended, Job, Record, first_progress, outcome_of
from training_job.probe import probe
from training_job.progress import ProgressReporter, wants_stop
from training_job.rehearsal import leave_nothing_behind
from training_job.secrets import Secrets, keep_out_of_logs, read_secrets
from training_job.store import ObjectStore, S3Store, Uploader, read, reading_s3
from training_job.tails import explained
from training_job.trackers import open_tracker, silent

_FLUSH_SECONDS: Final = 60.0
_HURRY_SECONDS: Final = 1.5
"""Ray kills a stopped job 3 s after SIGTERM."""
_TRACKER_SECONDS: Final = 30.0
"""What a tracker may still take at the end of an attempt."""


def shared_paths(run_id: str) -> SharedPaths:
    """The run's folders on the shared mount that the environment names."""
    return SharedPaths(run_id, Path(os.environ.get(SHARED_ENV, SHARED_MOUNT)))


def read_spec(store: ObjectStore, run_id: str) -> RunSpec:
    """spec.json of the run. Raises BadConfiguration that names the object and its first wrong fields."""
    key = RunKeys(run_id).spec
    try:
        with reading_s3("bucket", key):
            spec = read(store, RunSpec, key)
    except Unreadable as problem:
        raise BadConfiguration("spec", f"{key} cannot be used: {problem}") from problem
    if spec is None:
        raise BadConfiguration("run_id", f"{key} does not exist: was the run admitted?")
    if spec.run_id != run_id:
        raise BadConfiguration("run_id", f"spec.json is of run {spec.run_id}, not {run_id}")
    return spec


def spec_of_attempt(spec: RunSpec, smaller: bool, record: Record) -> RunSpec:
    """What the attempt trains with: the spec, or the spec with its smaller values after an out of memory; noted in the
    record. Raises BadConfiguration where it names none, or a tracker lacks what it needs."""
    for field, problem in tracking_problems(spec):
        raise BadConfiguration(field, problem)
    if not smaller:
        return spec
    if spec.recovery.on_out_of_memory is None:
        raise BadConfiguration(FIELD, "the attempt was asked to train with smaller values, and none are given")
    record.smaller = spec.recovery.on_out_of_memory
    say(f"smaller values after an out of memory: {record.smaller.model_dump_json(exclude_none=True)}")
    return with_smaller_values(spec)


def run(bucket: str, run_id: str, attempt: int, floor: int, smaller: bool = False) -> int:
    """Run one attempt; returns the exit code. Everything that ends it, but a killed process, ends in outcome.json.

    SIGTERM ends it within seconds; an outcome is written then only if control.json had asked for a stop: a job that is
    merely killed has no result of its own to tell.
    """
    watch, since = Stopwatch(), time.time() - process_age()
    watch.add("setup: start of the process", process_age())
    with watch.measure("setup: spec"):
        store = S3Store(bucket)
    reporter: ProgressReporter | None = None
    record, secrets, tracker = Record(), Secrets(), silent()
    on_sigterm()
    try:
        hold_ray_version()
        with watch.measure("setup: spec"):
            acknowledged = _acknowledged_before(store, RunKeys(run_id), attempt)
            spec = spec_of_attempt(read_spec(store, run_id), smaller, record)
        first = first_progress(run_id, attempt, spec.training.total_steps, floor)
        reporter = ProgressReporter(store, first, acknowledged, say)
        with watch.measure("setup: secrets"):
            secrets = read_secrets(spec)
        keep_out_of_logs(secrets)
        secrets.put_into(os.environ)
        paths = shared_paths(run_id)
        with watch.measure("setup: probe"):
            probe(store, bucket, run_id, attempt, paths, say)
        tracker = open_tracker(spec, paths, say)
        job = Job(
            spec, attempt, floor, paths, store, S3Store, Uploader(store), reporter, record, watch, say, secrets, tracker
        )
        return _finish(job, _train(job))
    except KeyboardInterrupt:  # Terminated, or the plain one that ray.get raises in its place
        return _terminated(store, reporter, record)
    except Exception as error:  # noqa: BLE001 - the job's outermost: whatever it is becomes an outcome
        known = explained(error, shared_paths(run_id).logs, since)
        tracker.close(_HURRY_SECONDS)
        unknown = first_progress(run_id, attempt, max(1, floor), floor)
        return _failed(store, reporter, record, known.outcome, secrets.hide(str(known)), unknown)


def say(line: str) -> None:
    """One line on stdout, at once: the Ray job's log is read while it runs."""
    print(line, flush=True)


def on_sigterm() -> None:
    """Make SIGTERM raise ``Terminated`` in the main thread. Called again after ray.init, which sets its own handler."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated(f"signal {number}")

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _acknowledged_before(store: ObjectStore, keys: RunKeys, attempt: int) -> int:
    """The highest control request that the attempt before has carried out: it is not carried out again."""
    if attempt == 1:
        return 0
    key = keys.progress(attempt - 1)
    try:
        before = read(store, Progress, key)
    except Unreadable as problem:
        say(f"{key} is not believed: {problem}")
        return 0
    if before is None or (before.run_id, before.attempt) == (keys.run_id, attempt - 1):
        return before.acknowledged if before is not None else 0
    say(f"{key} is not believed: it is of run {before.run_id[:40]}, attempt {before.attempt}")
    return 0


class TrainerOfJob(Protocol):
    """``step`` is where it is; ``last_examined`` the last eval's episodes, as far as it keeps them."""

    last_examined: Sequence[Any]

    @property
    def step(self) -> int: ...

    def run(self) -> Ended: ...


def _trainer(job: Job) -> TrainerOfJob:
    """Imported late: each needs what the other's image may lack."""
    match job.spec.training.trainer:
        case Trainer.LOCAL:
            from training_job.trainers.local.trainer import LocalTrainer

            return LocalTrainer(job, after_connect=on_sigterm)
        case Trainer.SKYRL:
            if find_spec("skyrl") is None:
                raise BadConfiguration(
                    "training.trainer", "this image has no SkyRL: build it from container/Dockerfile"
                )
            from training_job.trainers.skyrl.trainer import SkyRLTrainer

            return SkyRLTrainer(job, after_connect=on_sigterm)


def _train(job: Job) -> Ended:
    trainer = _trainer(job)
    try:
        ended = trainer.run()
    except Exception as error:
        say(f"Training failed at step {trainer.step} with {type(error).__name__}: {str(error)[:2000]}")
        raise
    from training_job.pictures import publish_pictures

    with job.watch.measure("pictures"):
        publish_pictures(job, trainer.last_examined)
    return ended


def _finish(job: Job, ended: Ended) -> int:
    """Everything is in S3 before outcome.json is: its arrival is a signal."""
    with job.watch.measure("tracker"):
        job.tracker.close(_TRACKER_SECONDS)
    with job.watch.measure("last uploads"):
        job.uploader.flush(_FLUSH_SECONDS)
        job.reporter.report(phase=Phase.DONE, eta_seconds=0.0)
        job.reporter.close(_FLUSH_SECONDS)
    leave_nothing_behind(job)
    code = _write_outcome(job.store, outcome_of(job.reporter.current, job.record, ended.cause, ended.message))
    say("Seconds:\n" + "\n".join(job.watch.lines()))
    return code


def _failed(
    store: ObjectStore,
    reporter: ProgressReporter | None,
    record: Record,
    cause: OutcomeCause,
    message: str,
    unknown: Progress,
) -> int:
    if reporter is not None:
        reporter.close(_HURRY_SECONDS)
    current = reporter.current if reporter is not None else unknown
    return _write_outcome(store, outcome_of(current, record, cause, message))


def _terminated(store: ObjectStore, reporter: ProgressReporter | None, record: Record) -> int:
    if reporter is None:
        return int(ExitCode.TEMPORARY)
    asked = reporter.pending_control() or _read_control(reporter, _HURRY_SECONDS)
    if wants_stop(asked):
        message = f"stopped by SIGTERM at step {reporter.current.step}, after a request to stop"
        return _write_outcome(store, outcome_of(reporter.current, record, OutcomeCause.STOPPED_ON_REQUEST, message))
    say("stopped by SIGTERM, which nobody had asked this job for: it writes no outcome")
    reporter.close(_HURRY_SECONDS)
    return int(ExitCode.TEMPORARY)


def _read_control(reporter: ProgressReporter, seconds: float) -> Control | None:
    """A fresh look at control.json, given up after ``seconds``."""
    found: list[Control | None] = []
    thread = threading.Thread(target=lambda: found.append(reporter.read_control_now()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _write_outcome(store: ObjectStore, outcome: Outcome) -> int:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the last act, and a short one: it is not broken off
    say(f"outcome: {outcome.cause} ({outcome.message})")
    try:
        store.put(RunKeys(outcome.run_id).outcome(outcome.attempt), outcome.to_json().encode())
    except Exception as error:  # noqa: BLE001 - the last act: only log and exit code can still tell
        print(f"outcome.json could not be written: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return outcome.exit_code
