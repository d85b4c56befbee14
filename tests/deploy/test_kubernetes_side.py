"""The cluster's side of a deployment: files that fit the manifests, and one command that gives them for a namespace."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from nightshift.core.raycluster import PRIORITY_LABEL, QUEUE_LABEL, RUN_LABEL, Placement, raycluster_manifest
from tests.builders import spec
from tests.deploy.repository import ROOT, resources, tool

PLACEMENT = Placement(namespace="team", service_account="job", shared_claim="claim")


def pods(**asked: Any) -> list[dict[str, Any]]:
    """Labels of the RayCluster and of both pod templates."""
    made = raycluster_manifest(spec(**asked), "owner", PLACEMENT)
    head, worker = made["spec"]["headGroupSpec"], made["spec"]["workerGroupSpecs"][0]
    return [made["metadata"]["labels"], *(one["template"]["metadata"]["labels"] for one in (head, worker))]


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    """Kind and name -> what `make kubernetes` gives for a namespace."""
    text = tool("make", "-s", "kubernetes", "NAMESPACE=team").stdout
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(text)}


def test_one_command_gives_all_of_it_for_the_namespace_that_is_asked_for(given: dict[str, Any]) -> None:
    assert set(given) == {
        "ClusterRole/nightshift-nodes", "ClusterRoleBinding/nightshift-nodes", "Role/nightshift-claims",
        "RoleBinding/nightshift-claims", "NetworkPolicy/nightshift-runs",
    }  # fmt: skip
    named = {one["metadata"].get("namespace", "team") for one in given.values()}
    assert named == {"team"}


def test_the_group_of_the_access_entry_is_the_one_that_is_bound(given: dict[str, Any]) -> None:
    [entry] = resources("AWS::EKS::AccessEntry").values()
    bound = {subject["name"] for one in given.values() for subject in one.get("subjects", [])}
    assert bound == set(entry["KubernetesGroups"])
    verbs = {verb for one in given.values() for rule in one.get("rules", []) for verb in rule["verbs"]}
    assert verbs == {"get", "list"}, "what the policy lacks is only looked at"


def test_the_dashboard_is_reached_by_the_runs_own_pods_and_by_the_router_and_by_nobody_else(
    given: dict[str, Any],
) -> None:
    policy = given["NetworkPolicy/nightshift-runs"]["spec"]
    runs = {"matchExpressions": [{"key": RUN_LABEL, "operator": "Exists"}]}
    assert policy["podSelector"] == runs and policy["policyTypes"] == ["Ingress"]
    among, router = policy["ingress"]
    assert among == {"from": [{"podSelector": runs}]}
    assert router["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hyperpod-ray"}}}]
    head = raycluster_manifest(spec(), "owner", PLACEMENT)["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ports = {one["name"]: one["containerPort"] for one in head["ports"]}
    assert router["ports"] == [{"protocol": "TCP", "port": ports["dashboard"]}]
    assert all(RUN_LABEL in labels for labels in pods()), "the policy finds every pod"


def test_kueues_labels_are_on_the_raycluster_and_on_both_pod_templates() -> None:
    for labels in pods(queue="team-queue", priority="urgent"):
        assert labels[QUEUE_LABEL] == "team-queue" and PRIORITY_LABEL in labels
    assert not [labels for labels in pods() if QUEUE_LABEL in labels]


def test_the_jobs_role_is_for_pod_identity_of_its_service_account_and_of_this_account() -> None:
    [association] = resources("AWS::EKS::PodIdentityAssociation").values()
    assert association["ServiceAccount"] == {"Ref": "ServiceAccountName"} and association["Namespace"] == {
        "Ref": "Namespace"
    }
    [trust] = resources("AWS::IAM::Role")["JobRole"]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert sorted(trust["Action"]) == ["sts:AssumeRole", "sts:TagSession"]
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    assert (ROOT / "docs/network-policy.yaml").exists()
