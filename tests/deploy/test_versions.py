"""One version of a thing, wherever it is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nightshift.contract import versions
from nightshift.core.raycluster import Placement, raycluster_manifest
from tests.builders import spec
from tests.deploy.repository import ROOT, tool
from tests.deploy.test_documents import DOCUMENTS

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


def test_ray_is_one_version_in_the_client_the_job_the_image_and_the_manifest() -> None:
    [base] = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)
    manifest = raycluster_manifest(spec(), "team", Placement(namespace="n", service_account="s", shared_claim="c"))
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    told = [one for group in groups for one in group["template"]["spec"]["containers"][0]["env"]]

    assert pins("functions/requirements.txt")["ray"] == versions.RAY
    assert pins("training_job/requirements.txt")["ray"] == versions.RAY
    assert pins("tests/requirements-skyrl.txt")["ray"] == versions.RAY == versions.LOCKED["ray"]
    assert base == versions.BASE_IMAGE and base.startswith(f"anyscale/ray:{versions.RAY}-")
    assert manifest["spec"]["rayVersion"] == versions.RAY
    assert told.count({"name": versions.RAY_ENV, "value": versions.RAY}) == len(groups) == 2


def test_what_the_contract_tests_run_is_what_the_image_has() -> None:
    tested = pins("tests/requirements-skyrl.txt")
    assert {name: tested[name] for name in ("skyrl", "skyrl-gym", "ray", "transformers", "peft")} == {
        name: versions.LOCKED[name] for name in ("skyrl", "skyrl-gym", "ray", "transformers", "peft")
    }


def test_what_job_and_image_take_themselves_is_one_version() -> None:
    job = pins("training_job/requirements.txt")
    assert job["matplotlib"] == versions.ADDED["matplotlib"]
    assert job["skyrl-gym"] == versions.LOCKED["skyrl-gym"]
    assert job["safetensors"] == versions.LOCKED["safetensors"]


def test_the_image_is_built_from_these_versions_and_no_others() -> None:
    wanted = {"SKYRL_SHA": versions.SKYRL_SHA, "VISGYM_SHA": versions.VISGYM_SHA, "UV_VERSION": versions.UV}
    wanted |= {"BASE": versions.BASE_IMAGE, "GIT_SHA": "unknown", "CREATED": "unknown", "EXTRA": '""'}
    assert dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE)) == wanted
    assert dict(re.findall(r"\b([a-z][\w-]*)==([\d.]+)", DOCKERFILE)) == dict(versions.ADDED)
    for name in ("SKYRL_SHA", "VISGYM_SHA", "UV_VERSION"):
        assert f"${{{name}}}" in DOCKERFILE
    for name in (versions.SKYRL_SHA, versions.VISGYM_SHA):
        assert re.fullmatch("[0-9a-f]{40}", name), "a tag can be moved"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_that_names_a_version_names_this_one(path: Path) -> None:
    text = path.read_text()
    one_of = {"ray": versions.RAY, "skyrl": versions.SKYRL, "vllm": versions.LOCKED["vllm"]}
    for name, version in re.findall(r"(?i)\b(ray|skyrl|vllm)[`*]* (?:==)?`?(\d+\.\d+(?:\.\d+)?)\b", text):
        assert one_of[name.lower()].startswith(version), f"{name} {version}"
    for sha in re.findall(r"\b[0-9a-f]{40}\b", text):
        assert sha in (versions.SKYRL_SHA, versions.VISGYM_SHA), sha
    for base in re.findall(r"anyscale/ray:[\w.-]+", text):
        assert base == versions.BASE_IMAGE


def test_the_images_page_has_every_version_that_is_pinned() -> None:
    text = (ROOT / "container/README.md").read_text()
    for name, version in {**versions.LOCKED, **versions.ADDED}.items():
        assert f"{name} {version}" in text, name
    for one in (versions.SKYRL_SHA, versions.VISGYM_SHA, versions.BASE_IMAGE):
        assert one in text


def test_no_code_names_a_version_of_ray_or_a_commit_but_the_one_place() -> None:
    here = ROOT / "functions/nightshift/contract/versions.py"
    code = [one for folder in ("functions", "training_job", "cli", "local") for one in (ROOT / folder).rglob("*.py")]
    named = re.compile("|".join(map(re.escape, (f'"{versions.RAY}"', versions.SKYRL_SHA, versions.VISGYM_SHA))))
    assert [one.name for one in code if one != here and named.search(one.read_text())] == []


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
