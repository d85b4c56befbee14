"""SIGTERM ends the driver at once, whatever it is in: in asyncio's loop, as while episodes are played, or in ray.get."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.job.support import REPOSITORY, RayHead
from training_job.errors import Terminated
from training_job.run import on_sigterm


@pytest.fixture
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    on_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)


def _arrives() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def _in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(_arrives)
    await asyncio.sleep(2)


async def _in_a_task_that_nobody_waits_for() -> None:
    async def other() -> None:
        _arrives()

    asyncio.get_running_loop().set_exception_handler(lambda loop, told: None)  # it only logs
    kept = asyncio.create_task(other())
    await asyncio.sleep(2)
    assert kept.done()


async def _in_what_the_loop_waits_for() -> None:
    async def one() -> None:
        try:
            _arrives()
        except Exception:  # noqa: BLE001 - as a rollout that goes on without an episode
            return

    await asyncio.gather(one(), asyncio.sleep(2), return_exceptions=True)


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("way", [_in_a_callback, _in_a_task_that_nobody_waits_for, _in_what_the_loop_waits_for])
def test_asyncio_does_not_keep_a_sigterm_to_itself(way: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with pytest.raises(Terminated):
        asyncio.run(way())


DRIVER = """
import os, signal, sys, threading, time
import ray
from training_job.run import on_sigterm

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
on_sigterm()

@ray.remote(num_cpus=0)
def nap():
    time.sleep(20)

napping = nap.remote()
try:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    ray.get(napping)
except KeyboardInterrupt:
    print("ended", flush=True)
"""


def test_ray_does_not_make_a_sigterm_an_error_of_the_code(ray_head: RayHead) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, ray_head.address],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'functions'}{os.pathsep}{REPOSITORY}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said, complaint = process.communicate(timeout=60)
        assert said == "ended\n", complaint[-2000:]
    finally:
        process.kill()
        process.wait(10)
