"""All checks together, printed as lines or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nightshift.contract import ExitCode, RunSpec
from nightshift.contract.spec import Training
from training_job.doctor import cloud, machine, software, storage
from training_job.doctor.finding import Check, Finding, Place, Verdict, as_json, carry_out, exit_code
from training_job.errors import BadConfiguration
from training_job.plan import read_spec_file

BUILD: Final = ("python", "packages", "jobs", "visgym", "user")
"""What can be known while an image is built."""


@dataclass(frozen=True)
class Wishes:
    """What the doctor is asked about. ``checkpoint_gb`` is assumed where no checkpoint of the run is there yet."""

    bucket: str | None = None
    spec: RunSpec | None = None
    shared: Path | None = None
    gpus: int | None = None
    checkpoint_gb: float = storage.ASSUMED_CHECKPOINT / storage.GB
    only: Sequence[str] = ()


def checks(wishes: Wishes, place: Place) -> list[Check]:
    """In the order in which a person would ask: software, machine, storage, AWS."""
    mount, bucket = storage.shared_mount(wishes.shared), wishes.bucket
    keep = (wishes.spec.training if wishes.spec else Training()).max_ckpts_to_keep
    run_id = wishes.spec.run_id if wishes.spec else None
    assumed = int(wishes.checkpoint_gb * storage.GB)
    every = [
        Check("python", 5, lambda: software.python_version(place)),
        Check("packages", 20, lambda: software.packages(place)),
        Check("jobs", 20, lambda: software.job_server(place)),
        Check("visgym", 60, lambda: software.visgym(place)),
        Check("user", 5, lambda: software.user(place)),
        Check("gpus", 30, lambda: machine.gpus(wishes.gpus)),
        Check("nccl", machine.TALK_SECONDS + 60, machine.nccl),
        Check("shared", 15, lambda: storage.mounted(mount, place)),
        Check("write", 30, lambda: storage.writable(mount)),
        Check("space", 30, lambda: storage.space(mount, keep, run_id, assumed)),
        Check("credentials", 30, lambda: cloud.identity(place)),
        Check("clock", 30, lambda: cloud.clock(bucket)),
        Check("s3", 45, lambda: cloud.bucket_use(bucket)),
    ]
    unknown = set(wishes.only) - {one.name for one in every}
    if unknown:
        raise BadConfiguration("--only", f"no such check: {', '.join(sorted(unknown))}")
    return [one for one in every if not wishes.only or one.name in wishes.only]


def examine(wishes: Wishes, place: Place) -> list[Finding]:
    """Every finding, in order. One check at a time: what one measures must not be another's load."""
    return [found for check in checks(wishes, place) for found in carry_out(check)]


def doctor(
    wishes: Wishes, spec: Path | None, json_wanted: bool, place: Place | None = None, say: Callable[[str], None] = print
) -> int:
    """Print the findings; 0, 65 or 75."""
    try:
        if spec is not None:
            wishes = replace(wishes, spec=read_spec_file(spec))
        findings = examine(wishes, place or Place.here())
    except (OSError, ValueError, BadConfiguration) as error:
        say(f"NO  {error}")
        return int(ExitCode.BAD_DATA)
    if json_wanted:
        say(as_json(findings))
        return int(exit_code(findings))
    width = max((len(one.check) for one in findings), default=0) + 2
    for one in findings:
        say(one.line(width))
    wrong = sum(one.verdict is Verdict.NO for one in findings)
    say(f"\n{wrong} of {len(findings)} speak against a run here" if wrong else "\nnothing speaks against a run here")
    return int(exit_code(findings))
