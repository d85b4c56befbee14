"""Builds the image, pushes it to ECR and records its digest: ``python3 container/build.py --help``.

Needs git, a container engine (docker, finch or podman) and the AWS CLI with credentials; nothing of this repository. A
commit is built once: its tag is its SHA, tags of the repository are immutable, and a repeat finds the image and records
it again.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = "container/image.json"
DOCKERFILE = "container/Dockerfile"
VERSIONS = "functions/nightshift/contract/versions.py"
ENGINES = ("docker", "finch", "podman")
REGISTRY = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z]{2}[a-z0-9-]+-\d)\.amazonaws\.com(\.cn)?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MANY_HOURS = 6 * 3_600
USAGE, BAD_DATA, SOFTWARE, TEMPORARY = 64, 65, 70, 75


class Problem(Exception):
    """One line for a person; ``code`` follows sysexits."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Shell:
    """Runs commands in the repository, or only prints those that change something."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry

    def ask(self, *command: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A command that changes nothing; its exit status is the caller's to judge."""
        try:
            return subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise Problem(f"{command[0]} is not installed", BAD_DATA) from error
        except subprocess.TimeoutExpired as error:
            raise Problem(f"{shlex.join(command)}: no end within {seconds:g} s", TEMPORARY) from error

    def do(self, *command: str, code: int, seconds: float = MANY_HOURS) -> None:
        """A command that changes something; its output is the person's to read. Raises Problem with ``code``."""
        print(f"+ {shlex.join(command)}", flush=True)
        if self.dry:
            return
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            raise Problem(f"{shlex.join(command[:2])}: no end within {seconds:g} s", TEMPORARY) from error
        if done.returncode != 0:
            raise Problem(f"{shlex.join(command[:2])} ended with status {done.returncode}", code)

    def pipe(self, source: Sequence[str], sink: Sequence[str]) -> None:
        """What the first prints goes to the second and nowhere else: it is a password."""
        print(f"+ {shlex.join(source)} | {shlex.join(sink)}", flush=True)
        if self.dry:
            return
        asked = self.ask(*source)
        if asked.returncode != 0:
            raise Problem(f"{shlex.join(source[:3])}: {last(asked.stderr)}", BAD_DATA)
        done = subprocess.run(
            sink, cwd=ROOT, input=asked.stdout, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise Problem(f"{shlex.join(sink[:2])}: {last(done.stderr)}", BAD_DATA)


def last(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no word about why"


def clean_commit(shell: Shell) -> str:
    """The commit that is checked out. Raises Problem where the working tree is not exactly that; the record may differ."""
    head = shell.ask("git", "rev-parse", "HEAD")
    if head.returncode != 0:
        raise Problem(f"this is no git checkout: {last(head.stderr)}", BAD_DATA)
    changed = shell.ask("git", "status", "--porcelain", "--", ".", f":(exclude){RECORD}")
    if changed.returncode != 0 or changed.stdout.strip():
        first = last(changed.stdout or changed.stderr)
        raise Problem(f"the working tree is not the commit ({first}): commit or stash first", BAD_DATA)
    return head.stdout.strip()


def pinned(text: str, name: str) -> str:
    """The default of a build argument."""
    found = re.search(rf"^ARG {name}=(\S+)$", text, re.MULTILINE)
    if found is None:
        raise Problem(f"{DOCKERFILE} has no ARG {name}", SOFTWARE)
    return found[1]


def base_with_digest(shell: Shell, engine: str, base: str) -> str:
    """``name:tag@sha256:...``: what the tag is at this moment."""
    shell.do(engine, "pull", base, code=TEMPORARY)
    if shell.dry:
        return f"{base}@sha256:<its digest>"
    told = shell.ask(engine, "image", "inspect", "--format", "{{index .RepoDigests 0}}", base)
    digest = DIGEST.search(told.stdout)
    if told.returncode != 0 or digest is None:
        raise Problem(f"{engine} tells no digest of {base}: {last(told.stderr or told.stdout)}", SOFTWARE)
    return f"{base}@{digest[0]}"


def aws(region: str, *words: str) -> list[str]:
    return ["aws", "ecr", *words, "--region", region, "--output", "json", "--no-cli-pager"]


def make_repository(shell: Shell, region: str, repository: str) -> None:
    """There after this, with scans on push and tags that cannot be moved. Idempotent."""
    create = aws(
        region, "create-repository", "--repository-name", repository,
        "--image-scanning-configuration", "scanOnPush=true", "--image-tag-mutability", "IMMUTABLE",
    )  # fmt: skip
    if shell.dry:
        print(f"+ {shlex.join(create)}    (where it is missing)")
        return
    there = shell.ask(*aws(region, "describe-repositories", "--repository-names", repository))
    if there.returncode == 0:
        return
    if "RepositoryNotFoundException" not in there.stderr:
        raise Problem(f"aws ecr describe-repositories: {last(there.stderr)}", BAD_DATA)
    print(f"+ {shlex.join(create)}", flush=True)
    made = shell.ask(*create)
    if made.returncode != 0 and "RepositoryAlreadyExistsException" not in made.stderr:
        raise Problem(f"aws ecr create-repository: {last(made.stderr)}", BAD_DATA)


def pushed_digest(shell: Shell, region: str, repository: str, tag: str) -> str | None:
    """The digest under which the registry has the tag; None where it has none."""
    told = shell.ask(*aws(region, "describe-images", "--repository-name", repository, "--image-ids", f"imageTag={tag}"))
    if told.returncode != 0:
        if "ImageNotFoundException" in told.stderr:
            return None
        raise Problem(f"aws ecr describe-images: {last(told.stderr)}", TEMPORARY)
    try:
        digest = str(json.loads(told.stdout)["imageDetails"][0]["imageDigest"])
    except (ValueError, LookupError, TypeError) as error:
        raise Problem("aws ecr describe-images names no digest", SOFTWARE) from error
    if DIGEST.fullmatch(digest) is None:
        raise Problem(f"{digest[:100]} is no digest", SOFTWARE)
    return digest


def versions(path: Path) -> dict[str, str]:
    """What the image is made of, as ``contract/versions.py`` says: it needs nothing but Python."""
    found = runpy.run_path(str(path))
    named = {name: found[name] for name in ("BASE_IMAGE", "SKYRL_SHA", "VISGYM_SHA", "UV")}
    return {name.lower(): value for name, value in named.items()} | dict(found["LOCKED"]) | dict(found["ADDED"])


def build(shell: Shell, engine: str, registry: str, repository: str, platform: str, extra: str) -> dict[str, object]:
    """What is written to container/image.json. Raises Problem."""
    matched = REGISTRY.fullmatch(registry)
    if matched is None:
        raise Problem(f"{registry} is no ECR registry (ACCOUNT.dkr.ecr.REGION.amazonaws.com)", USAGE)
    region, sha, dockerfile = matched[2], clean_commit(shell), (ROOT / DOCKERFILE).read_text()
    name, at = f"{registry}/{repository}", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    make_repository(shell, region, repository)
    digest, base = None if shell.dry else pushed_digest(shell, region, repository, sha), None
    if digest is None:
        base = base_with_digest(shell, engine, pinned(dockerfile, "BASE"))
        arguments = {"BASE": base, "GIT_SHA": sha, "CREATED": at, **({"EXTRA": extra} if extra else {})}
        flags = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        shell.do(
            engine, "build", "--platform", platform, "--file", DOCKERFILE, *flags, "--tag", f"{name}:{sha}", ".",
            code=SOFTWARE,
        )  # fmt: skip
        shell.pipe(
            ["aws", "ecr", "get-login-password", "--region", region],
            [engine, "login", "--username", "AWS", "--password-stdin", registry],
        )
        shell.do(engine, "push", f"{name}:{sha}", code=TEMPORARY)
        digest = "sha256:<its digest>" if shell.dry else pushed_digest(shell, region, repository, sha)
        if digest is None:
            raise Problem(f"{name} does not have {sha}, although it was pushed", TEMPORARY)
    else:
        print(f"{name} has {sha} already")
    return {
        "image": f"{name}@{digest}",
        "git_sha": sha,
        "base": base,
        "extra": extra if base else None,
        "versions": versions(ROOT / VERSIONS),
        "built_at": at if base else None,
    }


def record(found: dict[str, object]) -> None:
    """Beside the Dockerfile. What is known of the same image from the time when it was built stays."""
    path = ROOT / RECORD
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = {}
    if isinstance(before, dict) and before.get("image") == found["image"]:
        found = {key: value if value is not None else before.get(key) for key, value in found.items()}
    path.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or one line on stderr and 64, 65, 70 or 75."""
    parser = argparse.ArgumentParser(prog="container/build.py", description=__doc__)
    parser.add_argument("--registry", required=True, help="ACCOUNT.dkr.ecr.REGION.amazonaws.com")
    parser.add_argument("--repository", default="nightshift")
    parser.add_argument("--engine", choices=ENGINES, help="default: the first of them that is installed")
    parser.add_argument("--platform", default="linux/amd64", help="SkyRL's lock has what it needs for this one")
    parser.add_argument("--extra", default="", help="more packages, pinned: 'mlflow-skinny==3.17.2 ...'")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and do nothing")
    args = parser.parse_args(arguments)
    try:
        engine = args.engine or next((one for one in ENGINES if shutil.which(one)), None)
        if engine is None:
            raise Problem(f"none of {', '.join(ENGINES)} is installed", BAD_DATA)
        found = build(Shell(args.dry_run), engine, args.registry, args.repository, args.platform, args.extra)
    except Problem as problem:
        print(f"container/build.py: {problem}", file=sys.stderr)
        return problem.code
    if not args.dry_run:
        record(found)
        print(f"{RECORD} is written; commit it where runs should be traceable from the repository")
    print(f"\nFor the run spec:\nimage: {found['image']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
