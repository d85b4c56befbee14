"""Who calls: presigned GetCallerIdentity, the HTTP API's signatures, assumed roles, and the seeded cluster."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner

from tests.local_cloud.support import Cloud

HOST = "sts.us-east-1.amazonaws.com"


def assumed(cloud: Cloud, session: str = "nightshift-controller") -> Credentials:
    answer = cloud.client("sts").assume_role(RoleArn=cloud.outputs["ProbeRoleArn"], RoleSessionName=session)
    one = answer["Credentials"]
    return Credentials(one["AccessKeyId"], one["SecretAccessKey"], one["SessionToken"])


def presigned(credentials: Credentials, cluster: str = "local-eks") -> str:
    """Path and query of the URL inside an EKS token."""
    session = botocore.session.get_session()
    client = session.create_client("sts", region_name="us-east-1")
    signer = RequestSigner(
        client.meta.service_model.service_id,
        "us-east-1",
        "sts",
        "v4",
        credentials,
        session.get_component("event_emitter"),
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"https://{HOST}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster},
            "context": {},
        },
        region_name="us-east-1",
        expires_in=60,
        operation_name="",
    )
    return str(url).removeprefix(f"https://{HOST}")


def replay(cloud: Cloud, path: str, cluster: str = "local-eks", host: str = HOST) -> tuple[int, str, str]:
    """(status, caller's ARN, error code) as the Kubernetes API asks."""
    headers = {"Host": host, "x-k8s-aws-id": cluster}
    request = urllib.request.Request(cloud.config.cloud_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    found = {one.tag.rsplit("}", 1)[1]: one.text for one in ElementTree.fromstring(body).iter()}
    return status, found.get("Arn") or "", found.get("Code") or ""


def test_a_presigned_identity_request_names_the_exact_session(cloud: Cloud) -> None:
    role = cloud.outputs["ProbeRoleArn"].rsplit("/", 1)[1]
    status, arn, _ = replay(cloud, presigned(assumed(cloud)))
    assert (status, arn) == (200, f"arn:aws:sts::123456789012:assumed-role/{role}/nightshift-controller")


def changed_secret(one: Credentials) -> Credentials:
    return Credentials(one.access_key, "x" * 40, one.token)


def without_token(one: Credentials) -> Credentials:
    return Credentials(one.access_key, one.secret_key)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (changed_secret, "SignatureDoesNotMatch"),
        (without_token, "InvalidClientTokenId"),
        (lambda _: Credentials("AKIAUNKNOWN", "secret"), "InvalidClientTokenId"),
    ],
)
def test_credentials_that_sts_did_not_give_are_refused(cloud: Cloud, change: Any, code: str) -> None:
    status, arn, found = replay(cloud, presigned(change(assumed(cloud))))
    assert (status, arn, found) == (403, "", code)


def test_a_token_for_another_cluster_or_host_does_not_verify(cloud: Cloud) -> None:
    path = presigned(assumed(cloud), cluster="other-cluster")
    assert replay(cloud, path)[::2] == (403, "SignatureDoesNotMatch")
    good = presigned(assumed(cloud))
    assert replay(cloud, good, host="sts.eu-west-1.amazonaws.com")[::2] == (403, "SignatureDoesNotMatch")
    assert replay(cloud, good.replace("Version=2011-06-15", "Version=2011-06-16"))[0] == 403


def test_a_token_older_than_fifteen_minutes_is_refused_and_one_of_fourteen_is_not(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = assumed(cloud)

    def signed(age: timedelta) -> str:
        at = datetime.now(UTC) - age
        monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_: at.replace(tzinfo=None))
        return presigned(credentials)

    assert replay(cloud, signed(timedelta(minutes=14)))[0] == 200
    assert replay(cloud, signed(timedelta(minutes=16)))[::2] == (403, "SignatureDoesNotMatch")
    assert replay(cloud, signed(timedelta(minutes=-10)))[::2] == (403, "SignatureDoesNotMatch")


def test_a_role_that_does_not_exist_cannot_be_assumed(cloud: Cloud) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        cloud.client("sts").assume_role(RoleArn="arn:aws:iam::123456789012:role/nobody", RoleSessionName="somebody")


def test_the_parents_own_key_is_the_accounts_root(cloud: Cloud) -> None:
    assert cloud.client("sts").get_caller_identity()["Arn"] == "arn:aws:iam::123456789012:root"


def call_api(
    cloud: Cloud,
    method: str,
    path: str,
    body: bytes | None = None,
    credentials: Credentials | None = None,
    below: str = "",
) -> tuple[int, Any]:
    address = (below or cloud.outputs["ApiUrl"]) + path
    request = AWSRequest(method, address, {}, body)
    if credentials is not None:
        SigV4Auth(credentials, "execute-api", "us-east-1").add_auth(request)
    plain = urllib.request.Request(address, body, dict(request.headers.items()), method=method)
    try:
        with urllib.request.urlopen(plain, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


ROOT = Credentials("test", "test")


def test_a_signed_call_reaches_the_function_with_its_path_parameters_and_its_caller(cloud: Cloud) -> None:
    status, event = call_api(cloud, "GET", "/runs/r-1?full=1&a=b&a=c", credentials=assumed(cloud, "somebody"))
    iam = event["requestContext"]["authorizer"]["iam"]
    assert status == 202 and event["version"] == "2.0" and event["routeKey"] == "GET /runs/{run_id}"
    assert event["rawPath"] == "/runs/r-1" and event["pathParameters"] == {"run_id": "r-1"}
    assert event["queryStringParameters"] == {"full": "1", "a": "b,c"}
    assert iam["userArn"].endswith("/somebody") and iam["accountId"] == "123456789012"
    assert "body" not in event


def test_a_posted_body_arrives_as_it_was_sent_and_root_is_root(cloud: Cloud) -> None:
    body = json.dumps({"spec": {"text": "ä"}}).encode()
    status, event = call_api(cloud, "POST", "/runs", body, ROOT)
    assert status == 202 and event["body"].encode() == body and event["isBase64Encoded"] is False
    assert event["requestContext"]["authorizer"]["iam"]["userArn"] == "arn:aws:iam::123456789012:root"
    status, event = call_api(cloud, "POST", "/runs", body, ROOT, below=cloud.config.cloud_url)
    assert status == 202 and event["rawPath"] == "/runs"


def test_unsigned_and_wrongly_signed_calls_are_forbidden_except_on_open_routes(cloud: Cloud) -> None:
    assert call_api(cloud, "GET", "/runs/r-1") == (403, {"message": "Forbidden"})
    assert call_api(cloud, "GET", "/runs/r-1", credentials=Credentials("test", "wrong"))[0] == 403
    assert call_api(cloud, "GET", "/runs/r-1", credentials=changed_secret(assumed(cloud)))[0] == 403
    status, event = call_api(cloud, "GET", "/open")
    assert status == 202 and "authorizer" not in event["requestContext"]
    assert call_api(cloud, "GET", "/nowhere", credentials=ROOT) == (404, {"message": "Not Found"})
    assert call_api(cloud, "DELETE", "/runs/r-1", credentials=ROOT) == (404, {"message": "Not Found"})


def test_the_eks_cluster_is_the_local_kubernetes_api(cloud: Cloud) -> None:
    cluster = cloud.client("eks").describe_cluster(name=cloud.config.eks_cluster)["cluster"]
    assert cluster["endpoint"] == cloud.config.kube_url
    assert base64.b64decode(cluster["certificateAuthority"]["data"]) == cloud.config.ca_file.read_bytes()


def test_hyperpod_calls_are_answered_by_the_hyperpod_part(cloud: Cloud, hyperpod: list[tuple[str, Any]]) -> None:
    sagemaker = cloud.client("sagemaker")
    assert sagemaker.describe_cluster(ClusterName="c")["ClusterName"] == "local-hyperpod"
    sagemaker.list_cluster_nodes(ClusterName="c")
    sagemaker.describe_cluster_node(ClusterName="c", NodeId="i-1")
    assert [path for path, _ in hyperpod] == [
        "/hyperpod/DescribeCluster",
        "/hyperpod/ListClusterNodes",
        "/hyperpod/DescribeClusterNode",
    ]
    assert hyperpod[2][1] == {"ClusterName": "c", "NodeId": "i-1"}
    with pytest.raises(ClientError, match="ResourceNotFound"):
        sagemaker.describe_cluster(ClusterName="missing")


def test_conditional_writes_at_the_same_moment_have_one_winner(cloud: Cloud) -> None:
    import threading

    won: list[int] = []
    gate = threading.Barrier(8)
    key = f"lease-{time.time_ns()}"

    def put(number: int) -> None:
        gate.wait()
        try:
            cloud.client("dynamodb").put_item(
                TableName=cloud.outputs["TableName"],
                Item={"pk": {"S": key}, "by": {"N": str(number)}},
                ConditionExpression="attribute_not_exists(pk)",
            )
            won.append(number)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "ConditionalCheckFailedException"

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(won) == 1
