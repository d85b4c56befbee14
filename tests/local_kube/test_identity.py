"""Who may do what at the Kubernetes API and at the endpoint. No Ray runs here: the image cannot be pulled."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import CascadeType, PatchType

from local.kube import identity
from local.kube.endpoint import SESSION_SECONDS, TOKEN_SECONDS, Tokens
from local.kube.errors import Unauthorized

Stack = Any
Json = dict[str, Any]


def call(stack: Stack, path: str, bearer: str | None, body: Json | None = None) -> tuple[int, Json, str]:
    """(status, JSON answer, Content-Type)."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{stack.config.kube_url}{path}", data=data, headers=headers)
    context = ssl.create_default_context(cafile=str(stack.config.ca_file))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, json.load(answer), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers["Content-Type"]


def endpoint(stack: Stack, path: str, cookie: str = "") -> tuple[int, str]:
    """(status, Set-Cookie) of a request to the endpoint; redirects are not followed."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    context = ssl.create_default_context(cafile=str(stack.config.ca_file))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), Stay())
    request = urllib.request.Request(f"{stack.config.endpoint_url}{path}", headers={"Cookie": cookie})
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.headers.get("Set-Cookie", "")
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Set-Cookie", "")


CONNECTIONS = "/apis/connection.access.sagemaker.amazonaws.com/v1alpha1/namespaces/nightshift/raydashboardconnections"


def connect(stack: Stack, bearer: str, name: str = "mine") -> tuple[int, Json]:
    body = {"metadata": {"generateName": f"{name}-"}, "spec": {"clusterName": name}}
    status, answer, _ = call(stack, CONNECTIONS, bearer, body)
    return status, answer


@pytest.fixture
def cluster(stack: Stack, support: ModuleType) -> Iterator[Any]:
    """A RayCluster of the controller's whose pods wait for an image that no registry has."""
    (stack.config.state_dir / "bad_images.json").write_text(json.dumps([support.BAD_DIGEST]))
    kube = support.client(stack.config)
    made = support.RayCluster.from_dict(support.manifest("mine", workers=1, image=f"x/y@{support.BAD_DIGEST}"))
    yield kube.create(made)
    kube.delete(support.RayCluster, "mine", cascade=CascadeType.FOREGROUND)
    until_gone(kube, support, "mine")


def until_gone(kube: Any, support: ModuleType, name: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            kube.get(support.RayCluster, name)
        except ApiError as error:
            assert error.status.code == 404
            return
        time.sleep(0.1)
    raise AssertionError(f"{name} is still there")


WRONG_TOKENS: dict[str, Json] = {
    "signed for another cluster": {"cluster": "another-eks"},
    "16 minutes old": {"age": timedelta(minutes=16)},
    "signed in the future": {"age": -timedelta(minutes=16)},
    "without a signature": {"keep_signature": False},
    "with a forged signature": {"secret": "not the secret"},
    "whose cluster header is not signed": {"signed_headers": "host"},
    "for another action": {"action": "AssumeRole"},
    "for another region's STS": {"host": "sts.eu-west-1.amazonaws.com"},
    "for another host": {"host": "sts.us-east-1.amazonaws.com.example.org"},
}


@pytest.mark.parametrize("what", WRONG_TOKENS)
def test_a_token_is_refused(what: str, stack: Stack, support: ModuleType) -> None:
    status, answer, kind = call(stack, "/api/v1/nodes", support.token(**WRONG_TOKENS[what]))
    assert (status, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized")
    assert answer["message"] == "Unauthorized", "EKS tells nobody why"
    assert kind == "application/json"


def test_no_token_and_a_role_without_access_entry_are_refused(stack: Stack, support: ModuleType) -> None:
    assert call(stack, "/version", None)[0] == 401
    assert call(stack, "/version", "k8s-aws-v1.%%%")[0] == 401
    assert call(stack, "/version", support.token(support.OTHER_ROLE))[0] == 401


def test_the_controller_and_another_session_of_its_role_are_let_in(stack: Stack, support: ModuleType) -> None:
    for who in (support.CONTROLLER, support.SAME_ROLE_OTHER_SESSION):
        status, answer, _ = call(stack, "/version", support.token(who))
        assert (status, answer["major"]) == (200, "1")


def test_the_projects_own_token_is_accepted(stack: Stack, support: ModuleType) -> None:
    from nightshift.adapters.identity import AssumedRole, eks_token

    who = support.CONTROLLER
    role = AssumedRole(who.access_key, who.secret_key, who.session_token, stack.config.region)
    assert call(stack, "/version", eks_token(role, stack.config.eks_cluster))[0] == 200
    assert call(stack, "/version", eks_token(role, "another-eks"))[0] == 401


def test_another_namespace_is_forbidden(stack: Stack, support: ModuleType) -> None:
    status, answer, _ = call(stack, "/api/v1/namespaces/kube-system/pods", support.token())
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert support.CONTROLLER.arn in answer["message"]


def test_only_the_creators_very_session_gets_a_dashboard_connection(
    stack: Stack, support: ModuleType, cluster: Any
) -> None:
    status, answer = connect(stack, support.token(support.SAME_ROLE_OTHER_SESSION))
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert "status" not in answer or "connectionUrl" not in answer["status"]

    status, answer = connect(stack, support.token())
    assert status == 201
    assert answer["status"]["connectionUrl"].startswith(f"{stack.config.endpoint_url}/bearer-auth?token=")
    assert connect(stack, support.token(), "nobody")[0] == 404


def test_a_connections_token_works_once_and_its_cookie_dies_with_the_cluster(
    stack: Stack, support: ModuleType, cluster: Any
) -> None:
    url = connect(stack, support.token())[1]["status"]["connectionUrl"]
    path = url.removeprefix(stack.config.endpoint_url)
    forged = path[:-3] + ("AAA" if path[-3:] != "AAA" else "BBB")
    assert endpoint(stack, forged)[0] == 401

    status, cookie = endpoint(stack, path)
    assert status == 302
    assert cookie.startswith("ray_session=")
    for attribute in ("Secure", "HttpOnly", "Max-Age=21600"):
        assert attribute in cookie
    assert endpoint(stack, path)[0] == 401, "a second use"

    session = cookie.split(";")[0]
    assert endpoint(stack, "/api/version", session)[0] == 502, "no head runs"
    assert endpoint(stack, "/api/version")[0] == 401
    assert endpoint(stack, "/api/version", "ray_session=made-up")[0] == 401

    kube = support.client(stack.config)
    kube.delete(support.RayCluster, "mine", cascade=CascadeType.FOREGROUND)
    until_gone(kube, support, "mine")
    kube.create(support.RayCluster.from_dict(support.manifest("mine", 1, image=f"x/y@{support.BAD_DIGEST}")))
    assert endpoint(stack, "/api/version", session)[0] == 401, "another cluster of the same name"


def test_a_bad_image_shows_as_imagepullbackoff_and_never_as_ready(
    stack: Stack, support: ModuleType, cluster: Any
) -> None:
    kube = support.client(stack.config)
    deadline, reasons = time.monotonic() + 10, set[str]()
    while reasons != {"ImagePullBackOff"} and time.monotonic() < deadline:
        pods = list(kube.list(Pod, labels={"ray.io/cluster": "mine"}))
        waiting = [p.status.containerStatuses[0].state.waiting for p in pods if p.status.containerStatuses]
        reasons = {one.reason for one in waiting} if len(waiting) == 2 else set()
        time.sleep(0.1)
    assert reasons == {"ImagePullBackOff"}
    status = kube.get(support.RayCluster, "mine").status
    assert "state" not in status
    assert "readyWorkerReplicas" not in status, "0 is absent"
    assert status["desiredWorkerReplicas"] == 1
    assert status["desiredGPU"] == "2"
    assert len(stack.admin("/processes")) == 2, "the server and its guard: no Ray"
    assert any(e.reason == "Failed" and "manifest unknown" in e.message for e in kube.list(Event))


def test_lightkube_reads_nodes_and_lists_by_label(stack: Stack, support: ModuleType, cluster: Any) -> None:
    kube = support.client(stack.config)
    nodes = list(kube.list(Node, labels={"node.kubernetes.io/instance-type": "ml.g7e.12xlarge"}))
    assert len(nodes) == 3
    for node in nodes:
        assert node.metadata.name.startswith("hyperpod-i-")
        assert node.metadata.labels["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
        assert node.status.allocatable["nvidia.com/gpu"] == "2"
    assert len(list(kube.list(Node))) == 4
    assert [c.metadata.name for c in kube.list(support.RayCluster, labels={"nightshift/run": "mine"})] == ["mine"]
    assert not list(kube.list(support.RayCluster, labels={"nightshift/run": "other"}))


def test_a_patch_merges_and_a_spec_change_raises_the_generation(
    stack: Stack, support: ModuleType, cluster: Any
) -> None:
    kube = support.client(stack.config)
    patched = kube.patch(
        support.RayCluster, "mine", {"metadata": {"labels": {"nightshift/phase": "train"}}}, patch_type=PatchType.MERGE
    )
    assert patched.metadata.labels == {
        "nightshift/run": "mine",
        "nightshift/owner": "somebody",
        "nightshift/phase": "train",
    }
    assert patched.metadata.generation == 1
    suspended = kube.patch(support.RayCluster, "mine", {"spec": {"suspend": True}}, patch_type=PatchType.MERGE)
    assert suspended.metadata.generation == 2
    with pytest.raises(ApiError) as refusal:
        kube.patch(support.RayCluster, "mine", {"spec": {"rayVersion": None}}, patch_type=PatchType.MERGE)
    assert refusal.value.status.code == 422
    with pytest.raises(ApiError) as conflict:
        stale = {"metadata": {"resourceVersion": "1"}}
        kube.patch(support.RayCluster, "mine", stale, patch_type=PatchType.MERGE)
    assert (conflict.value.status.code, conflict.value.status.reason) == (409, "Conflict")
    with pytest.raises(ApiError) as twice:
        kube.create(support.RayCluster.from_dict(support.manifest("mine")))
    assert (twice.value.status.code, twice.value.status.reason) == (409, "AlreadyExists")


def test_a_wrong_manifest_creates_nothing_and_lightkube_gets_the_reason(stack: Stack, support: ModuleType) -> None:
    kube = support.client(stack.config)
    wrong = support.manifest("wrong", image="repository/image:latest")
    with pytest.raises(ApiError) as refusal:
        kube.create(support.RayCluster.from_dict(wrong))
    assert refusal.value.status.code == 422
    assert "by digest" in refusal.value.status.message
    with pytest.raises(ApiError) as missing:
        kube.get(support.RayCluster, "wrong")
    assert missing.value.status.code == 404


def test_a_token_of_exactly_15_minutes_is_good_and_one_second_more_is_not(support: ModuleType) -> None:
    bearer = support.token()
    url = base64.urlsafe_b64decode(bearer.removeprefix("k8s-aws-v1.") + "===").decode()
    stamp = url.split("X-Amz-Date=")[1][:16]
    signed = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert identity.presigned_url(bearer, "us-east-1", signed + timedelta(minutes=15)) == url
    with pytest.raises(Unauthorized):
        identity.presigned_url(bearer, "us-east-1", signed + timedelta(minutes=15, seconds=1))


def test_endpoint_tokens_and_sessions_end_on_the_second() -> None:
    now = [1_000_000.0]
    tokens = Tokens(clock=lambda: now[0])
    late, used = tokens.issue("uid", "arn"), tokens.issue("uid", "arn")
    cookie = tokens.redeem(used)
    assert cookie is not None
    now[0] += TOKEN_SECONDS
    assert tokens.redeem(late) is None
    now[0] += SESSION_SECONDS - TOKEN_SECONDS - 1
    session = tokens.session(cookie)
    assert session is not None
    assert (session.cluster_uid, session.identity) == ("uid", "arn")
    now[0] += 1
    assert tokens.session(cookie) is None
    assert Tokens().redeem(tokens.issue("uid", "arn")) is None, "another endpoint's key"
