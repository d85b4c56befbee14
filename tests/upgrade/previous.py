"""The release before this code, as ``RELEASES`` names it: its files out of this clone's history, and what runs its functions."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from local.config import REPOSITORY

RELEASES = REPOSITORY / "RELEASES"
PARTS = ("functions", "training_job", "statemachine", "template.yaml", "local/requirements-lambda.txt")
LOCKS = ("functions/requirements.txt", "local/requirements-lambda.txt")
SECONDS = 60

NEWER_WORDS: dict[str, frozenset[str]] = {}
"""Document -> words that this code writes into it and the release before cannot read. After a way back a run that has met one
stands still until the next upgrade: whoever adds a word writes it here, and into docs/upgrading.md."""


class NoHistory(Exception):
    """This clone has no commits that old: nothing can be said about the release before."""


class NoRelease(AssertionError):
    """The whole history is here, and the commit is not in it: the line in ``RELEASES`` is wrong."""


@dataclass(frozen=True)
class Release:
    """``root`` holds its functions, job, state machines and template."""

    version: str
    commit: str
    root: Path

    @property
    def template(self) -> Path:
        return self.root / "template.yaml"

    @property
    def image(self) -> str:
        """Stands for the image that was built with it."""
        return f"123456789012.dkr.ecr.us-east-1.amazonaws.com/nightshift@sha256:{_digest(self.commit)}"

    def machine(self, name: str) -> dict[str, Any]:
        """A state machine's definition."""
        found: dict[str, Any] = json.loads((self.root / f"statemachine/{name}.asl.json").read_text())
        return found

    @cached_property
    def python(self) -> Path:
        """An interpreter with what its functions require: the functions' own environment while the pins are the same."""
        if all(pins(self.root / one) == pins(REPOSITORY / one) for one in LOCKS):
            return REPOSITORY / ".venv-functions/bin/python"
        folder = REPOSITORY / ".venv-previous"
        stamp = folder / f".ready-{_digest(*((self.root / one).read_text() for one in LOCKS))[:12]}"
        if not stamp.exists():
            argv = ["sh", ".ci/environment.sh", str(folder), "3.12 3.13 3.11", *(str(self.root / one) for one in LOCKS)]
            subprocess.run(argv, cwd=REPOSITORY, check=True, timeout=600)
            stamp.touch()
        return folder / "bin/python"

    def run(self, program: Path, document: Any) -> Any:
        """What a program of the tests says, as JSON, when it runs with this release's code in place of ours."""
        return answer(self.python, self.root / "functions", program, document)


def answer(python: Path, code: Path, program: Path, document: Any) -> Any:
    """Standard output of a program, as JSON; ``code`` is all that it can import beside the interpreter's packages."""
    done = subprocess.run(
        [str(python), "-P", str(program)],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(code), "AWS_DEFAULT_REGION": "us-east-1"},
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


def named() -> tuple[str, str]:
    """(version, commit) of ``RELEASES``' only line."""
    [line] = [one for one in RELEASES.read_text().splitlines() if one and not one.startswith("#")]
    version, commit = line.split()
    assert re.fullmatch(r"[0-9a-f]{40}", commit), f"RELEASES must name a whole commit, not {commit}"
    return version, commit


def export(folder: Path, repository: Path = REPOSITORY) -> Release:
    """Its files, written to ``folder``. Raises NoHistory for a shallow clone or none, and NoRelease for a wrong line."""
    version, commit = named()
    if _git(repository, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
        shallow = _git(repository, "rev-parse", "--is-shallow-repository").stdout.strip()
        if shallow != b"false":
            what = "this clone is shallow" if shallow == b"true" else "this is no git clone"
            raise NoHistory(f"{what}, and the release before ({version}, {commit[:12]}) is not in it")
        raise NoRelease(f"RELEASES names commit {commit}, which is not in this clone although its history is whole")
    packed = _git(repository, "archive", commit, "--", *PARTS)
    assert packed.returncode == 0, packed.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Release(version, commit, folder)


def pins(path: Path) -> set[str]:
    """``name==version`` of each package that a requirements file names, whatever else stands beside it."""
    return {found.lower().replace("_", "-") for found in re.findall(r"(?m)^[\w.-]+==[\w.+-]+", path.read_text())}


def _git(repository: Path, *argv: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(repository), *argv]
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, b"", b"git is not installed")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
