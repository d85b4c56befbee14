"""The command, run as a person runs it: a process with files, exit codes, and an API over real HTTP."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC: dict[str, Any] = {
    "run_id": "maze-demo",
    "image": "registry/skyrl@sha256:" + "ef" * 32,
    "task": {
        "code": {"kind": "git", "sha": "4f" * 20},
        "environment": "tasks.mazes:Maze",
        "config": {"size": 9, "hint": None},
        "train": {"kind": "seeds", "start": 10_000, "stop": 20_000},
        "eval": {"kind": "seeds", "start": 0, "stop": 64},
    },
    "model": {"source": "hf://owner/model@main"},
}
VIEW: dict[str, Any] = {
    "version": 1, "run_id": "maze-demo", "state": "waiting_for_cluster", "owner": "me", "pool": "default",
    "created_at": "2026-11-30T01:02:03Z", "attempt": 2, "step": 60, "verified_step": 40, "total_steps": 160,
    "success": 0.625, "eta_seconds": 7_800, "sentence": "A node was lost.\u001b[2J\u001b]0;owned\u0007",
    "prefix": "s3://bucket/runs/maze-demo/",
    "attempts": [
        {"n": 1, "started_at": "2026-11-30T01:02:03Z", "ended_at": "2026-11-30T02:09:03Z", "end_cause": "node_lost",
         "signal": "node event", "node": "i-0a1b", "message": "gone\nfor good", "resumed_step": 0, "last_saved_step": 40,
         "gpu_hours": 6.7},
        {"n": 2, "started_at": "2026-11-30T02:10:03Z", "resumed_step": 40, "last_saved_step": 40, "gpu_hours": 0.5},
    ],
    "audit": [{"at": f"2026-11-30T02:{i:02d}:00Z", "actor": "look", "what": f"look {i}", "signal": "nap"} for i in range(20)],
}  # fmt: skip


@dataclass
class Api:
    """Answers every request with ``status`` and ``body``; a list is one answer after the other."""

    status: int = 200
    body: Any = None
    address: str = ""
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@contextlib.contextmanager
def api(status: int, body: Any) -> Iterator[Api]:
    here = Api(status, body)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            here.requests.append((self.command, self.path, dict(self.headers), sent))
            body = here.body.pop(0) if isinstance(here.body, list) else here.body
            raw = (
                body
                if isinstance(body, bytes)
                else body.encode()
                if isinstance(body, str)
                else json.dumps(body).encode()
            )
            self.send_response(here.status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """The tests read ``requests`` instead."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


CALLER = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "us-east-1"}


@dataclass
class Done:
    """What is left of a command, as of ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


def process(*arguments: str, **environment: str) -> Done:
    """The command in a process of its own, as a person runs it."""
    path = {
        "PYTHONPATH": f"{REPOSITORY / 'functions'}:{REPOSITORY}",
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
    }
    command = [sys.executable, "-m", "cli", *arguments]
    done = subprocess.run(command, env=path | CALLER | environment, capture_output=True, text=True, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def nightshift(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The same command in this process: much faster, for the many ways in which it can go wrong."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "NIGHTSHIFT_"))]:
        monkeypatch.delenv(name)
    for name, value in (CALLER | {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}).items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str, **environment: str) -> Done:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        try:
            code = int(main(arguments))
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return Done(code, *capsys.readouterr())

    return call


def written(folder: Path, spec: Any, name: str = "spec.json") -> str:
    path = folder / name
    path.write_text(spec if isinstance(spec, str) else json.dumps(spec))
    return str(path)


def test_a_valid_spec_is_accepted_as_json_and_as_yaml(tmp_path: Path, nightshift: Command) -> None:
    as_yaml = written(tmp_path, "# a comment\n" + yaml.safe_dump(SPEC), "spec.yaml")
    for done in (process("validate", written(tmp_path, SPEC)), nightshift("validate", as_yaml)):
        assert (done.returncode, done.stderr) == (0, "")
        assert "valid. Run maze-demo, 6 GPUs" in done.stdout


def test_what_is_wrong_is_named_by_field_all_at_once_and_nothing_else_is_complained_about(
    tmp_path: Path, nightshift: Command
) -> None:
    wrong = json.loads(json.dumps(SPEC))
    wrong["run_id"] = "Not_A_Label"
    wrong["task"]["code"]["sha"] = "main"
    wrong["task"]["eval"]["stop"] = 0
    wrong["training"] = {"total_stepz": 5}
    done = nightshift("validate", written(tmp_path, wrong))

    assert (done.returncode, done.stdout) == (65, "")
    named = [line.split(":")[0].strip() for line in done.stderr.splitlines()[1:]]
    assert sorted(named) == ["run_id", "task.code.sha", "task.eval.stop", "training.total_stepz"]
    assert "4 things to correct" in done.stderr


def test_batch_sizes_that_the_trainer_would_refuse_are_named(tmp_path: Path, nightshift: Command) -> None:
    done = nightshift("validate", written(tmp_path, SPEC | {"training": {"train_batch_size": 25}}))

    assert done.returncode == 65 and "training.policy_mini_batch_size: train_batch_size 25" in done.stderr


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ("{run_id: a, run_id: b}", 65, "'run_id' is given twice"),
        ("a: [1", 65, "neither YAML nor JSON"),
        ("- just\n- a list", 65, "its top must be a mapping"),
        ("!!python/object/apply:os.system ['echo owned']", 65, "neither YAML nor JSON"),
        ("x" * 300_000, 65, "larger than 256 KiB"),
        (None, 66, "cannot be read"),
    ],
)
def test_a_file_that_is_no_spec_says_why(
    tmp_path: Path, content: str | None, code: int, said: str, nightshift: Command
) -> None:
    file = str(tmp_path / "missing.yaml") if content is None else written(tmp_path, content)
    done = nightshift("validate", file)

    assert done.returncode == code and said in done.stderr
    assert "owned\n" not in done.stdout and "Traceback" not in done.stderr


def test_the_schema_accepts_the_example_and_refuses_an_unknown_field() -> None:
    done = process("schema")
    schema = json.loads(done.stdout)

    assert done.returncode == 0
    jsonschema.validate(SPEC, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(SPEC | {"surprise": 1}, schema)


def signed_correctly(to: Api) -> bool:
    """Whether the request's signature is what its secret key gives for exactly what arrived."""
    method, path, headers, body = to.requests[0]
    given = headers["Authorization"]
    names = given.split("SignedHeaders=")[1].split(",")[0].split(";")
    low = {name.lower(): value for name, value in headers.items()}
    request = AWSRequest(method, to.address + path, {name: low[name] for name in names}, body)
    request.context["timestamp"] = low["x-amz-date"]
    auth = SigV4Auth(Credentials("AKID", "hush"), "execute-api", "us-east-1")
    expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return given.endswith(f"Signature={expected}") and {"host", "x-amz-date"} <= set(names)


def test_start_sends_the_spec_as_it_was_written_signed_by_the_caller(tmp_path: Path) -> None:
    with api(201, {"version": 1, "run_id": "maze-demo", "state": "requested", "created": True}) as to:
        done = process("start", written(tmp_path, SPEC), "--api", to.address)

    assert (done.returncode, done.stdout) == (0, "maze-demo: asked for, requested\n")
    method, path, _, body = to.requests[0]
    assert (method, path) == ("POST", "/runs")
    assert json.loads(body) == {"version": 1, "spec": SPEC}
    assert signed_correctly(to)


def test_a_run_that_was_asked_for_before_is_no_error(tmp_path: Path, nightshift: Command) -> None:
    with api(200, {"version": 1, "run_id": "maze-demo", "state": "running", "created": False}) as to:
        done = nightshift("start", written(tmp_path, SPEC), NIGHTSHIFT_API=to.address + "/")

    assert (done.returncode, done.stdout) == (0, "maze-demo: asked for before, running\n")


def test_an_invalid_spec_is_never_sent(tmp_path: Path, nightshift: Command) -> None:
    with api(201, {}) as to:
        done = nightshift("start", written(tmp_path, SPEC | {"surprise": 1}), "--api", to.address)

    assert done.returncode == 65 and to.requests == []


def test_what_the_api_refuses_is_shown_by_field(tmp_path: Path, nightshift: Command) -> None:
    problem = {
        "title": "Refused", "status": 422, "detail": "1 thing to correct",
        "errors": [{"field": "target.success", "problem": "above the ceiling of 0.78\u001b[2J"}],
    }  # fmt: skip
    with api(422, problem) as to:
        done = nightshift("start", written(tmp_path, SPEC), "--api", to.address)

    assert done.returncode == 65 and "  target.success: above the ceiling of 0.78 [2J" in done.stderr


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (403, '{"message":"Forbidden"}', 77, "execute-api:Invoke"),
        (404, {"title": "Not found", "status": 404, "detail": "no run maze-demo"}, 66, "no run maze-demo"),
        (503, "<html>", 75, "answered 503"),
        (200, "<html>welcome", 70, "not one of Nightshift's API"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    status: int, body: Any, code: int, said: str, nightshift: Command
) -> None:
    with api(status, body) as to:
        done = nightshift("status", "maze-demo", "--api", to.address)

    assert done.returncode == code and said in done.stderr
    assert "Traceback" not in done.stderr


def test_status_says_where_a_run_is_what_happened_and_moves_no_cursor() -> None:
    with api(200, VIEW) as to:
        done = process("status", "maze-demo", "--api", to.address)

    assert done.returncode == 0 and to.requests[0][:2] == ("GET", "/runs/maze-demo")
    for part in (
        "maze-demo: waiting for cluster", "A node was lost.", "[###########-------------------]", "step 60 of 160",
        "saved up to step 40", "62.5% solved", "2 h 10 min left", "1. from the start: node lost, node i-0a1b",
        "noticed by node event", "gone for good", "2. from step 40: running", "look 19", "s3://bucket/runs/maze-demo/",
    ):  # fmt: skip
        assert part in done.stdout
    assert "not begun yet" not in done.stdout
    assert "look 11" not in done.stdout, "only the last lines of the trail"
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout


def test_status_of_a_run_that_is_over_promises_no_time_and_an_attempt_that_is_silent_no_step() -> None:
    silent = {"n": 3, "started_at": "2026-11-30T02:20:03Z", "last_saved_step": 40, "gpu_hours": 0.1}
    with api(
        200, VIEW | {"state": "failed", "ended_at": "2026-11-30T03:00:03Z", "attempts": [*VIEW["attempts"], silent]}
    ) as to:
        done = process("status", "maze-demo", "--api", to.address)

    assert "3. not begun yet: running" in done.stdout
    assert " left" not in done.stdout and "step 60 of 160" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "path", "body", "said"),
    [
        (["cancel", "maze-demo"], "cancel", {"mode": "after_checkpoint"}, "cancel is recorded, running for now"),
        (["cancel", "maze-demo", "--now"], "cancel", {"mode": "now"}, "cancel is recorded, running for now"),
        (["answer", "maze-demo", "--go-on"], "answer", {"go_on": True}, "answered to go on, running for now"),
        (["answer", "maze-demo", "--give-up"], "answer", {"go_on": False}, "answered to give up, running for now"),
        (["retry", "maze-demo"], "retry", {"budgets": {}}, "goes on from its checkpoints, running for now"),
        (["retry", "maze-demo", "--raise", "wall_hours=80.5", "--raise", "dollars=900", "--image", SPEC["image"]], "retry",
         {"budgets": {"wall_hours": 80.5, "dollars": 900}, "image": SPEC["image"]},
         "goes on from its checkpoints, running for now"),
    ],
)  # fmt: skip
def test_a_run_is_steered_by_one_signed_request(
    arguments: list[str], path: str, body: dict[str, Any], said: str, nightshift: Command
) -> None:
    with api(202, {"version": 1, "run_id": "maze-demo", "state": "running"}) as to:
        done = nightshift(*arguments, "--api", to.address)

    assert (done.returncode, done.stdout) == (0, f"maze-demo: {said}\n")
    assert to.requests[0][:2] == ("POST", f"/runs/maze-demo/{path}")
    assert json.loads(to.requests[0][3]) == {"version": 1} | body
    assert signed_correctly(to)


def test_what_cannot_be_cancelled_any_more_is_said(nightshift: Command) -> None:
    with api(409, {"title": "Not possible now", "status": 409, "detail": "run maze-demo: it is succeeded"}) as to:
        done = nightshift("cancel", "maze-demo", "--api", to.address)

    assert done.returncode == 65 and "it is succeeded" in done.stderr


def test_status_shows_what_a_run_asks_and_until_when(nightshift: Command) -> None:
    asking = VIEW | {"question": "Are there nodes?", "answer_until": "2026-11-30T14:00:00Z", "cancel_requested": True}
    with api(200, asking) as to:
        done = nightshift("status", "maze-demo", "--api", to.address)

    assert "asks: Are there nodes? (answer before 11-30 14:00:00 UTC)" in done.stdout
    assert "a cancel was asked for" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "said"),
    [
        (["answer", "r"], {}, 64, "--go-on"),
        (["retry", "r", "--raise", "hours=3"], {"NIGHTSHIFT_API": "http://127.0.0.1:1"}, 64, "NAME is one of"),
        (["retry", "r", "--raise", "gpu_hours=x"], {"NIGHTSHIFT_API": "http://127.0.0.1:1"}, 64, "valid number"),
        (["list", "--limit", "0"], {}, 64, "invalid _count value"),
        (["dance"], {}, 64, "invalid choice"),
        (["status"], {}, 64, "required: run"),
        (["status", "r"], {}, 78, "NIGHTSHIFT_API"),
        (["status", "r", "--api", "http://example.com"], {}, 78, "plain http"),
        (["status", "r", "--api", "ftp://x"], {}, 78, "must look like https"),
        (["status", "r", "--api", "http://127.0.0.1:1"], {}, 69, "does not answer"),
        (["status", "r", "--api", "http://127.0.0.1:1"], {"AWS_REGION": ""}, 78, "set AWS_REGION"),
    ],
)
def test_wrong_usage_and_configuration_are_told_apart(
    arguments: list[str], environment: dict[str, str], code: int, said: str, nightshift: Command
) -> None:
    done = nightshift(*arguments, **environment)

    assert done.returncode == code and said in done.stderr and done.stdout == ""


def test_the_exit_code_and_the_reason_leave_the_process(tmp_path: Path) -> None:
    done = process("validate", written(tmp_path, SPEC | {"surprise": 1}))

    assert (done.returncode, done.stdout) == (65, "") and "surprise: Extra inputs" in done.stderr


def test_without_credentials_nothing_is_sent(tmp_path: Path, nightshift: Command) -> None:
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    with api(200, VIEW) as to:
        done = nightshift("status", "maze-demo", "--api", to.address, **none)

    assert done.returncode == 77 and "no AWS credentials" in done.stderr and to.requests == []
