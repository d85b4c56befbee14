"""What an exception does not say, the logs do: texts as vLLM, NCCL and the kernel write them into SkyRL's infra log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import ray.exceptions

from nightshift.contract.job import OutcomeCause
from tests.job.test_causes import ACTOR_DIED, CUDA_OOM
from training_job.tails import MAX_LINE, TAIL_BYTES, explained

ENGINE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
NOT_HEALTHY = TimeoutError("Server failed to become healthy within 600s")
DIED = ray.exceptions.ActorDiedError()
HARMLESS = (
    "\x1b[32m2026-11-30 03:12:01.120\x1b[0m | \x1b[1mINFO    \x1b[0m | vllm:config - gpu_memory_utilization=0.45\n"
    "(EngineCore pid=1) WARNING 11-30 03:12:02 [utils.py:1] NCCL error may follow if P2P is off\n"
    "[rank0]:[W1130 03:12:03.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called\n"
)
LINES = [
    (f"torch.OutOfMemoryError: {CUDA_OOM}", OutcomeCause.GPU_OUT_OF_MEMORY),
    (
        "(EngineCore pid=77) ERROR 11-30 03:12:09 [core.py:708] ValueError: Free memory on device (40.1/94.97 GiB) on startup "
        "is less than desired GPU memory utilization (0.45, 42.74 GiB).",
        OutcomeCause.GPU_OUT_OF_MEMORY,
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
        OutcomeCause.BAD_CONFIGURATION,
    ),
    (
        "[rank3]:[E1130 03:22:09.1 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=8211, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out.",
        OutcomeCause.NCCL_FAILURE,
    ),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", OutcomeCause.GPU_FAILED),
    ("OSError: [Errno 28] No space left on device: '/shared/runs/x/lora_sync'", OutcomeCause.STORAGE_FULL),
]


def infra(folder: Path, text: str, name: str = "infra-261130_031200.log") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("error", [ENGINE, NOT_HEALTHY, DIED, RuntimeError(ACTOR_DIED)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(("line", "cause"), LINES, ids=[str(cause) for _, cause in LINES])
def test_the_root_cause_is_read_from_the_infra_log_and_its_line_is_told(
    error: Exception, line: str, cause: OutcomeCause, tmp_path: Path
) -> None:
    logs = infra(tmp_path / "logs", f"{HARMLESS}Traceback (most recent call last):\n{line}\n{HARMLESS}")
    told = explained(error, logs, 0.0, tmp_path / "no-ray")
    assert told.outcome is cause
    assert line[:60] in str(told) and "infra-261130_031200.log" in str(told)


def test_the_cause_nearest_to_the_root_wins_over_what_followed_from_it(tmp_path: Path) -> None:
    followed = f"{LINES[3][0]}\nEngineDeadError: EngineCore encountered an issue.\n"
    logs = infra(tmp_path / "logs", f"{followed}{LINES[0][0]}\n{followed}")
    assert explained(ENGINE, logs, 0.0, tmp_path).outcome is OutcomeCause.GPU_OUT_OF_MEMORY
    nccl = RuntimeError("NCCL error in: NCCLUtils.cpp:94, remote process exited")
    assert explained(nccl, logs, 0.0, tmp_path).outcome is OutcomeCause.GPU_OUT_OF_MEMORY


def test_what_a_rays_worker_wrote_before_its_output_went_to_the_infra_log_is_found_too(tmp_path: Path) -> None:
    logs = infra(tmp_path / "ray", f"{LINES[4][0]}\n", "worker-5f-01000000-2211.err")
    assert explained(DIED, tmp_path / "nowhere", 0.0, logs).outcome is OutcomeCause.GPU_FAILED


@pytest.mark.parametrize("text", ["", HARMLESS, "Traceback\nValueError: shapes do not match\n"])
def test_logs_without_a_sign_leave_the_exceptions_own_word(text: str, tmp_path: Path) -> None:
    logs = infra(tmp_path / "logs", text)
    assert explained(ENGINE, logs, 0.0, tmp_path).outcome is OutcomeCause.ENGINE_FAILURE
    assert explained(DIED, logs, 0.0, tmp_path).outcome is OutcomeCause.WORKER_LOST
    assert explained(ENGINE, tmp_path / "nowhere", 0.0, tmp_path / "neither").outcome is OutcomeCause.ENGINE_FAILURE


def test_what_the_job_knows_for_sure_no_log_can_explain_away(tmp_path: Path) -> None:
    logs = infra(tmp_path / "logs", f"{LINES[0][0]}\n")
    assert explained(ValueError("my reward is wrong"), logs, 0.0, tmp_path).outcome is OutcomeCause.CODE_ERROR
    full = OSError(28, "No space left on device")
    assert explained(full, logs, 0.0, tmp_path).outcome is OutcomeCause.STORAGE_FULL


def test_the_log_of_an_earlier_attempt_explains_nothing(tmp_path: Path) -> None:
    logs = infra(tmp_path / "logs", f"{LINES[0][0]}\n", "infra-261129_000000.log")
    long_ago = time.time() - 3_600
    os.utime(logs / "infra-261129_000000.log", (long_ago, long_ago))
    assert explained(ENGINE, logs, time.time() - 600, tmp_path).outcome is OutcomeCause.ENGINE_FAILURE
    infra(logs, f"{LINES[4][0]}\n")
    assert explained(ENGINE, logs, time.time() - 600, tmp_path).outcome is OutcomeCause.GPU_FAILED


def test_a_huge_log_is_read_at_its_end_and_a_huge_line_is_cut(tmp_path: Path) -> None:
    padding = "x" * 100 + "\n"
    logs = infra(tmp_path / "logs", f"{LINES[4][0]}\n{padding * (TAIL_BYTES // 50)}{LINES[0][0]}{'y' * 5_000}\n")
    told = explained(ENGINE, logs, 0.0, tmp_path)
    assert told.outcome is OutcomeCause.GPU_OUT_OF_MEMORY
    assert len(str(told)) < MAX_LINE + 1_000
