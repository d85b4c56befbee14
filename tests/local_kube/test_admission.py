"""Which RayClusters the local Kubernetes API accepts, and what it says about the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from local.config import REPOSITORY
from local.kube import admission
from local.kube.errors import Invalid

Json = dict[str, Any]
CRD = REPOSITORY.parent / "shared/data/ray.io_rayclusters.v1.7.0.yaml"


def head(c: Json) -> Json:
    return c["spec"]["headGroupSpec"]


def worker(c: Json) -> Json:
    return c["spec"]["workerGroupSpecs"][0]


def pod(group: Json) -> Json:
    return group["template"]["spec"]


def container(group: Json) -> Json:
    return pod(group)["containers"][0]


WRONG: dict[str, tuple[Callable[[Json], object], str, str]] = {
    "no Ray version": (lambda c: c["spec"].pop("rayVersion"), "spec.rayVersion", "is required"),
    "dashboard on one address": (
        lambda c: head(c)["rayStartParams"].update({"dashboard-host": "127.0.0.1"}),
        "spec.headGroupSpec.rayStartParams.dashboard-host",
        'must be "0.0.0.0"',
    ),
    "dashboard host left out": (
        lambda c: head(c)["rayStartParams"].pop("dashboard-host"),
        "spec.headGroupSpec.rayStartParams.dashboard-host",
        'must be "0.0.0.0"',
    ),
    "resources that a shell would strip of their quotes": (
        lambda c: head(c)["rayStartParams"].update(resources='{"head": 1}'),
        "spec.headGroupSpec.rayStartParams.resources",
        "survives a shell",
    ),
    "no head resource": (
        lambda c: head(c)["rayStartParams"].pop("resources"),
        "spec.headGroupSpec.rayStartParams.resources",
        'custom resource "head"',
    ),
    "image by tag": (
        lambda c: container(worker(c)).update(image="repository/nightshift:latest"),
        "spec.workerGroupSpecs[0].template.spec.containers[0].image",
        "by digest",
    ),
    "no instance type": (
        lambda c: pod(worker(c)).pop("nodeSelector"),
        "spec.workerGroupSpecs[0].template.spec.nodeSelector",
        "is required",
    ),
    "no GPUs on workers": (
        lambda c: container(worker(c)).update(resources={"limits": {"memory": "1Gi"}}),
        "nvidia.com/gpu",
        "a worker needs GPUs",
    ),
    "GPU request unlike the limit": (
        lambda c: container(worker(c))["resources"]["requests"].update({"nvidia.com/gpu": "1"}),
        "requests[nvidia.com/gpu]",
        "must equal the limit",
    ),
    "GPUs on the head": (
        lambda c: container(head(c))["resources"]["limits"].update({"nvidia.com/gpu": "1"}),
        "spec.headGroupSpec",
        "the head must have no GPUs",
    ),
    "nothing shared on the head": (
        lambda c: container(head(c)).pop("volumeMounts"),
        "spec.headGroupSpec.template.spec.containers[0].volumeMounts",
        "persistentVolumeClaim must be mounted at /shared",
    ),
    "an emptyDir instead of the claim": (
        lambda c: pod(worker(c)).update(volumes=[{"name": "fsx", "emptyDir": {}}]),
        "spec.workerGroupSpecs[0].template.spec.containers[0].volumeMounts",
        "persistentVolumeClaim must be mounted at /shared",
    ),
    "a name of 54 characters": (lambda c: c["metadata"].update(name="a" * 54), "metadata.name", "at most 53"),
    "a name that begins with a digit": (lambda c: c["metadata"].update(name="1a"), "metadata.name", "DNS-1035"),
    "the default eviction time": (
        lambda c: pod(worker(c))["tolerations"][1].update(tolerationSeconds=300),
        "spec.workerGroupSpecs[0].template.spec.tolerations",
        "node.kubernetes.io/unreachable must be tolerated",
    ),
    "no tolerations on the head": (
        lambda c: pod(head(c)).pop("tolerations"),
        "spec.headGroupSpec.template.spec.tolerations",
        "node.kubernetes.io/not-ready must be tolerated",
    ),
    "no service account": (
        lambda c: pod(worker(c)).pop("serviceAccountName"),
        "spec.workerGroupSpecs[0].template.spec.serviceAccountName",
        "is required",
    ),
    "an unknown field deep inside": (
        lambda c: container(worker(c)).update(imagePullPolicies="Always"),
        "spec.workerGroupSpecs[0].template.spec.containers[0]",
        "imagePullPolicies",
    ),
    "a misspelt start parameter": (
        lambda c: worker(c)["rayStartParams"].update({"num_gpus": "2"}),
        "spec.workerGroupSpecs[0].rayStartParams.num_gpus",
        "unknown here",
    ),
    "a number where a string belongs": (
        lambda c: worker(c)["rayStartParams"].update({"num-gpus": 2}),
        "spec.workerGroupSpecs[0].rayStartParams.num-gpus",
        "is not of type 'string'",
    ),
    "an endpoint annotation that is neither": (
        lambda c: c["metadata"]["annotations"].update({admission.ENDPOINT_ANNOTATION: "yes"}),
        admission.ENDPOINT_ANNOTATION,
        'must be "true" or "false"',
    ),
    "replicas above the maximum": (
        lambda c: worker(c).update(maxReplicas=1),
        "spec.workerGroupSpecs[0].replicas",
        "between minReplicas and maxReplicas",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_manifest_is_refused_with_its_field_and_reason(what: str, support: ModuleType) -> None:
    change, field, reason = WRONG[what]
    with pytest.raises(Invalid) as refusal:
        admission.admit(support.changed(change))
    causes = refusal.value.causes
    assert any(field in where and reason in why for where, why in causes), causes
    assert refusal.value.status()["code"] == 422
    assert 'RayCluster.ray.io "' in refusal.value.message


def test_a_wrong_manifest_is_refused_for_its_one_fault_only(support: ModuleType) -> None:
    with pytest.raises(Invalid) as refusal:
        admission.admit(support.changed(lambda c: pod(worker(c)).pop("serviceAccountName")))
    assert [field for field, _ in refusal.value.causes] == ["spec.workerGroupSpecs[0].template.spec.serviceAccountName"]


def test_the_right_manifest_is_accepted(support: ModuleType) -> None:
    admission.admit(support.manifest())


def test_without_an_endpoint_the_dashboard_may_listen_anywhere(support: ModuleType) -> None:
    def off(cluster: Json) -> None:
        cluster["metadata"]["annotations"][admission.ENDPOINT_ANNOTATION] = "false"
        head(cluster)["rayStartParams"].pop("dashboard-host")

    admission.admit(support.changed(off))


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.integers(1, 99), min_size=1))
def test_resources_quoted_for_a_shell_come_back_as_they_were(resources: dict[str, int]) -> None:
    assert admission.start_resources(json.dumps(json.dumps(resources))) == resources


@given(st.text(max_size=40))
def test_no_text_for_resources_raises_anything_but_a_named_problem(text: str) -> None:
    try:
        assert all(value > 0 for value in admission.start_resources(text).values())
    except ValueError as error:
        assert "survives a shell" in str(error)


def project_manifest() -> Json:
    """The manifest that the controller really sends."""
    raycluster = import_module("nightshift.core.raycluster")
    spec = import_module("nightshift.contract").RunSpec.model_validate(
        yaml.safe_load((REPOSITORY / "examples/demo.yaml").read_text())
    )
    placement = raycluster.Placement(namespace="nightshift", service_account="training", shared_claim="fsx-claim")
    manifest: Json = raycluster.raycluster_manifest(spec, "somebody@example.org", placement)
    return manifest


def test_the_projects_own_manifest_is_accepted() -> None:
    admission.admit(project_manifest())


def crd_schema() -> Json | None:
    """The v1 schema of the RayCluster CRD (KubeRay v1.7.0), where the file is present."""
    if not CRD.exists():
        return None
    versions = yaml.load(CRD.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    found: Json = next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1")
    return found


def with_defaults(value: Any, schema: Json) -> Any:
    """What the API server fills in before it validates."""
    if isinstance(value, list):
        return [with_defaults(one, schema.get("items", {})) for one in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    defaults = {name: one["default"] for name, one in known.items() if "default" in one}
    return {**defaults, **{name: with_defaults(one, known.get(name, {})) for name, one in value.items()}}


def foreign_fields(ours: Json, theirs: Json, path: str, root: Json) -> list[str]:
    """Fields that our schema allows and the CRD does not know, or knows as another type."""
    while "$ref" in ours:
        ours = root["$defs"][ours["$ref"].rsplit("/", 1)[-1]]
    if path == "metadata":
        return []  # the CRD says only that it is an object
    if "type" in ours and "type" in theirs and ours["type"] != theirs["type"]:
        return [f"{path}: {ours['type']} here, {theirs['type']} in the CRD"]
    if ours.get("type") == "array":
        return foreign_fields(ours.get("items", {}), theirs.get("items", {}), f"{path}[]", root)
    found = []
    for name, one in ours.get("properties", {}).items():
        at = f"{path}.{name}".lstrip(".")
        if name in theirs.get("properties", {}):
            found += foreign_fields(one, theirs["properties"][name], at, root)
        else:
            found.append(f"{at}: not in the CRD")
    return found


def test_schema_and_manifests_agree_with_kuberays_crd_where_it_is_present(
    support: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests = [support.manifest(), project_manifest()]
    assert Draft202012Validator(admission.schema()).is_valid(manifests[0])
    crd = crd_schema()
    if crd is None:
        with capsys.disabled():
            print(f"\n{Path(__file__).name}: the CRD is not here; the schema was checked against the fixture alone")
        return
    assert foreign_fields(admission.schema(), crd, "", admission.schema()) == []
    for manifest in manifests:
        assert [e.message for e in Draft202012Validator(crd).iter_errors(with_defaults(manifest, crd))] == []


def test_the_comparison_with_the_crd_sees_a_foreign_field_and_a_wrong_type() -> None:
    theirs = {"properties": {"spec": {"type": "object", "properties": {"rayVersion": {"type": "string"}}}}}
    ours = {"properties": {"spec": {"type": "object", "properties": {"rayVersion": {"type": "integer"}, "x": {}}}}}
    assert len(foreign_fields(ours, theirs, "", ours)) == 2
