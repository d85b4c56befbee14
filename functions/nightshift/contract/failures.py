"""What texts of exceptions and of Ray say about why a job ended. Job and controller read them in the same way.

The texts are those of CUDA, NCCL and torch.distributed, vLLM, Ray, botocore and the kernel, as they reach an exception's
message. A text that merely lists what may have happened is no sign: Ray's ActorDiedError names the OOM killer in every one.
"""

from __future__ import annotations

import re
from typing import Final

from nightshift.contract.job import OutcomeCause

_SIGNS: Final = (
    # vLLM sized its cache and found nothing left: less memory for it, or a smaller batch, cannot help.
    (
        OutcomeCause.BAD_CONFIGURATION,
        r"no available memory for the cache blocks|larger than the available kv cache memory",
    ),
    (
        OutcomeCause.GPU_OUT_OF_MEMORY,
        r"cuda out of memory|cuda error: out of memory|cuda failure (2|'out of memory')|cublas_status_alloc_failed"
        r"|is less than desired gpu memory utilization",
    ),
    (
        OutcomeCause.GPU_FAILED,
        r"uncorrectable ecc error|fallen off the bus|gpu is lost|no cuda-capable device"
        r"|cuda error: (an illegal memory access|unspecified launch failure|the launch timed out|unknown error)",
    ),
    (
        OutcomeCause.HOST_OUT_OF_MEMORY,
        r"node running low on memory|killed due to memory pressure|can't allocate memory|cannot allocate memory"
        r"|std::bad_alloc|oomkilled",
    ),
    (
        OutcomeCause.NCCL_FAILURE,
        r"watchdog caught collective operation timeout|nccl(system|internal|remote|unhandledcuda)error|nccl error"
        r"|nccl communicator was aborted|processgroupnccl|distbackenderror|distnetworkerror|diststoreerror|/dev/shm/nccl",
    ),
    (OutcomeCause.STORAGE_FULL, r"no space left on device|disk quota exceeded"),
    (OutcomeCause.STORAGE_UNREACHABLE, r"stale file handle|transport endpoint is not connected|file write failed"),
    (
        OutcomeCause.CREDENTIALS_EXPIRED,
        r"expiredtoken|security token included in the request is (expired|invalid)|token has expired|requestexpired"
        r"|unable to locate credentials",
    ),
    (
        OutcomeCause.ENGINE_FAILURE,
        r"enginedeaderror|enginecore (encountered|failed)|engine core (initialization failed|proc \S+ died)"
        r"|enginegenerateerror|engine process failed to start|engine loop is not running"
        r"|server (failed to become healthy|task exited unexpectedly)"
        r"|vllmrouter (failed to become healthy|process exited with code)",
    ),
    (
        OutcomeCause.WORKER_LOST,
        r"actordiederror|actorunavailableerror|nodediederror|workercrashederror|ownerdiederror|objectlosterror"
        r"|localraylet\w*error|rayactorerror|its node has died|the actor died unexpectedly"
        r"|failed to create placement group with",
    ),
)
_PATTERNS: Final = tuple((cause, re.compile(text, re.IGNORECASE)) for cause, text in _SIGNS)
"""In this order: what is behind another failure comes before it."""


RANKS: Final = {cause: number for number, (cause, _) in enumerate(_SIGNS)}
"""The lower, the nearer to the root."""


_OWN_WORD: Final = re.compile(rf"^outcome: ({'|'.join(OutcomeCause)}) \(", re.MULTILINE)
"""The job's last line in its log. Ray's message of a failed job ends with the log's tail, which is all that is heard of a job
that may not write into its bucket."""


def cause_of_text(text: str) -> OutcomeCause | None:
    """What the text is a sign of; None where it is of nothing that is known. What the job says of itself comes first."""
    said = _OWN_WORD.findall(text)
    if said and not OutcomeCause(said[-1]).is_success:
        return OutcomeCause(said[-1])
    return next((cause for cause, pattern in _PATTERNS if pattern.search(text)), None)
