"""``make skyrl-diff NEW=x.y.z``: what another version of SkyRL would change for us, and which contract tests fail with it.

The new wheel is unpacked into a folder of its own, which is deleted at the end, and comes first on PYTHONPATH; everything else is
the pinned environment's. Exit status: 0 where every test passes, 1 where some fail, 65 for a version that cannot be had.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BAD_DATA = 65
TESTS_SECONDS = 1_800
MAX_ADDED = 8
LIGHT_EXTRAS = {"skyrl-train", "aws"}
"""Extras of SkyRL without engines and CUDA."""

Described = Mapping[str, Mapping[str, Any]]


class Unknown(Exception):
    """The version cannot be had."""


def fetch(new: str, folder: Path) -> Path:
    """The unpacked wheel. Raises Unknown with a reason in one line."""
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+!]{0,40}", new):
        raise Unknown(f"{new!r} is no version: NEW=x.y.z")
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--ignore-requires-python", "--only-binary", ":all:", "-d", str(folder), f"skyrl=={new}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    wheels = list(folder.glob("skyrl-*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = re.search(r"from versions: ([^)]*)\)", done.stderr)
        known = (
            f"; there are {said[1]}" if said else f": {(done.stderr.strip().splitlines() or ['no reason'])[-1][:200]}"
        )
        raise Unknown(f"skyrl {new} cannot be had{known}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "skyrl")
    return folder / "skyrl"


def add_missing(unpacked: Path) -> list[str]:
    """Put beside the new version what it imports and the environment lacks, each alone; names of what was added. Only what it
    requires by its own word without its engines, and only until what we rely on can be imported, or not for another reason."""
    lines = [line for one in metadata.distributions(path=[str(unpacked)]) for line in one.requires or []]
    required = {_name(line) for line in lines if set(re.findall(r"""extra == ["']([\w-]+)""", line)) <= LIGHT_EXTRAS}
    added: list[str] = []
    while len(added) < MAX_ADDED:
        command = [sys.executable, "-W", "ignore", "-m", "tests.skyrl.describe", "--import-only"]
        done = subprocess.run(command, cwd=ROOT, env=environment(unpacked), capture_output=True, text=True, timeout=300)
        missing = re.search(r"No module named '(\w+)", (done.stderr.strip().splitlines() or [""])[-1])
        name = _name(missing[1]) if missing else ""
        if name not in required or name in added:
            break
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-input",
            "--no-deps",
        ]
        done = subprocess.run([*command, "--target", str(unpacked), name], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            break
        added.append(name)
    return added


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def environment(first: Path | None) -> dict[str, str]:
    paths = [*([str(first)] if first else []), str(ROOT / "functions"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def describe(first: Path | None) -> Described:
    """Of the version in a folder, or of the installed one. Raises RuntimeError where it cannot even be imported."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.skyrl.describe"]
    done = subprocess.run(command, cwd=ROOT, env=environment(first), capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no reason given"])[-1][:300])
    found: Described = json.loads(done.stdout.splitlines()[-1])
    return found


def changes(old: Described, new: Described) -> list[str]:
    """One line a change, under a heading for each kind; ``none`` where there is none."""
    return [
        *_section("requirements", old["requirements"], new["requirements"], lambda one: one[:160]),
        *_section("keys", old["keys"], new["keys"], lambda one: f"{one[0]}, default {one[1]}"),
        *_section("what two ranks save and export", old["layout"], new["layout"], lambda one: one[:160]),
        *_section("code that the job relies on", old["sources"], new["sources"], lambda one: one, quiet=True),
    ]


def _section(title: str, old: Mapping[str, Any], new: Mapping[str, Any], said: Any, quiet: bool = False) -> list[str]:
    lines = [f"  - {name}" + ("" if quiet else f" ({said(old[name])})") for name in sorted(old.keys() - new.keys())]
    lines += [f"  + {name}" + ("" if quiet else f" ({said(new[name])})") for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            gone = f" {new[name]}" if " " in str(new[name]) else ""
            lines.append(f"  ~ {name}" + (gone if quiet else f": {said(old[name])} -> {said(new[name])}"))
    return [f"{title}: {len(lines) or 'no'} changes", *lines]


def run_tests(first: Path, report: Path) -> list[str]:
    """Names of the contract tests that fail, with the last line of each reason."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    subprocess.run(
        [*command, "tests/skyrl"], cwd=ROOT, env=environment(first), capture_output=True, timeout=TESTS_SECONDS
    )
    if not report.is_file():
        return ["  pytest itself did not run: `make test-skyrl` tells more"]
    failed = []
    cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        for problem in (*case.findall("failure"), *case.findall("error")):
            said = (problem.get("message") or "").strip().splitlines() or [""]
            if said[0] == "collection failure":
                said = [(problem.text or "").strip().splitlines()[-1].removeprefix("E ").strip()]
            failed.append(f"  {case.get('classname', '').rpartition('.')[2]}::{case.get('name')}: {said[0][:160]}")
    return [f"contract tests: {len(failed)} of {len(cases)} fail", *failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("new", help="a published version of skyrl")
    new = parser.parse_args().new
    with tempfile.TemporaryDirectory(prefix="skyrl-diff-") as made:
        try:
            unpacked = fetch(new, Path(made))
        except Unknown as error:
            print(error, file=sys.stderr)
            return BAD_DATA
        print(f"SkyRL {metadata.version('skyrl')} -> {new}", flush=True)
        if added := add_missing(unpacked):
            print(f"imported now, and added for this comparison: {', '.join(added)}", flush=True)
        try:
            print("\n".join(changes(describe(None), describe(unpacked))), flush=True)
        except RuntimeError as error:
            print(f"it cannot be described: {error}")
        failed = run_tests(unpacked, Path(made) / "report.xml")
        print("\n".join(failed))
    return 0 if len(failed) == 1 and " 0 of " in failed[0] else 1


if __name__ == "__main__":
    sys.exit(main())
