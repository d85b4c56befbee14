"""Control of the pretended HyperPod: plain HTTP on the loopback interface. Nothing of it exists on AWS."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from local.kube import processes, sagemaker
from local.kube.endpoint import Endpoint, Trouble
from local.kube.errors import BadRequest, Json, KubeError
from local.kube.hyperpod import HyperPod
from local.kube.store import POD, RAY_CLUSTER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_SECONDS = 3_600.0


class Admin:
    """Nodes, faults, processes, and the SageMaker answers that ``local.cloud`` passes on."""

    def __init__(self, hyperpod: HyperPod, endpoint: Endpoint) -> None:
        self._hyperpod, self._endpoint = hyperpod, endpoint

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors])
        app.add_routes(
            [
                web.get("/nodes", self._nodes),
                web.get("/rayclusters", self._rayclusters),
                web.get("/processes", self._processes),
                web.post("/faults/kill-node", self._kill_node),
                web.post("/faults/kill-head", self._kill_head),
                web.post("/faults/freeze-node", self._freeze_node),
                web.post("/faults/thaw-node", self._thaw_node),
                web.post("/faults/expire-sessions", self._expire_sessions),
                web.post("/faults/endpoint", self._fail_endpoint),
                web.get("/faults/endpoint", self._endpoint_troubled),
                web.post("/hyperpod/{operation}", self._sagemaker),
            ]
        )
        return app

    async def _nodes(self, request: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "instance_id": one.instance_id,
                    "instance_group": one.group,
                    "instance_type": one.instance_type,
                    "status": one.status,
                    "frozen": one.frozen,
                    "pods": [pod["metadata"]["name"] for pod in self._hyperpod.pods_on(one)],
                }
                for one in self._hyperpod.instances.values()
            ]
        )

    async def _rayclusters(self, request: web.Request) -> web.Response:
        return web.json_response([one["metadata"]["name"] for one in self._hyperpod.store.all(RAY_CLUSTER)])

    async def _processes(self, request: web.Request) -> web.Response:
        """This process, its guard, and everything it started, by pod; ``orphan`` where the parent has died."""
        rows: list[Json] = [
            {"pid": os.getppid(), "what": "local.kube: guard"},
            {"pid": os.getpid(), "what": "local.kube"},
        ]
        ray = self._hyperpod.ray
        names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in self._hyperpod.store.all(POD)}
        for uid, runtime in ray.runtimes.items():
            for process in processes.tree(top.pid for top in runtime.started):
                what = f"pod {names.get(uid, uid)}: {processes.command_line(process)}"
                rows.append({"pid": process.pid, "what": what})
        for orphan in processes.tree(p.pid for p in processes.orphans(ray.started)):
            rows.append({"pid": orphan.pid, "what": f"orphan: {processes.command_line(orphan)}"})
        return web.json_response(rows)

    async def _kill_node(self, request: web.Request) -> web.Response:
        body = await _body(request)
        emit, after = bool(body.get("emit_events", True)), body.get("joins_after")
        joins_after = None if after is None else _seconds(body, "joins_after")
        return web.json_response(await self._hyperpod.kill_node(_text(body, "instance_id"), emit, joins_after))

    async def _kill_head(self, request: web.Request) -> web.Response:
        return web.json_response(await self._hyperpod.kill_head(_text(await _body(request), "raycluster")))

    async def _freeze_node(self, request: web.Request) -> web.Response:
        body = await _body(request)
        unnoticed = _seconds(body, "unnoticed") if "unnoticed" in body else 0.0
        return web.json_response(self._hyperpod.freeze(_text(body, "instance_id"), frozen=True, unnoticed=unnoticed))

    async def _thaw_node(self, request: web.Request) -> web.Response:
        return web.json_response(self._hyperpod.freeze(_text(await _body(request), "instance_id"), frozen=False))

    async def _expire_sessions(self, request: web.Request) -> web.Response:
        return web.json_response({"expired": self._endpoint.expire()})

    async def _fail_endpoint(self, request: web.Request) -> web.Response:
        body = await _body(request)
        kind = _text(body, "trouble")
        if kind not in list(Trouble):
            raise BadRequest(f'"trouble" is one of {", ".join(Trouble)}')
        self._endpoint.fail(Trouble(kind), _seconds(body, "seconds"))
        return web.json_response({"trouble": kind})

    async def _endpoint_troubled(self, request: web.Request) -> web.Response:
        return web.json_response({"troubled": self._endpoint.troubled})

    async def _sagemaker(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(
                sagemaker.answer(self._hyperpod, request.match_info["operation"], await _body(request))
            )
        except sagemaker.SageMakerError as error:
            body = {"__type": error.code, "message": error.message}
            return web.json_response(body, status=error.status, headers={"x-amzn-ErrorType": error.code})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except KubeError as error:
        return web.json_response({"error": error.message}, status=error.code)


async def _body(request: web.Request) -> Json:
    text = await request.text()
    try:
        body: Any = json.loads(text) if text else {}
    except ValueError:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    return body


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f'"{name}" is required')
    return value


def _seconds(body: Json, name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise BadRequest(f'"{name}" must be a number of seconds, at most {MAX_SECONDS:g}')
    return float(value)
