"""What the job's wrapper costs: ``python bench/job.py progress|guard|steps``, called by hand.

``progress`` and ``guard`` run in .venv, ``steps`` in .venv-skyrl (``make test-skyrl`` makes it), with PYTHONPATH=functions:. and
nothing else busy. Each prints one JSON object; docs/benchmarks.md has what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GPU_STEP_SECONDS = 8.3
"""The shortest real step: bench/gpu/results, a model of 3.9 million parameters on one H200. An 8B model's takes longer."""


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and longest, in milliseconds."""
    rising = sorted(1_000 * one for one in seconds)
    return {
        "median_ms": round(statistics.median(rising), 3),
        "p95_ms": round(rising[min(len(rising) - 1, int(0.95 * len(rising)))], 3),
        "max_ms": round(rising[-1], 3),
        "of": len(rising),
    }


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# progress -----------------------------------------------------------------------------------------------------------


@contextmanager
def moto() -> Iterator[str]:
    """An S3 endpoint in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def progress(writes: int) -> dict[str, Any]:
    """One write of progress.json, and ``report()`` beside a storage that answers, hangs, or refuses."""
    import boto3

    from tests.job.memory import MemoryStore
    from training_job.job import first_progress
    from training_job.progress import ProgressReporter
    from training_job.store import S3Store

    class Hanging(MemoryStore):
        def put(self, key: str, content: bytes) -> None:
            time.sleep(2)

    class Refusing(MemoryStore):
        def put(self, key: str, content: bytes) -> None:
            raise OSError("no storage")

    def reports(store: Any) -> dict[str, float]:
        reporter = ProgressReporter(store, first, warn=lambda _: None)
        taken = [timed(lambda step=step: reporter.report(step=step)) for step in range(2_000)]  # type: ignore[misc]
        reporter.close(0.1)
        return spread(taken)

    first = first_progress("bench", 1, 10_000, 0)
    with moto() as endpoint:
        os.environ.update(
            AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1"
        )
        boto3.client("s3").create_bucket(Bucket="bench")
        store, body = S3Store("bench"), first.to_json().encode()
        store.put("runs/bench/warm", body)
        taken = [timed(lambda: store.put("runs/bench/attempts/1/progress.json", body)) for _ in range(writes)]
        answering = reports(store)
    return {
        "one write": spread(taken) | {"bytes": len(body)},
        "report(), S3 answers": answering,
        "report(), S3 hangs": reports(Hanging()),
        "report(), S3 refuses": reports(Refusing()),
    }


# guard --------------------------------------------------------------------------------------------------------------


def shards(folder: Path, ranks: int, megabytes: int) -> int:
    """A checkpoint in SkyRL's layout, three shards a rank; bytes written."""
    from training_job.checkpoints import PARTS, part_file

    policy = folder / "policy"
    (policy / "huggingface").mkdir(parents=True)
    (policy / "lora_adapter").mkdir()
    block = os.urandom(1_000_000)
    archives = [policy / part_file(part, ranks, rank) for part in PARTS for rank in range(ranks)]
    for path in archives:
        _archive(path, block, megabytes)
    for path in (folder / "trainer_state.pt", folder / "data.pt"):
        _archive(path, block[:1_000], 1)
    for path in (
        policy / "fsdp_config.json",
        policy / "huggingface/config.json",
        policy / "lora_adapter/adapter_config.json",
    ):
        path.write_text("{}")
    head = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (policy / "lora_adapter/adapter_model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _archive(path: Path, block: bytes, blocks: int) -> None:
    """What torch.save writes: a zip that is only stored, with a CRC for each part."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number in range(blocks):
            archive.writestr(f"archive/data/{number}", block)


def guard(checkpoints: int, ranks: int, megabytes: int) -> dict[str, Any]:
    """The guard over so many checkpoints: all whole, with and without its records, and with only the oldest one whole."""
    from nightshift.contract import SharedPaths
    from training_job.checkpoints import write_pointer
    from training_job.guard import repair
    from training_job.records import drop_record, keep_record

    with tempfile.TemporaryDirectory() as made:
        paths = SharedPaths("bench", Path(made))
        steps = [20 * (number + 1) for number in range(checkpoints)]
        size = shards(paths.checkpoint(steps[0]), ranks, megabytes)
        for step in steps[1:]:
            shutil.copytree(paths.checkpoint(steps[0]), paths.checkpoint(step))
        write_pointer(paths, steps[-1])
        unrecorded = timed(lambda: repair(paths, 0, 2))
        recording = timed(lambda: [keep_record(paths.checkpoint(step)) for step in steps]) / checkpoints
        recorded = timed(lambda: repair(paths, 0, 2))
        for step in steps[1:]:
            torn = paths.checkpoint(step) / "policy" / f"model_world_size_{ranks}_rank_{ranks - 1}.pt"
            os.truncate(torn, torn.stat().st_size - 100)
        all_but_one = timed(lambda: repair(paths, 0, 3))
        drop_record(paths.checkpoint(steps[0]))
        last = timed(lambda: repair(paths, 0, 4))
    return {
        "checkpoints": checkpoints,
        "shards": 3 * ranks,
        "megabytes a checkpoint": round(size / 1e6),
        "seconds, all whole, no record": round(unrecorded, 3),
        "seconds to record one": round(recording, 3),
        "seconds, all whole, recorded": round(recorded, 3),
        "seconds, all torn but the oldest": round(all_but_one, 3),
        "seconds to read the last one to its last byte": round(last, 3),
    }


# steps --------------------------------------------------------------------------------------------------------------


def steps(count: int) -> dict[str, Any]:
    """Our callbacks in SkyRL's real loop on this CPU, by call: what they add to a step of any length."""
    import tests.skyrl.older_python  # noqa: F401
    from tests.job.memory import MemoryStore
    from tests.skyrl import rig as rigs

    taken: dict[str, list[float]] = defaultdict(list)

    class Timed(rigs.Results):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("_") or not callable(found):
                return found

            def call(*args: Any, **given: Any) -> Any:
                began = time.perf_counter()
                try:
                    return found(*args, **given)
                finally:
                    taken[name].append(time.perf_counter() - began)

            return call

    rigs.Results = Timed  # type: ignore[misc]
    from skyrl.train import trainer as skyrl_trainer

    skyrl_trainer.run_on_each_node = lambda nodes, call, *given: call(*given)  # type: ignore[assignment]
    spec = rigs.tiny(total_steps=count, ckpt_interval=10, hf_save_interval=10, eval_interval=10)
    with tempfile.TemporaryDirectory() as made:
        rig = rigs.Rig(spec, Path(made), MemoryStore())
        whole = timed(rig.train)
    every = ("enter", "stepped", "pending")
    plain = sum(sum(taken[name]) for name in every) / count
    calls = {name: spread(one) for name, one in sorted(taken.items())}
    return {
        "steps": count,
        "seconds of the whole loop": round(whole, 2),
        "calls": calls,
        "milliseconds a step": round(1_000 * plain, 3),
        "share of a step of 8.3 s": f"{plain / GPU_STEP_SECONDS:.4%}",
        "share of a step of 60 s": f"{plain / 60:.4%}",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["progress", "guard", "steps"])
    parser.add_argument("--count", type=int, default=200, help="writes, or steps")
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=4, help="a shard")
    given = parser.parse_args()
    if given.what == "progress":
        found = progress(given.count)
    elif given.what == "guard":
        found = guard(given.checkpoints, given.ranks, given.megabytes)
    else:
        found = steps(given.count)
    print(json.dumps({given.what: found}, indent=1))
