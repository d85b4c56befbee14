"""Why a job ends: one exception a cause, and the translation of everybody else's exceptions into them."""

from __future__ import annotations

import errno
import json
import traceback
from collections.abc import Iterator
from typing import Final

from nightshift.contract import ExitCode, OutcomeCause
from nightshift.contract.failures import cause_of_text

_TRACEBACK_LINES: Final = 12
_STORAGE_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_STORAGE_GONE: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.ENODEV, errno.EROFS, errno.ENXIO}
)
_EXPIRED_CODES: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired"}
)
_BUSY_CODES: Final = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "RequestTimeout",
        "InternalError",
        "InternalServiceError",
        "ServiceUnavailable",
    }
)
"""Of a service of AWS that is there and cannot answer now; some of them come with a status of 400."""
_NETWORK_ERRORS: Final = frozenset(
    {
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ConnectionClosedError",
        "HTTPClientError",
        "SSLError",
        "ProxyConnectionError",
        "ResponseStreamingError",
        "IncompleteReadError",
        "FlexibleChecksumError",
    }
)
_CREDENTIAL_ERRORS: Final = frozenset({"NoCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"})
_WORKER_ERRORS: Final = frozenset(
    {
        "RayActorError",
        "ActorDiedError",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        "NodeDiedError",
        "WorkerCrashedError",
        "OwnerDiedError",
        "ObjectLostError",
        "LocalRayletDiedError",
    }
)
_HTTP_CLIENTS: Final = frozenset({"aiohttp", "httpx", "httpx2"})
"""Packages by which the driver talks to the engines while episodes are played: a node that goes away is seen by them first."""
_ENGINE_GONE: Final = frozenset(
    {
        "ClientConnectionError",  # aiohttp's: not connected, disconnected, reset, timed out
        "ClientPayloadError",
        "ConnectError",  # from here on httpx's
        "ReadError",
        "WriteError",
        "CloseError",
        "TimeoutException",
        "RemoteProtocolError",
    }
)


class JobError(Exception):
    """An end of the job with a known cause. The message is for a person: what is wrong, and what to do."""

    outcome: OutcomeCause = OutcomeCause.CODE_ERROR
    """What outcome.json says. Not named ``cause``: Ray's wrappers of an exception have an attribute of that name."""

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.outcome]


class BadConfiguration(JobError):
    """The spec asks for something that cannot work; ``field`` is its dotted path."""

    outcome = OutcomeCause.BAD_CONFIGURATION

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem

    def __reduce__(self) -> tuple[type[BadConfiguration], tuple[str, str]]:
        return type(self), (self.field, self.problem)


class CheckpointUnusable(JobError):
    outcome = OutcomeCause.CHECKPOINT_UNUSABLE


class StorageUnreachable(JobError):
    outcome = OutcomeCause.STORAGE_UNREACHABLE


class StorageFull(JobError):
    outcome = OutcomeCause.STORAGE_FULL


class WorkerLost(JobError):
    outcome = OutcomeCause.WORKER_LOST


class EngineFailure(JobError):
    outcome = OutcomeCause.ENGINE_FAILURE


class NcclFailure(JobError):
    outcome = OutcomeCause.NCCL_FAILURE


class GpuFailed(JobError):
    outcome = OutcomeCause.GPU_FAILED


class OutOfMemory(JobError):
    outcome = OutcomeCause.GPU_OUT_OF_MEMORY


class HostOutOfMemory(JobError):
    outcome = OutcomeCause.HOST_OUT_OF_MEMORY


class EngineMisconfigured(JobError):
    outcome = OutcomeCause.BAD_CONFIGURATION


class CredentialsExpired(JobError):
    outcome = OutcomeCause.CREDENTIALS_EXPIRED


class CodeError(JobError):
    outcome = OutcomeCause.CODE_ERROR


_BY_WORDS: Final[dict[OutcomeCause, tuple[type[JobError], str]]] = {
    OutcomeCause.BAD_CONFIGURATION: (
        EngineMisconfigured,
        "training.gpu_memory_utilization or lengths do not fit the GPU",
    ),
    OutcomeCause.GPU_OUT_OF_MEMORY: (OutOfMemory, "out of memory"),
    OutcomeCause.GPU_FAILED: (GpuFailed, "a GPU reported a fault"),
    OutcomeCause.HOST_OUT_OF_MEMORY: (HostOutOfMemory, "out of main memory"),
    OutcomeCause.NCCL_FAILURE: (NcclFailure, "the GPUs' communication failed"),
    OutcomeCause.STORAGE_FULL: (StorageFull, "no space is left on the shared filesystem"),
    OutcomeCause.STORAGE_UNREACHABLE: (StorageUnreachable, "storage does not answer"),
    OutcomeCause.CREDENTIALS_EXPIRED: (CredentialsExpired, "AWS credentials are missing or expired"),
    OutcomeCause.ENGINE_FAILURE: (EngineFailure, "an inference engine died"),
}
"""What the words of an exception can say about its cause."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Not an Exception: nothing in between may swallow it. A KeyboardInterrupt, because asyncio keeps any other
    in a log or in a task that nobody may wait for, and ray.get waits to its end and then raises a SystemError."""


EXIT_CODES: Final[dict[OutcomeCause, ExitCode]] = {
    OutcomeCause.FINISHED: ExitCode.OK,
    OutcomeCause.TARGET_REACHED: ExitCode.OK,
    OutcomeCause.PLATEAU: ExitCode.OK,
    OutcomeCause.STOPPED_ON_REQUEST: ExitCode.OK,
    OutcomeCause.WORKER_LOST: ExitCode.TEMPORARY,
    OutcomeCause.GPU_OUT_OF_MEMORY: ExitCode.SOFTWARE,
    OutcomeCause.HOST_OUT_OF_MEMORY: ExitCode.SOFTWARE,
    OutcomeCause.GPU_FAILED: ExitCode.TEMPORARY,
    OutcomeCause.NCCL_FAILURE: ExitCode.TEMPORARY,
    OutcomeCause.ENGINE_FAILURE: ExitCode.TEMPORARY,
    OutcomeCause.CREDENTIALS_EXPIRED: ExitCode.TEMPORARY,
    OutcomeCause.STORAGE_FULL: ExitCode.TEMPORARY,
    OutcomeCause.STORAGE_UNREACHABLE: ExitCode.TEMPORARY,
    OutcomeCause.BAD_CONFIGURATION: ExitCode.BAD_DATA,
    OutcomeCause.CHECKPOINT_UNUSABLE: ExitCode.BAD_DATA,
    OutcomeCause.CODE_ERROR: ExitCode.SOFTWARE,
}


def classify(error: BaseException) -> JobError:
    """The job's own error for any exception. Never raises; what is not known is an error of the code."""
    for one in _chain(error):
        known = _known(one)
        if known is not None:
            return known
    if any(isinstance(one, TimeoutError) for one in _chain(error)):  # bare, as aiohttp's for a whole request
        return EngineFailure(f"an inference engine, or what else was waited for, did not answer: {_last_lines(error)}")
    return CodeError(_last_lines(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """What Ray's wrapper or `raise ... from` carries, then the error itself: the inner one knows more. Bounded."""
    inner: list[BaseException] = [error]
    while len(inner) < 20:
        last = inner[-1]
        carried = getattr(last, "cause", None)
        deeper = carried if isinstance(carried, BaseException) else last.__cause__
        if deeper is not carried and _http_names(last):  # beneath is a socket's error, which looks like a disk's
            break
        if deeper is None or deeper in inner:
            break
        inner.append(deeper)
    # A job error that was raised on purpose wins over what it was raised from.
    yield from (one for one in inner if isinstance(one, JobError) and not hasattr(one, "cause"))
    yield from reversed(inner)


def _known(error: BaseException) -> JobError | None:
    """By what the exception is, where that says more than its words; else by its words. Compared by name: torch, ray and
    botocore are imported only by those who need them."""
    if isinstance(error, JobError):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if _http_names(error) & _ENGINE_GONE or _is_no_answer(error):
        return EngineFailure(f"an inference engine cannot be reached ({type(error).__name__}): {text}")
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return HostOutOfMemory(f"out of main memory: {text}")
    if isinstance(error, OSError) and error.errno in _STORAGE_FULL:
        return StorageFull(f"no space is left on the shared filesystem: {text}")
    if is_storage_gone(error):
        return StorageUnreachable(f"storage does not answer: {text}")
    if names & _CREDENTIAL_ERRORS or _client_code(error) in _EXPIRED_CODES:
        return CredentialsExpired(f"AWS credentials are missing or expired: {text}")
    if names & _NETWORK_ERRORS:
        return StorageUnreachable(f"S3 does not answer: {text}")
    if _client_code(error) in _BUSY_CODES or (status := _client_status(error)) == 429 or status >= 500:
        return StorageUnreachable(f"AWS cannot answer now: {text}")
    said = cause_of_text(f"{type(error).__name__}: {text}")
    if said is not None and said is not OutcomeCause.WORKER_LOST:
        return by_cause(said, text)
    if (_http_status(error) or 0) >= 500:
        return EngineFailure(f"an inference engine answered with a fault ({type(error).__name__}): {text}")
    if "OutOfMemoryError" in names:
        return _out_of_memory(error)
    if said is OutcomeCause.WORKER_LOST or names & _WORKER_ERRORS or "GetTimeoutError" in names:
        return WorkerLost(f"a rollout worker was lost ({type(error).__name__}): {text}")
    return None


def is_storage_gone(error: BaseException) -> bool:
    """Whether a read or a write failed because of what lies beneath the file: it says nothing about the file."""
    return isinstance(error, OSError) and error.errno in _STORAGE_GONE


def by_cause(cause: OutcomeCause, text: str) -> JobError:
    """The error for a cause that words have told. Raises KeyError for one that words cannot tell."""
    kind, words = _BY_WORDS[cause]
    return kind(f"{words}: {text}")


def _out_of_memory(error: BaseException) -> JobError:
    """torch and Ray have an exception of this name: of a GPU's memory, and of the node's."""
    if type(error).__module__.split(".", 1)[0] == "ray":
        return HostOutOfMemory(f"out of main memory: {error}")
    return OutOfMemory(f"out of memory: {error}")


def _http_names(error: BaseException) -> set[str]:
    """Of those of an exception's classes that an HTTP client has defined."""
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in _HTTP_CLIENTS}


def _http_status(error: BaseException) -> int | None:
    """The status of an answer that an HTTP client has raised; None for any other exception."""
    names = _http_names(error)
    if "ClientResponseError" in names:
        status = getattr(error, "status", None)
    elif "HTTPStatusError" in names:
        status = getattr(getattr(error, "response", None), "status_code", None)
    else:
        return None
    return status if isinstance(status, int) else None


def _is_no_answer(error: BaseException) -> bool:
    """An HTTP client could not read an answer as JSON: that of a proxy whose engine is gone. SkyRL raises it as it is."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(one.f_globals.get("__name__")).partition(".")[0] in _HTTP_CLIENTS for one in frames)


def _client_code(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _client_status(error: BaseException) -> int:
    """Of the answer that botocore has raised; 0 for any other exception."""
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return status if isinstance(status, int) else 0


def _last_lines(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return "\n".join([f"{type(error).__name__}: {error}", *lines[-_TRACEBACK_LINES:]])
