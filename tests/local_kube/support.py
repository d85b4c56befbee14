"""An STS that verifies signatures, tokens to try on it, a RayCluster manifest, and clients."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlsplit

from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.generic_resource import create_namespaced_resource

from local.config import HOST, REPOSITORY, StackConfig, new_config

__all__ = ["REPOSITORY", "new_config"]

Json = dict[str, Any]
RayCluster = create_namespaced_resource("ray.io", "v1", "RayCluster", "rayclusters")
ROLE = "nightshift-ControllerRole-X1"
GOOD_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/nightshift@sha256:" + "a" * 64
BAD_DIGEST = "sha256:" + "b" * 64


@dataclass(frozen=True)
class Credentials:
    """Of an assumed role, as STS hands them out."""

    access_key: str
    secret_key: str
    session_token: str
    arn: str


def credentials(role: str, session: str, account: str = "123456789012") -> Credentials:
    name = hashlib.sha256(f"{role}/{session}".encode()).hexdigest()
    arn = f"arn:aws:sts::{account}:assumed-role/{role}/{session}"
    return Credentials(f"ASIA{name[:16].upper()}", name[16:48], f"session-{name[48:]}", arn)


CONTROLLER = credentials(ROLE, "nightshift-controller")
SAME_ROLE_OTHER_SESSION = credentials(ROLE, "somebody-else")
OTHER_ROLE = credentials("nightshift-ApiRole-Y2", "nightshift-controller")
KNOWN = (CONTROLLER, SAME_ROLE_OTHER_SESSION, OTHER_ROLE)


def write_access_entries(config: StackConfig) -> None:
    entries = {"principals": [f"arn:aws:iam::{config.account}:role/service-role/{ROLE}"]}
    (config.state_dir / "access_entries.json").write_text(json.dumps(entries))


def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, "sts", "aws4_request"):
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    return key


def _signature(secret: str, pairs: list[tuple[str, str]], headers: dict[str, str], region: str) -> str:
    """AWS Signature Version 4 of a presigned GET of ``/``."""
    values = dict(pairs)
    query = "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in sorted(pairs))
    signed = values["X-Amz-SignedHeaders"].split(";")
    lines = "".join(f"{name}:{headers.get(name, '')}\n" for name in signed)
    request = f"GET\n/\n{query}\n{lines}\n{';'.join(signed)}\n{hashlib.sha256(b'').hexdigest()}"
    moment = values["X-Amz-Date"]
    scope = f"{moment[:8]}/{region}/sts/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    return hmac.new(_signing_key(secret, moment[:8], region), text.encode(), hashlib.sha256).hexdigest()


def token(
    who: Credentials = CONTROLLER,
    cluster: str = "local-eks",
    age: timedelta = timedelta(),
    host: str = "sts.us-east-1.amazonaws.com",
    signed_headers: str = "host;x-k8s-aws-id",
    action: str = "GetCallerIdentity",
    secret: str | None = None,
    keep_signature: bool = True,
) -> str:
    """An EKS bearer token; every argument but ``who`` and ``cluster`` makes it wrong in one way."""
    moment = (datetime.now(UTC) - age).strftime("%Y%m%dT%H%M%SZ")
    pairs = [
        ("Action", action),
        ("Version", "2011-06-15"),
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", f"{who.access_key}/{moment[:8]}/us-east-1/sts/aws4_request"),
        ("X-Amz-Date", moment),
        ("X-Amz-Expires", "60"),
        ("X-Amz-SignedHeaders", signed_headers),
        ("X-Amz-Security-Token", who.session_token),
    ]
    signature = _signature(secret or who.secret_key, pairs, {"host": host, "x-k8s-aws-id": cluster}, "us-east-1")
    if keep_signature:
        pairs.append(("X-Amz-Signature", signature))
    url = f"https://{host}/?" + "&".join(f"{quote(k)}={quote(v, safe='-_.~')}" for k, v in pairs)
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


class Sts:
    """Stands in for the cloud's port: GetCallerIdentity, and the door for events."""

    def __init__(self, config: StackConfig) -> None:
        self.events: list[Json] = []
        sts = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = sts.identify(self.path, {k.lower(): v for k, v in self.headers.items()})
                self._answer(status, body.encode())

            def do_POST(self) -> None:
                sts.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._answer(200, b"{}")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, config.cloud_port), Handler)
        self._region = config.region

    def identify(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        pairs = parse_qsl(urlsplit(path).query)
        given = dict(pairs)
        for who in KNOWN:
            if who.access_key == given.get("X-Amz-Credential", "").split("/")[0]:
                unsigned = [pair for pair in pairs if pair[0] != "X-Amz-Signature"]
                expected = _signature(who.secret_key, unsigned, headers, self._region)
                if hmac.compare_digest(expected, given.get("X-Amz-Signature", "")):
                    arn = f"<Arn>{who.arn}</Arn>"
                    space = "https://sts.amazonaws.com/doc/2011-06-15/"
                    inner = f"<GetCallerIdentityResult>{arn}</GetCallerIdentityResult>"
                    return 200, f'<GetCallerIdentityResponse xmlns="{space}">{inner}</GetCallerIdentityResponse>'
        return 403, "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code></Error></ErrorResponse>"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def client(config: StackConfig, who: Credentials = CONTROLLER) -> Client:
    """lightkube, unchanged, with a fresh token."""
    ca = base64.b64encode(config.ca_file.read_bytes()).decode()
    kube = KubeConfig(
        clusters={"eks": Cluster(server=config.kube_url, certificate_auth_data=ca)},
        users={"controller": User(token=token(who))},
        contexts={"eks": Context(cluster="eks", user="controller", namespace=config.namespace)},
        current_context="eks",
    )
    return Client(config=kube, namespace=config.namespace)


def manifest(name: str = "story", workers: int = 3, image: str = GOOD_IMAGE) -> Json:
    """Written after issue 2, item 5: every field that the local Kubernetes API wants to see."""
    tolerations = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        for what in ("not-ready", "unreachable")
    ]

    def pod(kind: str, gpus: int) -> Json:
        resources: Json = {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
        if gpus:
            resources["requests"]["nvidia.com/gpu"] = resources["limits"]["nvidia.com/gpu"] = str(gpus)
        return {
            "metadata": {"labels": {"nightshift/run": name}},
            "spec": {
                "serviceAccountName": "nightshift-training",
                "nodeSelector": {"node.kubernetes.io/instance-type": kind},
                "tolerations": copy.deepcopy(tolerations),
                "containers": [
                    {
                        "name": "ray",
                        "image": image,
                        "env": [
                            {"name": "NIGHTSHIFT_SHARED", "value": "/shared"},
                            {"name": "MODELS", "value": "/shared/models"},
                            {"name": "NOT_SHARED", "value": "/sharedness"},
                        ],
                        "resources": resources,
                        "volumeMounts": [{"name": "fsx", "mountPath": "/shared"}],
                    }
                ],
                "volumes": [{"name": "fsx", "persistentVolumeClaim": {"claimName": "fsx-claim"}}],
            },
        }

    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": name,
            "namespace": "nightshift",
            "labels": {"nightshift/run": name, "nightshift/owner": "somebody"},
            "annotations": {"access.sagemaker.amazonaws.com/enabled": "true"},
        },
        "spec": {
            "rayVersion": "2.56.0",
            "headGroupSpec": {
                "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0", "resources": '"{\\"head\\": 1}"'},
                "template": pod("ml.r5d.16xlarge", 0),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "gpu-workers",
                    "replicas": workers,
                    "minReplicas": workers,
                    "maxReplicas": workers,
                    "rayStartParams": {},
                    "template": pod("ml.g7e.12xlarge", 2),
                }
            ],
        },
    }


def changed(change: Callable[[Json], object]) -> Json:
    """The right manifest, made wrong by ``change``."""
    cluster = manifest()
    change(cluster)
    return cluster
