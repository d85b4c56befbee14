"""GPUs, and whether they can talk to each other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from training_job.doctor.finding import Finding, no, not_here, ok

SMI: Final = "nvidia-smi"
FIELDS: Final = "index,name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total"
TALK_SECONDS: Final = 90.0
INTERFACES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "FI_PROVIDER", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")
BUSY_MIB: Final = 1_024


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi; memory in MiB, ``broken`` the uncorrected memory errors since the driver was loaded."""

    index: str
    name: str
    total: int
    used: int
    driver: str
    broken: int


def parse(text: str) -> list[Gpu]:
    """nvidia-smi's CSV without header and units; what a GPU does not know (``[N/A]``) counts as zero. Raises ValueError."""
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        index, name, total, used, driver, broken = (part.strip() for part in line.split(","))
        numbers = [int(one) if one.isdigit() else 0 for one in (total, used, broken)]
        found.append(Gpu(index, name, numbers[0], numbers[1], driver, numbers[2]))
    return found


def gpus(wanted: int | None) -> Iterator[Finding]:
    """``wanted`` GPUs on this node, where somebody said how many."""
    program = shutil.which(SMI)
    if program is None:
        missing = f"no {SMI} here"
        if wanted:
            yield no("GPUs", f"{missing}, and {wanted} are wanted", "Start the pod on a GPU node, with a GPU limit.")
        else:
            yield not_here("GPUs", missing)
        return
    done = subprocess.run(
        [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if done.returncode != 0:
        yield no("GPUs", f"{SMI}: {done.stdout or done.stderr}", "Replace the node: its driver does not answer.")
        return
    found = parse(done.stdout)
    told = "; ".join(sorted({f"{one.name}, {one.total:,} MiB, driver {one.driver}" for one in found}))
    if wanted is not None and len(found) != wanted:
        fix = "Make topology.workers.gpus the number that the instance type has."
        yield no("GPUs", f"{len(found)} here, {wanted} wanted: {told}", fix)
    else:
        yield ok("GPUs", f"{len(found)}: {told}" if found else "none on this node")
    for one in found:
        if one.broken:
            fix = "Replace the node (BatchReplaceClusterNodes)."
            yield no(f"GPU {one.index}", f"{one.broken} uncorrected memory errors", fix)
        if one.used > BUSY_MIB:
            fix = "Something else uses it; a run's engine takes most of a GPU's memory."
            yield no(f"GPU {one.index}", f"{one.used:,} MiB are in use", fix, temporary=True)


def nccl(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """NCCL's version and interfaces, and a sum over two GPUs that is checked."""
    if find_spec("torch") is None:
        yield not_here("NCCL", "no torch here")
        return
    import torch

    named = [f"{name}={environment[name]}" for name in INTERFACES if name in environment]
    there = ", ".join(name for _, name in socket.if_nameindex())
    yield ok("network", f"interfaces {there}; {', '.join(named) or 'NCCL chooses among them'}")
    if not torch.cuda.is_available():
        yield not_here("NCCL", f"torch {torch.__version__} sees no GPU here")
        return
    release: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # untyped there
    yield ok("NCCL", ".".join(map(str, release)))
    count = torch.cuda.device_count()
    if count < 2:
        yield not_here("all-reduce", f"needs two GPUs of a node, {count} here")
        return
    yield all_reduce("nccl")


def all_reduce(backend: str, seconds: float = TALK_SECONDS) -> Finding:
    """Two processes add up what each has. They are processes of their own: a hang in NCCL cannot be interrupted."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        command = [sys.executable, "-m", "training_job.doctor.allreduce", backend, str(Path(folder) / "meet")]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in (0, 1)
        ]
        try:
            said = [rank.communicate(timeout=seconds) for rank in ranks]
        except subprocess.TimeoutExpired:
            fix = "Set NCCL_DEBUG=INFO and try again; look at NCCL_SOCKET_IFNAME and at the node's fabric."
            return no("all-reduce", f"no end within {seconds:g} s", fix)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
    failed = [errors.strip().splitlines()[-1:] for _, errors in said if errors.strip()]
    if any(rank.returncode for rank in ranks):
        last = failed[0][0] if failed else "no word"
        return no("all-reduce", f"two processes over {backend}: {last}", "Set NCCL_DEBUG=INFO and try again.")
    return ok("all-reduce", f"two processes over {backend}: {said[0][0].strip()}")
