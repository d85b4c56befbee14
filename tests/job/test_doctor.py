"""The doctor: what is well is said to be well, each planted fault is found by its own check, and nothing is left behind."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import ExitCode, OutcomeCause
from nightshift.contract.versions import LOCKED, RAY, RAY_ENV
from tests.job.support import BUCKET, RayHead, Runs, small_spec
from training_job.__main__ import main
from training_job.doctor import cloud, machine, software, storage
from training_job.doctor.command import Wishes, checks, examine
from training_job.doctor.finding import Check, Finding, Place, Verdict, carry_out, exit_code, no, not_here, ok

DESK = Place(pod=False, image=False)
POD = Place(pod=True, image=True)
OTHER_DEVICE = Path("/dev/shm")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A folder on another device than /, as a mounted file system is."""
    if not OTHER_DEVICE.is_dir() or OTHER_DEVICE.stat().st_dev == Path("/").stat().st_dev:
        pytest.skip("no second file system on this computer")
    folder = OTHER_DEVICE / f"doctor-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    for one in sorted(folder.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    folder.rmdir()


def verdicts(findings: list[Finding]) -> dict[str, Verdict]:
    return {one.check: one.verdict for one in findings}


def the(findings: Iterator[Finding], check: str) -> Finding:
    [one] = [one for one in findings if one.check == check]
    return one


# ------------------------------------------------------------------ what is well
def test_a_sound_mount_and_bucket_have_nothing_against_them_and_keep_nothing_of_the_probe(s3: Any, mount: Path) -> None:
    wishes = Wishes(
        BUCKET, shared=mount, checkpoint_gb=0.001, only=("packages", "shared", "write", "space", "s3", "clock")
    )

    found = examine(wishes, DESK)

    assert {check for check, verdict in verdicts(found).items() if verdict is Verdict.OK} >= {
        "ray", "shared", "shared write", "shared space", "S3 write", "S3 read", "S3 delete", "clock",
    }  # fmt: skip
    assert exit_code(found) is ExitCode.OK, [one for one in found if one.verdict is Verdict.NO]
    assert list(mount.iterdir()) == []
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix=cloud.PROBES).get("KeyCount") == 0


def test_what_is_not_here_is_no_fault(tmp_path: Path) -> None:
    found = examine(Wishes(shared=tmp_path / "none", only=("gpus", "nccl", "shared", "write", "space", "s3")), DESK)

    assert exit_code(found) is ExitCode.OK
    assert verdicts(found)["shared"] is verdicts(found)["S3"] is Verdict.NOT_HERE
    assert not (tmp_path / "none").exists(), "the doctor makes no mount point"


def test_the_command_tells_everything_as_json_and_never_a_secret(
    s3: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-told")

    code = main(["doctor", "--json", "--bucket", BUCKET, "--only", "credentials,s3,python"])

    told = capsys.readouterr().out
    assert code == json.loads(told)["exit_code"] == 0
    assert {row["check"] for row in json.loads(told)["findings"]} >= {"identity", "S3 write", "python"}
    assert "arn:aws:sts::" in told and "not-to-be-told" not in told


def test_an_unknown_check_and_an_unreadable_spec_are_bad_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--only", "everything"]) == ExitCode.BAD_DATA
    assert main(["doctor", "--only", "python", "--spec", str(tmp_path / "none.yaml")]) == ExitCode.BAD_DATA
    assert capsys.readouterr().out.count("NO") == 2


# ------------------------------------------------------------------ planted faults
def test_a_folder_of_the_root_file_system_is_no_shared_mount(tmp_path: Path) -> None:
    if tmp_path.stat().st_dev != Path("/").stat().st_dev:
        pytest.skip("temporary files are on a file system of their own here")
    found = the(storage.mounted(tmp_path, POD), "shared")

    assert found.verdict is Verdict.NO and "same device as /" in found.measured and "FSx" in found.fix


def test_a_pod_without_its_mount_is_told_which_claim_is_meant(tmp_path: Path) -> None:
    found = the(storage.mounted(tmp_path / "none", POD), "shared")

    assert found.verdict is Verdict.NO and "SharedClaimName" in found.fix


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, on which nobody can make a folder")
def test_a_file_system_that_takes_no_files_is_found() -> None:
    found = the(storage.writable(Path("/proc")), "shared write")

    assert found.verdict is Verdict.NO and not found.temporary and "/proc/runs" in found.measured


def test_too_little_space_is_found_with_what_would_be_enough(mount: Path) -> None:
    spec = small_spec("doctor-space")  # keeps two checkpoints
    found = examine(Wishes(spec=spec, shared=mount, checkpoint_gb=1e8, only=("space",)), DESK)

    assert exit_code(found) is ExitCode.BAD_DATA
    assert "3 checkpoints of 100,000,000.0 GB (assumed) need 300,000,000.0 GB" in found[0].measured


def test_the_checkpoints_of_the_run_itself_count_instead_of_an_assumption(mount: Path) -> None:
    shard = mount / "runs" / "run-1" / "ckpts" / "global_step_20" / "policy" / "model.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(bytes(3_000_000))

    assert the(storage.space(mount, 2, "run-1", assumed=10**18), "shared space").verdict is Verdict.OK
    assert the(storage.space(mount, 2, "another", assumed=10**18), "shared space").verdict is Verdict.NO


def test_a_bucket_that_is_not_there_is_bad_data(s3: Any) -> None:
    found = examine(Wishes("nobody-has-this-bucket", only=("s3",)), DESK)

    assert verdicts(found) == {"S3 write": Verdict.NO}
    assert "NoSuchBucket" in found[0].measured and exit_code(found) is ExitCode.BAD_DATA


def test_a_bucket_that_does_not_answer_may_come_back(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    found = examine(Wishes(BUCKET, only=("s3",)), DESK)

    assert verdicts(found) == {"S3 write": Verdict.NO}
    assert exit_code(found) is ExitCode.TEMPORARY


@pytest.mark.parametrize(("off", "verdict"), [(600, Verdict.NO), (-600, Verdict.NO), (120, Verdict.OK)])
def test_a_clock_that_aws_would_refuse_is_found(s3: Any, off: int, verdict: Verdict) -> None:
    found = the(cloud.clock(BUCKET, lambda: datetime.now(UTC) + timedelta(seconds=off)), "clock")

    assert found.verdict is verdict
    assert ("ahead of" in found.measured) == (off > 0)


def test_keys_in_a_pod_are_a_fault_and_on_a_desk_are_none(s3: Any) -> None:
    assert the(cloud.identity(POD), "credentials").verdict is Verdict.NO
    assert the(cloud.identity(DESK), "credentials").verdict is Verdict.NOT_HERE


def test_root_is_a_fault_in_a_pod_only() -> None:
    assert [next(software.user(place, uid)).verdict for place, uid in ((POD, 0), (POD, 1000), (DESK, 0))] == [
        Verdict.NO, Verdict.OK, Verdict.NOT_HERE,
    ]  # fmt: skip


def test_an_image_with_other_versions_is_no_tested_one() -> None:
    have = {**LOCKED, "torch": "2.12.0", "vllm": None}
    found = verdicts(list(software.packages(POD, {}, have.get)))

    assert found["torch"] is found["vllm"] is found["pygame"] is Verdict.NO
    assert found["ray"] is found["peft"] is Verdict.OK


def test_gymnasium_as_everybody_has_it_is_not_visgyms() -> None:
    assert the(software.visgym(POD), "VisGym").verdict is Verdict.NO
    assert the(software.visgym(DESK), "VisGym").verdict is Verdict.NOT_HERE


@pytest.mark.parametrize(
    ("said", "here", "fits"),
    [(RAY, RAY, True), ("2.99.0", RAY, False), (RAY, None, False), (None, RAY, True), (None, None, True)],
)
def test_ray_of_the_image_and_of_the_controller_are_a_pair(said: str | None, here: str | None, fits: bool) -> None:
    problem = software.ray_problem({RAY_ENV: said} if said else {}, {"ray": here}.get)

    assert (problem is None) == fits


def test_an_attempt_in_an_image_with_another_ray_ends_before_it_begins(s3: Any, tmp_path: Path) -> None:
    spec, no_head = small_spec("doctor-ray"), RayHead("127.0.0.1:1", os.getpid())

    ended = Runs(s3, no_head, tmp_path).run(spec, **{RAY_ENV: "2.99.0"})

    assert ended.code == ExitCode.BAD_DATA
    assert ended.outcome.cause is OutcomeCause.BAD_CONFIGURATION
    assert f"the image has Ray {RAY}, the controller's client is of Ray 2.99.0" in ended.outcome.message


# ------------------------------------------------------------------ deadlines and exit codes
def test_a_check_that_hangs_is_left_and_the_next_one_is_done() -> None:
    for_ever = threading.Event()

    def hanging() -> Iterator[Finding]:
        yield ok("before", "told already")
        for_ever.wait()

    found = [
        one
        for check in (Check("hangs", 0.1, hanging), Check("next", 5, lambda: [ok("next", "")]))
        for one in carry_out(check)
    ]
    for_ever.set()

    assert verdicts(found) == {"before": Verdict.OK, "hangs": Verdict.NO, "next": Verdict.OK}
    assert exit_code(found) is ExitCode.TEMPORARY


def test_a_check_that_fails_is_a_finding_of_one_bounded_line() -> None:
    def failing() -> Iterator[Finding]:
        raise RuntimeError("x\n" * 5_000)
        yield

    [found] = carry_out(Check("fails", 5, failing))

    assert found.verdict is Verdict.NO and len(found.measured) < 500 and "\n" not in found.measured


def test_every_check_has_a_deadline() -> None:
    assert all(0 < one.seconds <= 150 for one in checks(Wishes(), DESK))


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([ok("a", ""), not_here("b", "")], ExitCode.OK),
        ([no("a", "", "", temporary=True), ok("b", "")], ExitCode.TEMPORARY),
        ([no("a", "", "", temporary=True), no("b", "", "")], ExitCode.BAD_DATA),
    ],
)
def test_the_exit_code_says_whether_waiting_may_help(findings: list[Finding], code: ExitCode) -> None:
    assert exit_code(findings) is code


# ------------------------------------------------------------------ GPUs
def smi(folder: Path, lines: str, code: int = 0) -> None:
    program = folder / machine.SMI
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_gpus_are_counted_and_broken_or_busy_ones_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(
        tmp_path,
        "0, NVIDIA RTX PRO 6000, 97887, 3, 580.95.05, 0\n1, NVIDIA RTX PRO 6000, 97887, 90000, 580.95.05, 2\n"
        "2, NVIDIA RTX PRO 6000, 97887, [N/A], 580.95.05, [N/A]",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    found = list(machine.gpus(2))

    assert [(one.check, one.verdict) for one in found] == [
        ("GPUs", Verdict.NO), ("GPU 1", Verdict.NO), ("GPU 1", Verdict.NO),
    ]  # fmt: skip
    assert "3 here, 2 wanted" in found[0].measured
    assert "2 uncorrected" in found[1].measured and "90,000 MiB" in found[2].measured
    assert the(machine.gpus(None), "GPUs").verdict is Verdict.OK


def test_a_driver_that_does_not_answer_is_a_fault_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, "Failed to initialize NVML: Driver/library version mismatch", code=18)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    found = the(machine.gpus(None), "GPUs")

    assert found.verdict is Verdict.NO and "NVML" in found.measured and "Replace the node" in found.fix


def test_a_node_that_should_have_gpus_and_has_none_is_found() -> None:
    if machine.shutil.which(machine.SMI):
        pytest.skip("this computer has GPUs")
    assert the(machine.gpus(2), "GPUs").verdict is Verdict.NO


def test_two_processes_add_up_what_each_has() -> None:
    found = machine.all_reduce("gloo")

    assert found.verdict is Verdict.OK, found.measured
    assert "64 MiB in" in found.measured


def test_two_processes_that_do_not_come_to_an_end_are_ended() -> None:
    begun = time.monotonic()
    found = machine.all_reduce("gloo", seconds=0.2)

    assert found.verdict is Verdict.NO and "no end within 0.2 s" in found.measured
    assert time.monotonic() - begun < 60
