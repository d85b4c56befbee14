"""The faults of the pretended data centre and of its endpoint, without Ray: what they change, and when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from local.config import StackConfig, new_config
from local.kube.admin import Admin
from local.kube.controller import Controller
from local.kube.endpoint import COOKIE, Endpoint, Tokens, Trouble
from local.kube.hyperpod import HEAD_GROUP, WORKER_GROUP, HyperPod
from local.kube.ray_pods import RayPods
from local.kube.store import NODE, Store
from tests.chaos.conftest import NOW


def config(folder: Path) -> StackConfig:
    return new_config(folder).model_copy(update={"worker_nodes": 2})


class Centre(HyperPod):
    """A data centre whose events stay here instead of going to a cloud."""

    async def _send(self, event: dict[str, Any]) -> None:
        self.__dict__.setdefault("sent", []).append(event)


def with_centre(folder: Path, test: Callable[[Centre, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as http:
            given = config(folder)
            ray, store = RayPods(given, http), Store(lambda: NOW)
            centre = Centre(given, store, ray, Controller(given, store, ray), http)
            endpoint = Endpoint(Tokens(), lambda uid: None, http)
            try:
                async with TestClient(TestServer(Admin(centre, endpoint).app())) as client:
                    await test(centre, client)
            finally:
                await centre.stop()
                await ray.end_all()

    asyncio.run(main())


def ready(centre: Centre, instance_id: str) -> str:
    node = centre.store.get(NODE, "", centre.instance(instance_id).node_name)
    return str(node["status"]["conditions"][0]["status"])


def of(centre: Centre, group: str) -> str:
    return next(one.instance_id for one in centre.instances.values() if one.group == group)


async def settled(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return condition()


def said(centre: Centre) -> list[tuple[str, str]]:
    """(kind of event, instance) of everything sent."""
    found = []
    for event in centre.__dict__.get("sent", []):
        detail = event["detail"]
        found.append(
            (event["detail-type"].split()[-2], detail.get("InstanceId") or detail["EventDetails"]["InstanceId"])
        )
    return found


def test_a_replacement_joins_as_late_as_was_asked_and_one_that_died_meanwhile_never_does(tmp_path: Path) -> None:
    async def test(centre: Centre, client: Any) -> None:
        lost = of(centre, WORKER_GROUP)
        answer = await client.post("/faults/kill-node", json={"instance_id": lost, "joins_after": 0.2})
        spare = (await answer.json())["replacement"]
        assert not centre.instance(spare).joined
        assert await settled(lambda: centre.instance(spare).joined)
        answer = await client.post("/faults/kill-node", json={"instance_id": spare, "joins_after": 0.1})
        second = (await answer.json())["replacement"]
        await client.post("/faults/kill-node", json={"instance_id": second, "joins_after": 0})
        await asyncio.sleep(0.2)
        assert second not in centre.instances
        assert len([one for one in centre.instances.values() if one.group == WORKER_GROUP]) == 2

    with_centre(tmp_path, test)


def test_a_head_node_is_replaced_without_a_word_on_its_health_and_a_gpu_node_with_two(tmp_path: Path) -> None:
    async def test(centre: Centre, client: Any) -> None:
        head, worker = of(centre, HEAD_GROUP), of(centre, WORKER_GROUP)
        await client.post("/faults/kill-node", json={"instance_id": head})
        await client.post("/faults/kill-node", json={"instance_id": worker})
        assert await settled(lambda: ("Cluster", worker) in said(centre))
        assert [kind for kind, instance in said(centre) if instance == head] == ["Cluster"]
        assert [kind for kind, instance in said(centre) if instance == worker] == ["Health", "Health", "Cluster"]

    with_centre(tmp_path, test)


def test_kubernetes_notices_a_frozen_host_only_after_its_time_and_a_thawed_one_at_once(tmp_path: Path) -> None:
    async def test(centre: Centre, client: Any) -> None:
        host = of(centre, WORKER_GROUP)
        await client.post("/faults/freeze-node", json={"instance_id": host, "unnoticed": 0.2})
        assert ready(centre, host) == "True"
        assert await settled(lambda: ready(centre, host) == "Unknown")
        await client.post("/faults/thaw-node", json={"instance_id": host})
        assert ready(centre, host) == "True"
        await client.post("/faults/freeze-node", json={"instance_id": host})
        assert ready(centre, host) == "Unknown"

    with_centre(tmp_path, test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/faults/kill-node", {"instance_id": "i-1", "joins_after": "soon"}),
        ("/faults/freeze-node", {"instance_id": "i-1", "unnoticed": -1}),
        ("/faults/endpoint", {"trouble": "sulk", "seconds": 1}),
        ("/faults/endpoint", {"trouble": "refuse"}),
    ],
)
def test_a_fault_that_says_nothing_sensible_is_refused(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async def test(centre: Centre, client: Any) -> None:
        answer = await client.post(path, json=body)
        assert answer.status == 400 and (await answer.json())["error"]

    with_centre(tmp_path, test)


def with_endpoint(test: Callable[[Endpoint, Any, str], Awaitable[None]]) -> None:
    """A dashboard that answers ``pong``, the endpoint before it, and a cookie for it."""

    async def pong(request: web.Request) -> web.Response:
        return web.Response(text="pong")

    async def main() -> None:
        dashboard = web.Application()
        dashboard.router.add_get("/ping", pong)
        tokens = Tokens()
        async with TestServer(dashboard) as upstream, aiohttp.ClientSession() as http:
            endpoint = Endpoint(tokens, lambda uid: str(upstream.make_url("/")).rstrip("/"), http)
            async with TestClient(TestServer(endpoint.app())) as client:
                cookie = tokens.redeem(tokens.issue("uid", "me"))
                assert cookie is not None
                await test(endpoint, client, cookie)

    asyncio.run(main())


def ping(client: Any, cookie: str) -> Any:
    return client.get("/ping", headers={"Cookie": f"{COOKIE}={cookie}"})


def test_an_expired_session_is_refused_and_a_new_one_is_not() -> None:
    async def test(endpoint: Endpoint, client: Any, cookie: str) -> None:
        assert await (await ping(client, cookie)).text() == "pong"
        assert endpoint.expire() == 1
        assert (await ping(client, cookie)).status == 401

    with_endpoint(test)


@pytest.mark.parametrize(
    ("trouble", "status"), [(Trouble.UNAUTHORIZED, 401), (Trouble.LOGIN_PAGE, 200), (Trouble.SERVER_ERROR, 500)]
)
def test_an_endpoint_out_of_order_answers_so_for_its_time_and_no_longer(trouble: Trouble, status: int) -> None:
    async def test(endpoint: Endpoint, client: Any, cookie: str) -> None:
        endpoint.fail(trouble, 0.3)
        answer = await ping(client, cookie)
        assert answer.status == status and await answer.text() != "pong"
        assert endpoint.troubled == 1
        await asyncio.sleep(0.35)
        assert await (await ping(client, cookie)).text() == "pong"

    with_endpoint(test)


def test_an_endpoint_that_refuses_cuts_the_connection() -> None:
    async def test(endpoint: Endpoint, client: Any, cookie: str) -> None:
        endpoint.fail(Trouble.REFUSE, 30)
        with pytest.raises(aiohttp.ClientError):
            await ping(client, cookie)

    with_endpoint(test)
