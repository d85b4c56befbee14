"""The image's build: what is run in which order, and what must never happen. The engine and the AWS CLI are played by
programs that write down how they are called; git and the tool itself are real."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract.spec import RunSpec
from nightshift.contract.versions import BASE_IMAGE, LOCKED, RAY, SKYRL_SHA
from tests.builders import spec_json
from tests.deploy.repository import ROOT, tool

REGISTRY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
PASSWORD = "never-in-an-argument"
PUSHED = "sha256:" + "5a" * 32
PLAYED = """#!{python}
import json, os, pathlib, sys
here, name, words = pathlib.Path(os.environ["PLAYED"]), pathlib.Path(sys.argv[0]).name, sys.argv[1:]
given = sys.stdin.read() if "--password-stdin" in words else ""
with (here / "calls").open("a") as calls:
    print(json.dumps([name, *words, given]), file=calls)
def end(code, out="", error=""):
    print(out, end=""); error and print(error, file=sys.stderr); sys.exit(code)
if (here / "refuse").exists() and (here / "refuse").read_text() in " ".join([name, *words]):
    end(255, error=(here / "why").read_text())
if words[:2] == ["ecr", "describe-repositories"] and not (here / "repository").exists():
    end(254, error="An error occurred (RepositoryNotFoundException) when calling DescribeRepositories")
if words[:2] == ["ecr", "create-repository"]:
    (here / "repository").touch()
if words[:2] == ["ecr", "describe-images"]:
    if not (here / "pushed").exists():
        end(254, error="An error occurred (ImageNotFoundException) when calling DescribeImages")
    end(0, json.dumps({{"imageDetails": [{{"imageDigest": "{pushed}"}}]}}))
if words[:2] == ["ecr", "get-login-password"]:
    end(0, "{password}")
if words[:1] == ["push"]:
    (here / "pushed").touch()
if words[:2] == ["image", "inspect"]:
    end(0, "anyscale/ray@sha256:" + "0b" * 32)
"""


class Workshop:
    """A repository of its own with the tool in it, and a PATH on which docker and aws are played."""

    def __init__(self, folder: Path) -> None:
        self.repository, self.played = folder / "repository", folder / "played"
        for name in ("container", "functions/nightshift/contract"):
            shutil.copytree(
                ROOT / name, self.repository / name, ignore=shutil.ignore_patterns("__pycache__", "image.json")
            )
        self.played.mkdir()
        for name in ("docker", "aws"):
            program = self.played / name
            program.write_text(PLAYED.format(python=sys.executable, pushed=PUSHED, password=PASSWORD))
            program.chmod(0o755)
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "all of it")
        self.sha = self.git("rev-parse", "HEAD").strip()

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.repository, capture_output=True, text=True, check=True).stdout

    def refuse(self, call: str, why: str) -> None:
        (self.played / "refuse").write_text(call)
        (self.played / "why").write_text(why)

    def build(self, *words: str, registry: str = REGISTRY) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.played}:{os.environ['PATH']}", "PLAYED": str(self.played)}
        command = [sys.executable, "container/build.py", "--registry", registry, *words]
        return subprocess.run(
            command, cwd=self.repository, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def calls(self) -> list[list[str]]:
        """Program, arguments, and last what it was given on standard input."""
        path = self.played / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def record(self) -> Any:
        path = self.repository / "container/image.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def named(calls: list[list[str]]) -> list[str]:
    """``docker build``, ``aws create-repository``: each call by its program and its verb."""
    return [f"{name} {words[1] if name == 'aws' else words[0]}" for name, *words in calls]


def test_a_commit_becomes_an_image_whose_digest_a_run_spec_takes(workshop: Workshop) -> None:
    done = workshop.build()

    assert done.returncode == 0, done.stderr
    assert named(workshop.calls) == [
        "aws describe-repositories", "aws create-repository", "aws describe-images",
        "docker pull", "docker image", "docker build", "aws get-login-password", "docker login", "docker push",
        "aws describe-images",
    ]  # fmt: skip
    create, built = workshop.calls[1], workshop.calls[5]
    assert {"scanOnPush=true", "IMMUTABLE"} <= set(create)
    assert f"BASE={BASE_IMAGE}@sha256:{'0b' * 32}" in built and f"GIT_SHA={workshop.sha}" in built
    assert f"{REGISTRY}/nightshift:{workshop.sha}" in built
    image = f"{REGISTRY}/nightshift@{PUSHED}"
    assert workshop.record["image"] == image and workshop.record["git_sha"] == workshop.sha
    assert workshop.record["versions"].items() >= {"ray": RAY, "skyrl_sha": SKYRL_SHA, **LOCKED}.items()
    assert f"image: {image}" in done.stdout
    assert RunSpec.model_validate({**spec_json(), "image": image}).image == image


def test_the_password_goes_from_aws_to_the_engine_and_nowhere_else(workshop: Workshop) -> None:
    done = workshop.build()

    [login] = [one for one in workshop.calls if one[1] == "login"]
    assert login[-1] == PASSWORD
    assert not any(PASSWORD in word for call in workshop.calls for word in call[:-1])
    assert PASSWORD not in done.stdout + done.stderr + json.dumps(workshop.record)


def test_a_repeat_builds_nothing_and_keeps_what_is_known(workshop: Workshop) -> None:
    workshop.build()
    before, record = len(workshop.calls), workshop.record

    done = workshop.build()

    assert done.returncode == 0, done.stderr
    assert named(workshop.calls[before:]) == ["aws describe-repositories", "aws describe-images"]
    assert workshop.record == record


@pytest.mark.parametrize("change", ["changed", "new"])
def test_a_tree_that_is_not_its_commit_is_refused_before_anything_is_done(workshop: Workshop, change: str) -> None:
    name = "container/Dockerfile" if change == "changed" else "functions/more.py"
    with (workshop.repository / name).open("a") as file:
        file.write("# not committed\n")

    done = workshop.build()

    assert done.returncode == 65 and "not the commit" in done.stderr and name.split("/")[-1] in done.stderr
    assert workshop.calls == [] and workshop.record is None


@pytest.mark.parametrize(
    ("call", "why", "code", "never"),
    [
        ("ecr describe-repositories", "Unable to locate credentials. You can configure ...", 65, "docker build"),
        ("docker pull", "toomanyrequests", 75, "docker build"),
        ("docker build", "no space left on device", 70, "docker push"),
        ("ecr get-login-password", "ExpiredTokenException", 65, "docker push"),
        ("docker login", "401 Unauthorized", 65, "docker push"),
        ("docker push", "net/http: TLS handshake timeout", 75, None),
    ],
)
def test_a_step_that_fails_ends_it_with_one_line_and_no_record(
    workshop: Workshop, call: str, why: str, code: int, never: str | None
) -> None:
    workshop.refuse(call, why)

    done = workshop.build()

    assert done.returncode == code
    assert done.stderr.strip().splitlines()[-1].startswith("container/build.py: ") and "Traceback" not in done.stderr
    assert never not in named(workshop.calls)
    assert workshop.record is None and PASSWORD not in done.stdout + done.stderr


def test_a_dry_run_prints_every_command_and_calls_nothing(workshop: Workshop) -> None:
    done = workshop.build("--dry-run")

    assert done.returncode == 0, done.stderr
    for part in ("create-repository", "docker pull", "docker build", "--password-stdin", "docker push"):
        assert part in done.stdout
    assert workshop.calls == [] and workshop.record is None


def test_only_an_ecr_registry_is_pushed_to(workshop: Workshop) -> None:
    done = workshop.build(registry="docker.io")

    assert done.returncode == 64 and workshop.calls == []


def test_hadolint_has_nothing_against_the_dockerfile_and_would_say_so_if_it_had(tmp_path: Path) -> None:
    hadolint = ROOT / ".venv-tools/bin/hadolint"
    assert (found := tool(hadolint, ROOT / "container/Dockerfile")).returncode == 0, found.stdout

    text = (ROOT / "container/Dockerfile").read_text()
    (tmp_path / "Dockerfile").write_text(
        text.replace("ARG BASE=anyscale/ray:", "ARG BASE=x\nFROM debian:latest\nARG X=")
    )
    assert "DL3007" in tool(hadolint, tmp_path / "Dockerfile").stdout


def test_the_context_has_what_the_dockerfile_copies_and_no_more() -> None:
    named = re.findall(r"^COPY --chown=ray (.+) \S+$", (ROOT / "container/Dockerfile").read_text(), re.MULTILINE)
    copied = {one for line in named for one in line.split()}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {one.split("/")[0] if one.startswith("functions") else one for one in let_in} == copied


def test_the_bill_of_materials_names_every_package_once_with_its_licence() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "container/packages.py"], capture_output=True, text=True, timeout=60, check=True
    )
    document = json.loads(made.stdout)

    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    rows = {one["name"].lower(): one for one in document["components"]}
    # In a process of its own: other tests put packages on this one's path.
    names = "from importlib.metadata import distributions as d; print(len({x.metadata['Name'].lower() for x in d()}))"
    counted = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, timeout=60, check=True)
    assert len(rows) == len(document["components"]) == int(counted.stdout) > 50
    assert rows["ray"]["version"] == RAY and "Apache" in json.dumps(rows["ray"]["licenses"])
    assert all(one["purl"].startswith("pkg:") and one["version"] for one in rows.values())
