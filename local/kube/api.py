"""The Kubernetes API: what Nightshift's clients (lightkube, the Ray toolkit) use of it, and nothing else.

Errors are ``Status`` objects, and every JSON answer has the Content-Type ``application/json`` exactly: lightkube makes
an ``ApiError`` only of those.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from local.config import StackConfig
from local.kube import admission, errors, kueue
from local.kube.controller import Controller
from local.kube.endpoint import Tokens
from local.kube.errors import Json, KubeError
from local.kube.identity import Authenticator, Caller
from local.kube.selectors import field_test, label_test
from local.kube.store import CONNECTION, EVENT, NODE, POD, RAY_CLUSTER, Kind, Store

MAX_BODY = 3 * 2**20
MERGE_PATCH = "application/merge-patch+json"
FOREGROUND = "foregroundDeletion"
MAX_LOG_BYTES = 8 * 2**20
FIELDS = {
    RAY_CLUSTER: frozenset({"metadata.name", "metadata.namespace"}),
    POD: frozenset({"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"}),
    NODE: frozenset({"metadata.name"}),
    kueue.WORKLOAD: frozenset({"metadata.name"}),
    kueue.LOCAL_QUEUE: frozenset({"metadata.name"}),
    EVENT: frozenset(
        {"metadata.name", "involvedObject.name", "involvedObject.kind", "involvedObject.uid", "reason", "type"}
    ),
}
IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "generation", "deletionTimestamp")

LOG = logging.getLogger("local.kube.api")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CALLER = web.RequestKey("caller", Caller)


def reply(body: Json, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), status=status, headers={"Content-Type": "application/json"})


class KubeApi:
    """Handlers over the store. ``creators`` keeps who created a RayCluster, by its uid: it is not in the object."""

    def __init__(
        self, config: StackConfig, store: Store, controller: Controller, who: Authenticator, tokens: Tokens
    ) -> None:
        self._config, self._store, self._controller = config, store, controller
        self._who, self._tokens = who, tokens
        self.creators: dict[str, str] = {}
        self.admit_object: Callable[[Json], None] = lambda _: None
        """Webhooks of others: they may change or refuse a RayCluster that is being created."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        clusters = "/apis/ray.io/v1/namespaces/{namespace}/rayclusters"
        pods = "/api/v1/namespaces/{namespace}/pods"
        connections = f"/apis/{CONNECTION.api_version}/namespaces/{{namespace}}/raydashboardconnections"
        app.add_routes(
            [
                web.get("/version", self._version),
                web.post(clusters, self._create_cluster),
                web.get(clusters, self._lister(RAY_CLUSTER)),
                web.get(clusters + "/{name}", self._getter(RAY_CLUSTER)),
                web.get(clusters + "/{name}/status", self._getter(RAY_CLUSTER)),
                web.patch(clusters + "/{name}", self._patch_cluster),
                web.patch(clusters + "/{name}/status", self._patch_status),
                web.delete(clusters + "/{name}", self._delete_cluster),
                web.get(pods, self._lister(POD)),
                web.get(pods + "/{name}", self._getter(POD)),
                web.delete(pods + "/{name}", self._delete_pod),
                web.get(pods + "/{name}/log", self._pod_log),
                web.get("/api/v1/pods", self._lister(POD)),  # of all namespaces, which docs/rbac.yaml allows
                web.get("/api/v1/nodes", self._lister(NODE)),
                web.get("/api/v1/nodes/{name}", self._getter(NODE)),
                web.get("/api/v1/namespaces/{namespace}/events", self._lister(EVENT)),
                web.post(connections, self._connect),
                *kueue.api_routes(self._lister, self._getter),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            request[CALLER] = caller = await self._who.caller(request.headers.get("Authorization", ""))
            self._authorize(request, caller)
            return await handler(request)
        except errors.Unauthorized as error:
            LOG.info("401 for %s %s: %s", request.method, request.path, error.why)
            return reply(error.status(), 401)
        except KubeError as error:
            return reply(error.status(), error.code)
        except web.HTTPNotFound:
            return reply(errors.NotFound("the server could not find the requested resource").status(), 404)
        except web.HTTPMethodNotAllowed as error:
            return reply(errors.MethodNotAllowed(f"{error.method} is not allowed here").status(), 405)
        except web.HTTPRequestEntityTooLarge:
            return reply(errors.BadRequest("the request is too large").status(), 400)

    def _authorize(self, request: web.Request, caller: Caller) -> None:
        """The access policy of the entry: one namespace, and nodes to read."""
        namespace = request.match_info.get("namespace")
        if namespace not in (None, self._config.namespace):
            resource = request.path.split(f"/namespaces/{namespace}/", 1)[-1].split("/")[0]
            raise errors.Forbidden(
                f'{resource} is forbidden: User "{caller.arn}" cannot access resource "{resource}" '
                f'in the namespace "{namespace}"'
            )

    async def _version(self, request: web.Request) -> web.Response:
        return reply({"major": "1", "minor": "33", "gitVersion": "v1.33.5-eks-local", "platform": "linux/amd64"})

    def _lister(self, kind: Kind) -> Handler:
        async def listing(request: web.Request) -> web.StreamResponse:
            if request.query.get("watch") in ("true", "1"):
                raise errors.MethodNotAllowed("watch is not part of the local Kubernetes API")
            by_label = label_test(request.query.get("labelSelector", ""))
            by_field = field_test(request.query.get("fieldSelector", ""), FIELDS[kind])
            found = self._store.all(kind, request.match_info.get("namespace"))
            items = [item for item in found if by_label(item["metadata"].get("labels", {})) and by_field(item)]
            return reply(
                {
                    "apiVersion": kind.api_version,
                    "kind": f"{kind.name}List",
                    "metadata": {"resourceVersion": self._store.version},
                    "items": items,
                }
            )

        return listing

    def _getter(self, kind: Kind) -> Handler:
        async def getting(request: web.Request) -> web.StreamResponse:
            return reply(self._found(kind, request))

        return getting

    def _found(self, kind: Kind, request: web.Request) -> Json:
        return self._store.get(kind, request.match_info.get("namespace", ""), request.match_info["name"])

    async def _create_cluster(self, request: web.Request) -> web.Response:
        cluster, namespace = await _body(request), request.match_info["namespace"]
        metadata = cluster.setdefault("metadata", {})
        if not isinstance(metadata, dict) or metadata.setdefault("namespace", namespace) != namespace:
            raise errors.BadRequest("the namespace of the object does not match the namespace of the request")
        for name in ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(name, None)
        cluster.pop("status", None)  # a subresource: ignored at creation
        admission.admit(cluster)
        self.admit_object(cluster)
        if request.query.get("dryRun") == "All":
            return reply(cluster, 201)
        created = self._store.add(RAY_CLUSTER, cluster)
        self.creators[created["metadata"]["uid"]] = request[CALLER].arn
        return reply(created, 201)

    async def _patch_cluster(self, request: web.Request) -> web.Response:
        old = self._found(RAY_CLUSTER, request)
        patch = await _merge_patch(request)
        patch.pop("status", None)
        new = merged(old, patch)
        _check_version(old, patch)
        for name in IMMUTABLE:
            if new["metadata"].get(name) != old["metadata"].get(name):
                raise errors.Invalid(f"metadata.{name}: field is immutable")
        admission.admit(new)
        if new["spec"] != old["spec"]:
            new["metadata"]["generation"] += 1
        old.update(new)
        self._store.touch(old)
        return reply(old)

    async def _patch_status(self, request: web.Request) -> web.Response:
        """Only ``status`` is taken. The controller writes it anew at its next round."""
        old = self._found(RAY_CLUSTER, request)
        patch = await _merge_patch(request)
        _check_version(old, patch)
        old["status"] = merged(old.get("status", {}), patch.get("status", {}))
        self._store.touch(old)
        return reply(old)

    async def _delete_cluster(self, request: web.Request) -> web.Response:
        """Foreground: the object stays, with a finalizer, until its pods are gone. Else it goes first, they follow."""
        cluster = self._found(RAY_CLUSTER, request)
        if await _propagation(request) == "Foreground":
            metadata = cluster["metadata"]
            metadata.setdefault("deletionTimestamp", self._store.now())
            metadata["finalizers"] = [FOREGROUND]
            self._store.touch(cluster)
            return reply(cluster)
        self._store.remove(RAY_CLUSTER, cluster)
        self.creators.pop(cluster["metadata"]["uid"], None)
        details = {"name": cluster["metadata"]["name"], "group": "ray.io", "kind": "rayclusters"}
        return reply({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    async def _delete_pod(self, request: web.Request) -> web.Response:
        pod = self._found(POD, request)
        if await _grace(request) == "0":
            self._controller.endings.force(pod)
        else:
            self._controller.end_pod(pod)
        return reply(pod)

    async def _pod_log(self, request: web.Request) -> web.Response:
        pod = self._found(POD, request)
        tail = request.query.get("tailLines", "")
        if tail and not tail.isdigit():
            raise errors.BadRequest("tailLines must be a number")
        text = await asyncio.to_thread(self._controller.log_text, pod, MAX_LOG_BYTES)
        if tail:
            text = "".join(text.splitlines(keepends=True)[-int(tail) :] if int(tail) else [])
        return web.Response(text=text, content_type="text/plain")

    async def _connect(self, request: web.Request) -> web.Response:
        """A RayDashboardConnection: a one-use token for the endpoint, to the RayCluster's creator alone."""
        body, namespace = await _body(request), request.match_info["namespace"]
        name = body.get("spec", {}).get("clusterName")
        if not isinstance(name, str) or not name:
            raise errors.Invalid("spec.clusterName: Required value", [("spec.clusterName", "Required value")])
        cluster = self._store.get(RAY_CLUSTER, namespace, name)
        annotations, uid = cluster["metadata"].get("annotations", {}), cluster["metadata"]["uid"]
        caller = request[CALLER]
        public = annotations.get(admission.STRATEGY_ANNOTATION) == "ray-access-strategy-public"
        if not public and self.creators.get(uid) != caller.arn:
            raise errors.Forbidden(
                f'raydashboardconnections.connection.access.sagemaker.amazonaws.com is forbidden: "{caller.arn}" did '
                f'not create RayCluster "{name}"'
            )
        connection = {
            "apiVersion": CONNECTION.api_version,
            "kind": CONNECTION.name,
            "metadata": {
                "name": f"{body.get('metadata', {}).get('generateName', 'connection-')}{secrets.token_hex(3)}",
                "namespace": namespace,
                "creationTimestamp": self._store.now(),
            },
            "spec": {"clusterName": name},
            "status": {},
        }
        if annotations.get(admission.ENDPOINT_ANNOTATION) == "true":
            token = self._tokens.issue(uid, caller.arn)
            connection["status"] = {"connectionUrl": f"{self._config.endpoint_url}/bearer-auth?token={token}"}
        return reply(connection, 201)


def merged(old: Json, patch: Json) -> Json:
    """RFC 7396. Pure: neither argument is changed."""
    new = copy.deepcopy(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, dict):
            before = new.get(name)
            new[name] = merged(before if isinstance(before, dict) else {}, value)
        else:
            new[name] = copy.deepcopy(value)
    return new


async def _body(request: web.Request) -> Json:
    try:
        body = await request.json()
    except ValueError:
        raise errors.BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise errors.BadRequest("the body is not a JSON object")
    return body


async def _merge_patch(request: web.Request) -> Json:
    if request.content_type != MERGE_PATCH:
        raise errors.UnsupportedMediaType(f"the body of the request was in an unknown format; accepted: {MERGE_PATCH}")
    return await _body(request)


def _check_version(old: Json, patch: Json) -> None:
    given = patch.get("metadata", {}).pop("resourceVersion", None)
    if given not in (None, old["metadata"]["resourceVersion"]):
        raise errors.Conflict(
            f'Operation cannot be fulfilled on rayclusters.ray.io "{old["metadata"]["name"]}": the object has been '
            "modified; please apply your changes to the latest version and try again"
        )


async def _grace(request: web.Request) -> str:
    """gracePeriodSeconds as given; empty where it is not."""
    if "gracePeriodSeconds" in request.query:
        return request.query["gracePeriodSeconds"]
    options = await _body(request) if request.can_read_body else {}
    return str(options.get("gracePeriodSeconds", ""))


async def _propagation(request: web.Request) -> str:
    if "propagationPolicy" in request.query:
        return request.query["propagationPolicy"]
    options = await _body(request) if request.can_read_body else {}
    return str(options.get("propagationPolicy", "Background"))
