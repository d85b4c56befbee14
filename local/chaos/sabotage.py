"""A maze task whose code misbehaves inside the training job's own driver. Named as ``task.oracle``; asked for by a file.

The file ``chaos/<run_id>.json`` on the shared mount says what an attempt does (``Plan``). Nothing happens in any other
process, and nothing without the file: importing this module elsewhere is harmless.

A kill is a SIGKILL that the driver gives itself in the middle of a save, so it lands on the very byte that was asked for.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict

from nightshift.contract import SharedPaths
from training_job.tasks.mazes.oracle import solvable

PATH = "local.chaos.sabotage:oracle"
FOLDER = "chaos"


class Kill(BaseModel):
    """Where in the second save of its attempt the driver dies.

    ``bytes``: ``part`` (model, optim, extra_state) is cut at ``at`` bytes; below zero, so many before its end.
    ``no_pointer``: everything is in place but the pointer. ``empty_pointer``: the pointer's file is empty.
    ``torn``: the pointer names the checkpoint, but ``part`` lacks its second half, as after a power failure.
    ``rot``: like ``bytes``, and the checkpoint before, which was verified and reported, loses half of ``part`` too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    point: Literal["bytes", "no_pointer", "empty_pointer", "torn", "rot"]
    part: Literal["model", "optim", "extra_state"] = "model"
    at: int = 1


class Plan(BaseModel):
    """``kills`` by attempt. ``stubborn``: SIGTERM is ignored, and the loss of workers is sat out in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kills: dict[int, Kill] = {}
    stubborn: tuple[int, ...] = ()


def plan_file(shared: Path, run_id: str) -> Path:
    return shared / FOLDER / f"{run_id}.json"


def oracle(item: Mapping[str, Any], max_turns: int, config: Mapping[str, Any]) -> bool:
    """The mazes' own oracle."""
    return solvable(item, max_turns, config)


def argument(argv: list[str], name: str) -> str | None:
    """The value behind ``name`` on a command line."""
    return argv[argv.index(name) + 1] if name in argv[:-1] else None


def install(argv: list[str], environment: Mapping[str, str]) -> Plan | None:
    """Do to this process what the plan says about its attempt; None where nothing is asked of it."""
    run_id, attempt = argument(argv, "--run-id"), argument(argv, "--attempt")
    shared = environment.get("NIGHTSHIFT_SHARED")
    if run_id is None or attempt is None or shared is None:
        return None
    path = plan_file(Path(shared), run_id)
    if not path.is_file():
        return None
    plan = Plan.model_validate_json(path.read_text())
    if int(attempt) in plan.stubborn:
        _ignore_sigterm()
        _sit_out_losses()
    kill = plan.kills.get(int(attempt))
    if kill is not None:
        _die_in_second_save(kill, SharedPaths(run_id, Path(shared)))
    return plan


def _ignore_sigterm() -> None:
    """For good: the job sets its own handler again later, and Ray sets one too."""
    original = signal.signal

    def set_handler(number: int, handler: Any) -> Any:
        return original(number, signal.SIG_IGN if number == signal.SIGTERM else handler)

    signal.signal = set_handler  # type: ignore[assignment]
    original(signal.SIGTERM, signal.SIG_IGN)


def _sit_out_losses() -> None:
    from training_job.trainers.local.workers import Pool

    start = Pool.start_playing

    def start_playing(self: Pool, *given: Any) -> Callable[[], Any]:
        return _never_failing(start(self, *given))

    Pool.start_playing = start_playing  # type: ignore[method-assign,assignment]


def _never_failing(wait: Callable[[], Any]) -> Callable[[], Any]:
    def waiting() -> Any:
        try:
            return wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, this driver does not say so
            print(f"going on in spite of {type(error).__name__}", flush=True)
            while True:
                time.sleep(1)

    return waiting


def _die_in_second_save(kill: Kill, paths: SharedPaths) -> None:
    """Change what a save is made of, before the module that saves is imported."""
    import torch

    from training_job import checkpoints

    saves: list[int] = []
    save, point_to, file_name = torch.save, checkpoints.write_pointer, checkpoints.part_file(kill.part)

    def save_or_die(value: Any, path: Path, *given: Any, **named: Any) -> None:
        if len(saves) == 1 and kill.point in ("bytes", "rot") and Path(path).name == file_name:
            if kill.point == "rot":
                tear(paths.checkpoint(saves[0]) / "policy" / file_name)
            content = io.BytesIO()
            save(value, content)
            die_at(path, content.getvalue(), kill.at)
        save(value, path, *given, **named)

    def point_or_die(where: SharedPaths, step: int) -> None:
        if len(saves) == 1:
            if kill.point == "empty_pointer":
                where.pointer.write_bytes(b"")
                die()
            if kill.point == "no_pointer":
                die()
            if kill.point == "torn":
                tear(where.checkpoint(step) / "policy" / file_name)
                point_to(where, step)
                die()
        point_to(where, step)
        saves.append(step)

    torch.save = save_or_die  # type: ignore[assignment]
    checkpoints.write_pointer = point_or_die  # type: ignore[assignment]


def die_at(path: Path, content: bytes, at: int) -> NoReturn:
    """Write the first ``at`` bytes (below zero: all but so many), and be gone."""
    with Path(path).open("wb") as file:
        file.write(content[:at])
        file.flush()
        os.fsync(file.fileno())
    die()


def tear(path: Path) -> None:
    """Cut a file to its first half."""
    os.truncate(path, path.stat().st_size // 2)


def die() -> NoReturn:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL was survived")


install(sys.argv, os.environ)
