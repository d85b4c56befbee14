"""Texts as CUDA, NCCL, vLLM, Ray, botocore and the kernel write them: each has its cause, for the job and the controller."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import boto3
import httpx2
import pytest
import ray.exceptions
import torch
from aiohttp import web
from botocore.config import Config
from botocore.exceptions import ClientError

from nightshift.contract.failures import cause_of_text
from nightshift.contract.job import OutcomeCause
from nightshift.contract.spec import SmallerValues
from tests.builders import spec
from training_job.__main__ import parser
from training_job.errors import EXIT_CODES, BadConfiguration, classify
from training_job.job import Record
from training_job.run import spec_of_attempt

CUDA_OOM = (
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 94.97 GiB of which 1.02 GiB is free. "
    "Including non-PyTorch memory, this process has 93.90 GiB memory in use."
)
ACTOR_DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: FSDPPolicyWorkerBase\n\tpid: 2211\n"
    "\tip: 10.1.4.17\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
    "detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. "
    "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The "
    "worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."
)
TEXTS = [
    (CUDA_OOM, OutcomeCause.GPU_OUT_OF_MEMORY),
    ("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", OutcomeCause.GPU_OUT_OF_MEMORY),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", OutcomeCause.GPU_OUT_OF_MEMORY),
    (
        "Free memory on device (40.1/94.97 GiB) on startup is less than desired GPU memory utilization (0.45, 42.7 GiB). "
        "Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        OutcomeCause.GPU_OUT_OF_MEMORY,
    ),
    (
        "NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to "
        "CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        OutcomeCause.GPU_OUT_OF_MEMORY,
    ),
    (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        OutcomeCause.BAD_CONFIGURATION,
    ),
    (
        "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.1.4.17, ID: 5f) where the task was "
        "running was 121.8GB / 128.0GB (0.951), which exceeds the memory usage threshold of 0.95.",
        OutcomeCause.HOST_OUT_OF_MEMORY,
    ),
    (
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "16777216000 bytes. Error code 12 (Cannot allocate memory)",
        OutcomeCause.HOST_OUT_OF_MEMORY,
    ),
    (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8211, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        OutcomeCause.NCCL_FAILURE,
    ),
    (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a network "
        "error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error",
        OutcomeCause.NCCL_FAILURE,
    ),
    (
        "Error while creating shared memory segment /dev/shm/nccl-6XkA2p (size 9637888), error: No space left on device (28)",
        OutcomeCause.NCCL_FAILURE,
    ),
    ("CUDA error: uncorrectable ECC error encountered", OutcomeCause.GPU_FAILED),
    ("CUDA error: an illegal memory access was encountered", OutcomeCause.GPU_FAILED),
    ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.", OutcomeCause.GPU_FAILED),
    (
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        OutcomeCause.ENGINE_FAILURE,
    ),
    ("Engine core initialization failed. See root cause above. Failed core proc(s): {}", OutcomeCause.ENGINE_FAILURE),
    ("Error while serializing: I/O error: No space left on device (os error 28)", OutcomeCause.STORAGE_FULL),
    ("[Errno 122] Disk quota exceeded: '/shared/runs/maze-1/ckpts/global_step_20'", OutcomeCause.STORAGE_FULL),
    ("PytorchStreamWriter failed writing file data/5: file write failed", OutcomeCause.STORAGE_UNREACHABLE),
    (
        "An error occurred (ExpiredToken) when calling the PutObject operation: The provided token has expired.",
        OutcomeCause.CREDENTIALS_EXPIRED,
    ),
    (
        "An error occurred (ExpiredTokenException): The security token included in the request is expired",
        OutcomeCause.CREDENTIALS_EXPIRED,
    ),
    (ACTOR_DIED, OutcomeCause.WORKER_LOST),
]


@pytest.mark.parametrize(("text", "cause"), TEXTS, ids=lambda one: one[:30] if isinstance(one, str) else None)
def test_a_text_is_a_sign_of_its_cause_wherever_it_is_read(text: str, cause: OutcomeCause) -> None:
    assert cause_of_text(text) is cause
    told = classify(RuntimeError(text))
    assert told.outcome is cause
    assert text[:40] in str(told)
    assert told.exit_code is EXIT_CODES[cause]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "list index out of range",
        "CUDA error: device-side assert triggered",
        "Expected all tensors to be on the same device, cuda:0 and cpu",
        "An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
        "set NCCL_DEBUG=INFO for more",
    ],
)
def test_a_text_that_is_no_sign_is_an_error_of_the_code(text: str) -> None:
    assert cause_of_text(text) is None
    assert classify(RuntimeError(text)).outcome is OutcomeCause.CODE_ERROR


class _Raised(Exception):
    """As vLLM's, whose words alone may say nothing."""


def _named(name: str, text: str) -> Exception:
    error: Exception = type(name, (_Raised,), {})(text)
    return error


REAL: list[tuple[BaseException, OutcomeCause]] = [
    (torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory."), OutcomeCause.GPU_OUT_OF_MEMORY),
    (ray.exceptions.OutOfMemoryError("killed"), OutcomeCause.HOST_OUT_OF_MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), OutcomeCause.HOST_OUT_OF_MEMORY),
    (OSError(errno.ENOSPC, "No space left on device"), OutcomeCause.STORAGE_FULL),
    (ray.exceptions.WorkerCrashedError(), OutcomeCause.WORKER_LOST),
    (ray.exceptions.ActorDiedError(), OutcomeCause.WORKER_LOST),
    (ray.exceptions.NodeDiedError("Task failed because the node it was running on is dead"), OutcomeCause.WORKER_LOST),
    (torch.distributed.DistBackendError("work failed"), OutcomeCause.NCCL_FAILURE),
    (_named("EngineDeadError", "see above"), OutcomeCause.ENGINE_FAILURE),
    (ClientError({"Error": {"Code": "RequestExpired"}}, "PutObject"), OutcomeCause.CREDENTIALS_EXPIRED),
]


@pytest.mark.parametrize(("error", "cause"), REAL, ids=lambda one: type(one).__name__)
def test_a_real_exception_has_its_cause_also_inside_rays_wrapper(error: Any, cause: OutcomeCause) -> None:
    assert classify(error).outcome is cause
    wrapped = ray.exceptions.RayTaskError("train", f"Traceback\n{type(error).__name__}: {error}", error)
    assert classify(wrapped.as_instanceof_cause()).outcome is cause


# What the driver sees of an engine whose node is gone


async def _answer(request: web.Request) -> web.StreamResponse:
    """A server that goes wrong in the way that the path names."""
    match request.match_info["how"]:
        case "proxy":
            return web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html")
        case "slow":
            await asyncio.sleep(5)
        case "drop":
            assert request.transport is not None
            request.transport.abort()
        case "half":
            begun = web.StreamResponse(headers={"Content-Length": "100"})
            await begun.prepare(request)
            await begun.write(b"{")
            assert request.transport is not None
            request.transport.abort()
            return begun
        case status:
            return web.json_response({"error": {"message": f"the code says {status}"}}, status=int(status))
    return web.json_response({})


async def _seen(way: str) -> BaseException:
    """What a driver's HTTP client raises there. ``way``: the client and what goes wrong."""
    client, how = way.split(" ", 1)
    app = web.Application()
    app.router.add_get("/{how}", _answer)
    server = web.AppRunner(app, shutdown_timeout=0.1)
    await server.setup()
    try:
        await web.TCPSite(server, "127.0.0.1", 0).start()
        port = server.addresses[0][1]
        if how == "refused":
            await server.cleanup()
        url = f"http://127.0.0.1:{port}/{how.split()[0]}"
        seconds = 0.1 if how.startswith("slow") else 5.0
        with pytest.raises(Exception) as raised:
            await (_by_aiohttp(url, seconds, "whole" in how) if client == "aiohttp" else _by_httpx(url, seconds))
        return raised.value
    finally:
        await server.cleanup()


async def _by_aiohttp(url: str, seconds: float, whole: bool) -> Any:
    """As SkyRL's RemoteInferenceClient reads an answer."""
    timeout = aiohttp.ClientTimeout(total=seconds) if whole else aiohttp.ClientTimeout(sock_read=seconds)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
        body = await answer.json(content_type=None)
        answer.raise_for_status()
        return body


async def _by_httpx(url: str, seconds: float) -> Any:
    async with httpx2.AsyncClient(timeout=seconds) as session:
        answer = await session.get(url)
        answer.raise_for_status()
        return answer.json()


@pytest.mark.parametrize(
    "way",
    [
        *(f"aiohttp {how}" for how in ("refused", "drop", "half", "slow", "slow whole", "503", "proxy")),
        *(f"httpx {how}" for how in ("refused", "drop", "half", "slow", "503", "proxy")),
    ],
)
def test_an_engine_that_is_gone_is_no_error_of_the_code_whatever_its_http_client_raises(way: str) -> None:
    seen = asyncio.run(_seen(way))
    told = classify(seen)
    assert (told.outcome, told.exit_code) == (OutcomeCause.ENGINE_FAILURE, 75), repr(seen)
    assert type(seen).__name__ in str(told)


@pytest.mark.parametrize("way", ["aiohttp 422", "httpx 422"])
def test_a_request_that_an_engine_refuses_must_stay_an_error_of_the_code(way: str) -> None:
    assert classify(asyncio.run(_seen(way))).outcome is OutcomeCause.CODE_ERROR


def test_a_lost_connection_is_no_disk_that_is_gone_and_an_engines_own_words_are_believed() -> None:
    key: Any = types.SimpleNamespace(host="10.1.4.17", port=8000, ssl=True)
    for number in (errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN):
        beneath = OSError(number, os.strerror(number))
        lost = aiohttp.ClientConnectorError(key, beneath)
        lost.__cause__ = beneath
        told = classify(lost)
        assert told.outcome is OutcomeCause.ENGINE_FAILURE and "10.1.4.17" in str(told)
    request: Any = types.SimpleNamespace(real_url="http://10.1.4.17:8000")
    said = aiohttp.ClientResponseError(request, (), status=500, message="CUDA out of memory. Tried to allocate 2 GiB")
    assert classify(said).outcome is OutcomeCause.GPU_OUT_OF_MEMORY


def test_json_of_the_task_that_cannot_be_read_must_stay_an_error_of_the_code() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("red")
    assert classify(raised.value).outcome is OutcomeCause.CODE_ERROR


# What the job sees of S3 and of Secrets Manager when they are not well


class _Aws(BaseHTTPRequestHandler):
    """Answers in the way that the first part of the path, or the secret's name, says: ``STATUS-CODE``, or a broken body."""

    def do_GET(self) -> None:
        how = self.path.strip("/").split("/")[-1].split("?")[0]
        if how == "half":
            self._answer(200, b"half", {"Content-Length": "100"})
        elif how == "torn":
            self._answer(200, b"torn", {"x-amz-checksum-crc32": "AAAAAA=="})
        else:
            status, _, code = how.partition("-")
            self._answer(
                int(status), f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode() if code else b""
            )

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, _, code = asked["SecretId"].partition("-")
        self._answer(int(status), json.dumps({"__type": code, "message": "m"}).encode())

    def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Aws)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def _asked(service: str, how: str, url: str) -> BaseException:
    """What boto3 raises there once it has given up."""
    config = Config(
        retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=5, s3={"addressing_style": "path"}
    )
    client: Any = boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=config,
    )
    with pytest.raises(Exception) as raised:
        if service == "s3":
            client.get_object(Bucket="bucket", Key=how, ChecksumMode="ENABLED")["Body"].read()
        else:
            client.get_secret_value(SecretId=how)
    return raised.value


@pytest.mark.parametrize(
    ("service", "how"),
    [
        ("s3", "503-SlowDown"),
        ("s3", "500-InternalError"),
        ("s3", "502"),
        ("s3", "429"),
        ("s3", "400-RequestTimeout"),
        ("s3", "half"),
        ("s3", "torn"),
        ("secretsmanager", "500-InternalServiceError"),
        ("secretsmanager", "400-ThrottlingException"),
    ],
)
def test_a_service_that_cannot_answer_now_is_no_error_of_the_code(aws: str, service: str, how: str) -> None:
    seen = _asked(service, how, aws)
    told = classify(seen)
    assert (told.outcome, told.exit_code) == (OutcomeCause.STORAGE_UNREACHABLE, 75), repr(seen)


def test_tls_that_fails_on_the_way_to_s3_is_a_matter_of_the_network(aws: str) -> None:
    seen = _asked("s3", "200", aws.replace("http:", "https:"))
    assert type(seen).__name__ == "SSLError" and classify(seen).outcome is OutcomeCause.STORAGE_UNREACHABLE


@pytest.mark.parametrize(
    ("service", "how"),
    [("s3", "403-AccessDenied"), ("s3", "404-NoSuchKey"), ("secretsmanager", "400-ValidationException")],
)
def test_what_a_service_refuses_must_not_be_tried_again_as_if_it_were_away(aws: str, service: str, how: str) -> None:
    assert classify(_asked(service, how, aws)).outcome is OutcomeCause.CODE_ERROR


# Smaller values


def test_an_attempt_trains_with_the_smaller_values_only_where_it_is_told_to_and_says_so() -> None:
    asked = spec(recovery={"on_out_of_memory": {"micro_train_batch_size_per_gpu": 2}})
    args = ["run", "--bucket", "b", "--run-id", "r", "--attempt", "2", "--floor", "0"]
    assert parser().parse_args(args).smaller is False
    assert parser().parse_args([*args, "--smaller"]).smaller is True

    plain, record = Record(), Record()
    assert spec_of_attempt(asked, False, plain) == asked and plain.smaller is None
    smaller = spec_of_attempt(asked, True, record)
    assert smaller.training.micro_train_batch_size_per_gpu == 2
    assert smaller.training.model_copy(update={"micro_train_batch_size_per_gpu": 4}) == asked.training
    assert record.smaller == SmallerValues(micro_train_batch_size_per_gpu=2)


def test_smaller_values_that_the_spec_does_not_name_are_refused_by_their_field() -> None:
    with pytest.raises(BadConfiguration, match=r"recovery\.on_out_of_memory"):
        spec_of_attempt(spec(), True, Record())
