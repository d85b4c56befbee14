"""One version of a thing, wherever it is named."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from nightshift.core.raycluster import RAY_VERSION
from tests.deploy.repository import ROOT, tool

LOCKS = [
    "functions/requirements.txt",
    "training_job/requirements.txt",
    "local/requirements.txt",
    "local/requirements-lambda.txt",
    "tests/requirements.txt",
    "tests/requirements-tools.txt",
]
DOCKERFILE = (ROOT / "container/Dockerfile").read_text()


def pins(path: str) -> dict[str, str]:
    """Name -> version of a lock; every line must be an exact pin."""
    found = {}
    for line in (ROOT / path).read_text().splitlines():
        if line and not line.startswith("#"):
            [only] = Requirement(line).specifier
            assert only.operator == "==" and "*" not in only.version, line
            found[Requirement(line).name.lower().replace("_", "-")] = only.version
    assert found, path
    return found


def test_ray_has_one_version_in_the_client_the_job_the_image_and_the_manifest() -> None:
    base = re.search(r"^ARG BASE=anyscale/ray:([\d.]+)-", DOCKERFILE, re.MULTILINE)
    asserted = re.search(r"ray\.__version__ == '([\d.]+)'", DOCKERFILE)
    assert base and asserted
    named = {
        pins("functions/requirements.txt")["ray"],
        pins("training_job/requirements.txt")["ray"],
        base[1],
        asserted[1],
        RAY_VERSION,
    }
    assert len(named) == 1


def test_what_two_environments_share_has_one_version() -> None:
    # The tools are in an environment of their own because they want other versions.
    shared: dict[str, set[str]] = {}
    for path in LOCKS:
        if path != "tests/requirements-tools.txt":
            for name, version in pins(path).items():
                shared.setdefault(name, set()).add(version)
    assert {name: versions for name, versions in shared.items() if len(versions) > 1} == {}


def test_what_is_repaired_or_unchanged_by_design_is_pinned_to_what_was_tested() -> None:
    assert pins("local/requirements.txt")["moto"] == "5.2.5"
    assert pins("functions/requirements.txt")["toolkit-for-ray-on-sagemaker-ai"] == "1.0.4"
    assert pins("training_job/requirements.txt")["torch"] == "2.13.0"


def test_a_function_carries_nothing_of_the_job_and_nothing_of_the_local_stack() -> None:
    assert not {"torch", "transformers", "peft", "moto", "numpy", "awslambdaric"} & set(
        pins("functions/requirements.txt")
    )


def test_the_image_takes_its_extra_packages_in_the_jobs_versions() -> None:
    job = pins("training_job/requirements.txt")
    [line] = re.findall(r"^RUN uv pip install --no-cache (boto3\S+ matplotlib\S+)$", DOCKERFILE, re.MULTILINE)
    for one in line.split():
        name, version = one.split("==")
        assert job[name] == version


@pytest.mark.parametrize("name", ["SKYRL_SHA", "VISGYM_SHA"])
def test_the_image_pins_what_it_takes_from_repositories_by_commit(name: str) -> None:
    sha = re.search(rf"^ARG {name}=([0-9a-f]{{40}})$", DOCKERFILE, re.MULTILINE)
    assert sha
    assert sha[1] in (ROOT / "container/README.md").read_text()
    assert f"${{{name}}}" in DOCKERFILE


def test_the_image_does_not_run_as_root() -> None:
    assert re.findall(r"^USER (\w+)$", DOCKERFILE, re.MULTILINE)[-1] == "ray"


def test_the_locks_hold_everything_that_their_direct_requirements_need_and_nothing_else() -> None:
    done = tool(ROOT / ".venv/bin/python", ROOT / ".ci/lock.py", "--check")
    assert done.returncode == 0, done.stderr


def test_no_lock_names_a_registry() -> None:
    files = [ROOT / path for path in LOCKS] + [ROOT / "package-lock.json"]
    named = re.compile(r"(?i)registry|--index|://(?!(github|opencollective)\.com)")
    assert [path.name for path in files if named.search(path.read_text())] == []


def test_the_contract_asks_for_a_pydantic_that_the_functions_have() -> None:
    project = tomllib.loads((ROOT / "functions/pyproject.toml").read_text())["project"]
    [requirement] = [Requirement(line) for line in project["dependencies"]]
    assert requirement.name == "pydantic"
    assert requirement.specifier.contains(pins("functions/requirements.txt")["pydantic"])


def test_no_file_of_the_repository_names_a_package_registry() -> None:
    listed = tool("git", "ls-files", "-z").stdout.split("\0")
    hosts = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com", "deb" + "ian.org")
    found = {
        name: host
        for name in listed
        if name and (ROOT / name).is_file() and (ROOT / name).stat().st_size < 1_000_000
        for host in hosts
        if host in (ROOT / name).read_text(errors="ignore")
    }
    assert found == {}
