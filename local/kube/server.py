"""``python -m local.kube.server STACK_JSON GUARD_PID``: serve until SIGTERM, SIGINT, or the guard's death.

Started by ``python -m local.kube``, the guard. Prints ``READY`` when every port listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp import web

from local import tls
from local.config import HOST, StackConfig
from local.kube import kueue, processes
from local.kube.admin import Admin
from local.kube.api import KubeApi
from local.kube.controller import Controller
from local.kube.endpoint import DashboardOf, Endpoint, Tokens
from local.kube.hyperpod import HyperPod
from local.kube.identity import Authenticator
from local.kube.kueue import Kueue
from local.kube.ray_pods import RayPods
from local.kube.store import RAY_CLUSTER, Store

GUARD_SECONDS = 0.5
SHUTDOWN_SECONDS = 0.5

LOG = logging.getLogger("local.kube")


async def serve(config: StackConfig, guard: int) -> None:
    """Everything in one event loop, until told to end or ``guard`` (the parent's pid) is gone.

    Raises what broke it, after ending everything.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    processes.adopt_orphans()
    tls.ensure(config)
    for folder in (config.shared_dir, config.log_dir):
        folder.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        ray = RayPods(config, http)
        stack.push_async_callback(ray.end_all)
        store = Store(lambda: datetime.now(UTC))
        controller = Controller(config, store, ray)
        hyperpod = HyperPod(config, store, ray, controller, http)
        stack.push_async_callback(hyperpod.stop)
        tokens = Tokens()
        api = KubeApi(config, store, controller, Authenticator(config, http), tokens)
        queues = Kueue(store, config.namespace)
        api.admit_object, controller.refuses_pod = queues.admit_object, queues.refuses_pod
        endpoint = Endpoint(tokens, _dashboards(store, controller), http)
        secure = tls.server_context(config)
        await _listen(stack, api.app(), config.kube_port, secure)
        await _listen(stack, endpoint.app(), config.endpoint_port, secure)
        admin = Admin(hyperpod, endpoint).app()
        admin.add_routes(kueue.admin_routes(queues))
        await _listen(stack, admin, config.admin_port, None)
        stack.push_async_callback(_cancelled, asyncio.create_task(queues.run()))
        loop = asyncio.create_task(controller.run())
        stack.push_async_callback(_cancelled, loop)
        print("READY", flush=True)
        await _until(stop, loop, guard)


def _dashboards(store: Store, controller: Controller) -> DashboardOf:
    def address(uid: str) -> str | None:
        for cluster in store.all(RAY_CLUSTER):
            if cluster["metadata"]["uid"] == uid:
                head = controller.head_of(cluster)
                return head.dashboard_url if head else None
        raise KeyError(uid)

    return address


async def _listen(
    stack: contextlib.AsyncExitStack, app: web.Application, port: int, context: ssl.SSLContext | None
) -> None:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, HOST, port, ssl_context=context).start()


async def _until(stop: asyncio.Event, loop: asyncio.Task[None], guard: int) -> None:
    """Until told to stop, the controller fails, or the guard is gone."""
    while not stop.is_set():
        if loop.done():
            loop.result()
        if os.getppid() != guard:
            LOG.warning("the guard is gone: ending")
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GUARD_SECONDS):
                await stop.wait()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(StackConfig.load(Path(sys.argv[1])), guard=int(sys.argv[2])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
