"""What people get wrong: each is one clear line, with the right cause and exit code, before anything is started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nightshift.contract import Outcome, OutcomeCause, RunKeys, RunSpec
from nightshift.contract.failures import cause_of_text
from tests.job.support import BUCKET, small_spec
from training_job import run as entrypoint
from training_job.errors import CodeError, classify
from training_job.store import S3Store
from training_job.trainers.skyrl.evalrows import read_dump


@dataclass
class Ended:
    code: int
    output: str
    outcome: Outcome | None


Attempt = Callable[..., Ended]


@pytest.fixture
def attempt(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Attempt]:
    """The job's entrypoint, in this process: whatever it refuses here it refuses before it needs Ray."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("NIGHTSHIFT_SHARED", str(tmp_path / "shared"))
    before = signal.getsignal(signal.SIGTERM)

    def play(spec: RunSpec, bucket: str = BUCKET) -> Ended:
        s3.put_object(Bucket=BUCKET, Key=RunKeys(spec.run_id).spec, Body=spec.model_dump_json().encode())
        code = entrypoint.run(bucket, spec.run_id, 1, 0)
        try:
            body = s3.get_object(Bucket=BUCKET, Key=RunKeys(spec.run_id).outcome(1))["Body"].read()
        except s3.exceptions.NoSuchKey:
            body = None
        return Ended(code, capsys.readouterr().out, None if body is None else Outcome.from_json(body))

    yield play
    signal.signal(signal.SIGTERM, before)


def spec(run_id: str, **changes: Any) -> RunSpec:
    raw = small_spec(run_id).model_dump(mode="json")
    for name, value in changes.items():
        raw[name] = raw[name] | value if isinstance(value, dict) else value
    return RunSpec.model_validate(raw)


def refused(ended: Ended, cause: OutcomeCause, code: int, *told: str) -> None:
    assert ended.outcome is not None, ended.output
    assert (ended.outcome.cause, ended.outcome.exit_code, ended.code) == (cause, code, code), ended.outcome.message
    assert "\n" not in ended.outcome.message, "one line"
    for text in told:
        assert text in ended.outcome.message
    assert f"outcome: {cause} ({ended.outcome.message})" in ended.output.splitlines(), "the log ends with the same line"


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        (
            "package",
            "package://training_job/models/nothing",
            "package://training_job/models/nothing has no config.json",
        ),
        ("shared", "/shared/models/nothing", "/shared/models/nothing has no config.json"),
        ("s3", f"s3://{BUCKET}/models/nothing", f"there is nothing below s3://{BUCKET}/models/nothing"),
        ("bucket", "s3://no-such-bucket/models", "s3://no-such-bucket/models cannot be read (NoSuchBucket)"),
    ],
)
def test_a_wrong_model_path(attempt: Attempt, name: str, source: str, told: str) -> None:
    ended = attempt(spec(f"bad-model-{name}", model={"source": source}))
    refused(ended, OutcomeCause.BAD_CONFIGURATION, 65, "model.source: ", told)


def test_a_missing_shared_mount(attempt: Attempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    monkeypatch.setenv("NIGHTSHIFT_SHARED", str(nowhere))
    ended = attempt(spec("bad-mount"))
    refused(
        ended, OutcomeCause.STORAGE_UNREACHABLE, 75, f"the shared mount {nowhere} is not there: mount the filesystem"
    )
    assert not nowhere.exists(), "a folder of that name on a pod's own disk would hide what is wrong"


def test_a_bucket_without_the_right_to_write_exports(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbids(S3Store):
        def may_write(self, key: str) -> None:
            if "/exports/" in key:
                raise ClientError({"Error": {"Code": "AccessDenied"}}, "CreateMultipartUpload")
            super().may_write(key)

    monkeypatch.setattr(entrypoint, "S3Store", Forbids)
    ended = attempt(spec("bad-rights"))
    told = f"bucket: s3://{BUCKET}/runs/bad-rights/exports/a1/step-0/ may not be written (AccessDenied): allow the job's role"
    refused(ended, OutcomeCause.BAD_CONFIGURATION, 65, told, "s3:PutObject")


def test_a_bucket_that_does_not_exist_is_told_by_log_and_exit_code_alone(attempt: Attempt) -> None:
    ended = attempt(spec("bad-bucket"), bucket="no-such-bucket")
    assert (ended.code, ended.outcome) == (65, None)
    assert "outcome: bad_configuration (bucket: runs/bad-bucket/spec.json cannot be read (NoSuchBucket)" in ended.output
    ray_says = f"Job entrypoint command failed with exit code 65, last available logs:\n{ended.output}"
    assert cause_of_text(ended.output) is cause_of_text(ray_says) is OutcomeCause.BAD_CONFIGURATION


def test_eval_rows_that_cannot_be_read(attempt: Attempt) -> None:
    raw = spec("bad-rows").model_dump(mode="json")
    raw["task"]["eval"] = {"kind": "parquet", "uri": "/shared/rows.parquet"}
    ended = attempt(RunSpec.model_validate(raw))
    refused(ended, OutcomeCause.BAD_CONFIGURATION, 65, "task.eval: ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2, is not JSON"),
        ("[]", "line 2, is no object"),
        ('{"score": 1.0}', "line 2, is no eval row of SkyRL: KeyError"),
        ('{"score": "much", "env_extras": {"nightshift_item": "seed:1"}}', "line 2, is no eval row of SkyRL"),
    ],
)
def test_a_corrupt_eval_row(tmp_path: Path, line: str, told: str) -> None:
    good = '{"score": 1.0, "env_extras": {"nightshift_item": "seed:0"}, "stop_reason": "stop"}'
    path = tmp_path / "fixed.jsonl"
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(CodeError) as raised:
        read_dump(path, 1.0)
    known = classify(raised.value)
    assert (known.outcome, known.exit_code) == (OutcomeCause.CODE_ERROR, 70)
    assert str(known).startswith(f"{path}, ") and told in str(known) and "\n" not in str(known)
