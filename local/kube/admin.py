"""Control of the pretended HyperPod: plain HTTP on the loopback interface. Nothing of it exists on AWS."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from local.kube import processes, sagemaker
from local.kube.errors import BadRequest, Json, KubeError
from local.kube.hyperpod import HyperPod
from local.kube.store import POD

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Admin:
    """Nodes, faults, processes, and the SageMaker answers that ``local.cloud`` passes on."""

    def __init__(self, hyperpod: HyperPod) -> None:
        self._hyperpod = hyperpod

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors])
        app.add_routes(
            [
                web.get("/nodes", self._nodes),
                web.get("/processes", self._processes),
                web.post("/faults/kill-node", self._kill_node),
                web.post("/faults/kill-head", self._kill_head),
                web.post("/faults/freeze-node", self._freeze_node),
                web.post("/faults/thaw-node", self._thaw_node),
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
        killed = await self._hyperpod.kill_node(_text(body, "instance_id"), bool(body.get("emit_events", True)))
        return web.json_response(killed)

    async def _kill_head(self, request: web.Request) -> web.Response:
        return web.json_response(await self._hyperpod.kill_head(_text(await _body(request), "raycluster")))

    async def _freeze_node(self, request: web.Request) -> web.Response:
        return web.json_response(self._hyperpod.freeze(_text(await _body(request), "instance_id"), frozen=True))

    async def _thaw_node(self, request: web.Request) -> web.Response:
        return web.json_response(self._hyperpod.freeze(_text(await _body(request), "instance_id"), frozen=False))

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
