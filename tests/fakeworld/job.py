"""One Ray job that trains, saves and publishes honestly until it ends, stands still or dies.

Gaps: checkpoints on /shared are whole or absent, and the fake guard never rolls back below its floor; a job's uploads are never
half there, and never bad (``tests/garbage`` has those); a job that a thawed host gives back does no step more once its pod was
told to go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nightshift.contract.control import ControlCommand
from nightshift.contract.evals import EvalSet, EvalSummary
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, OutcomeCause, Phase, Progress
from nightshift.contract.layout import RunKeys
from nightshift.core.observation import JobState

if TYPE_CHECKING:
    from tests.fakeworld.cluster import Fleet, Pod, RayCluster

ADAPTER = {name: f"bytes of {name}".encode() for name in ("adapter_config.json", "adapter_model.safetensors")}
ADAPTER_DIGESTS = {n: FileDigest(sha256=hashlib.sha256(b).hexdigest(), size=len(b)) for n, b in ADAPTER.items()}
ROWS = b"rows"
ROWS_SHA = hashlib.sha256(ROWS).hexdigest()
LIVE = (JobState.PENDING, JobState.RUNNING)
DEATHS = (
    OutcomeCause.WORKER_LOST,
    OutcomeCause.ENGINE_FAILURE,
    OutcomeCause.NCCL_FAILURE,
    OutcomeCause.CREDENTIALS_EXPIRED,
    OutcomeCause.STORAGE_UNREACHABLE,
)
NODE_FAULTS = (OutcomeCause.GPU_FAILED, OutcomeCause.NCCL_FAILURE, OutcomeCause.ENGINE_FAILURE)


@dataclass(frozen=True)
class JobFaults:
    """Chances: of a step, of a save, of a start, of an end, of a stop that is ignored. ``poison_step`` ends every attempt that
    reaches it; ``too_large`` runs the GPUs out of memory, also with smaller values where ``always_too_large``."""

    dies: float = 0.0
    dies_in_save: float = 0.0
    hangs: float = 0.0
    mute: float = 0.0
    stalls_in_save: float = 0.0
    silent_start: float = 0.0
    lies_at_end: float = 0.0
    ignores_stop: float = 0.0
    lingers: float = 0.0
    too_large: float = 0.0
    always_too_large: bool = False
    poison_step: int = 0
    poison: OutcomeCause = OutcomeCause.CODE_ERROR


class Job:
    """``frozen``: its host stands still. ``stuck``: it never moves again. ``mute``: it works and cannot say so."""

    def __init__(self, world: Fleet, cluster: RayCluster, head: Pod, words: list[str], submission_id: str) -> None:
        self.world, self.cluster, self.head, self.id = world, cluster, head, submission_id
        self.n, self.floor = (int(words[words.index(f"--{name}") + 1]) for name in ("attempt", "floor"))
        self.smaller = "--smaller" in words
        self.run_id, self.spec, self.faults = cluster.spec.run_id, cluster.spec, world.job_faults
        self.state, self.message, self.gone = JobState.PENDING, "", False
        self.frozen = self.stuck = self.mute = self.evicted = self.proved = self.hurt = False
        self.step, self.saved, self.resumed, self.acknowledged = self.floor, self.floor, -1, 0
        self.reported, self.actors_until, self.lingers_until = self.floor, 0.0, 0.0
        self.lingers_in: Pod | None = None
        self.cause: OutcomeCause | None = None
        self.began, self.silent_since = world.loop.time, 0.0
        self._after: Callable[[], Any] | None = None
        self._go(world.loop.rng.uniform(1, 15), self._start)

    @property
    def lives(self) -> bool:
        return self.state in LIVE and not self.gone

    def holds(self, pod: Pod) -> bool:
        """A process of it that is dead in Ray's books still sits on the pod's GPU."""
        return (
            pod is self.lingers_in and self.lingers_until > self.world.loop.time and pod.gone_at > self.world.loop.time
        )

    @property
    def log(self) -> str:
        """The driver's log goes on as long as the job does something."""
        last = self.silent_since if self.silent_since else self.world.loop.time
        return f"log of {self.id} up to {last:.0f}"

    def chance(self, share: float) -> bool:
        return share > 0 and self.world.loop.rng.random() < share

    def _go(self, delay: float, call: Callable[[], Any]) -> None:
        def due() -> None:
            if self.frozen:
                self._after = call
            elif self.lives and not self.stuck:
                call()

        self.world.loop.at(delay, due)

    def freeze(self) -> None:
        if self.lives:
            self.frozen, self.silent_since = True, self.silent_since or self.world.loop.time

    def thaw(self) -> None:
        if self.frozen and self.lives and not self.head.terminating:
            self.frozen, call, self._after = False, self._after, None
            self.silent_since = self.world.loop.time if self.stuck else 0.0
            if call is not None:
                self._go(0.1, call)

    def _stand_still(self, silent: bool = True) -> None:
        self.stuck = True
        self.silent_since = self.world.loop.time if silent else 0.0

    def _start(self) -> None:
        self.state = JobState.RUNNING
        if self.chance(self.faults.silent_start):
            return self._stand_still()
        self._tell(Phase.SETUP)
        return self._go(self.world.loop.rng.uniform(2, 20), self._resume)

    def _resume(self) -> None:
        newest = max(self.world.checkpoints.setdefault(self.run_id, {0}))
        if newest < self.floor:
            return self.end(OutcomeCause.CHECKPOINT_UNUSABLE, JobState.FAILED)
        self.step = self.saved = self.resumed = newest
        self.world.resumed(self)
        fits = self.smaller and not self.faults.always_too_large
        if not fits and self.chance(self.faults.too_large):
            return self.end(OutcomeCause.GPU_OUT_OF_MEMORY, JobState.FAILED, "CUDA out of memory")
        if newest == 0:
            self._eval()
        if self.step >= self.spec.training.total_steps:  # only the proof is missing
            self._tell(Phase.EVAL)
            return self._go(self.world.loop.rng.uniform(20, 90), self._prove)
        return self._next()

    def _prove(self) -> None:
        if self.chance(self.faults.dies):
            return self.end(None, JobState.FAILED)
        self._eval()
        self._export()
        return self._finish()

    def _next(self) -> None:
        self._tell(Phase.GENERATE)
        self._go(self.world.loop.rng.uniform(20, 90), self._stepped)

    def _stepped(self) -> None:
        if self._breaks():
            return None
        self.step += 1
        training = self.spec.training
        last = self.step >= training.total_steps
        asked = self.world.bucket.asked(self.run_id)
        command = asked.command if asked is not None and asked.seq > self.acknowledged else None
        if (last or command or self.step % training.ckpt_interval == 0) and not self._save():
            return None
        if asked is not None:
            self.acknowledged = asked.seq
        if last or self.step % training.eval_interval == 0:
            self._eval()
        if last or self.step % training.hf_save_interval == 0:
            self._export()
        if last:
            return self._finish()
        if command is ControlCommand.STOP_AFTER_CHECKPOINT:
            return self.end(OutcomeCause.STOPPED_ON_REQUEST, JobState.FAILED)
        return self._next()

    def _breaks(self) -> bool:
        """A step's own faults, and those of the nodes under it."""
        faults, rng = self.faults, self.world.loop.rng
        cursed = next((p for p in self.cluster.pods if p.node is not None and p.node.curse > 0), None)
        if cursed is not None and cursed.node is not None and self.chance(cursed.node.curse):
            self.end(rng.choice(NODE_FAULTS), JobState.FAILED, f"the worker on node {cursed.name} failed")
        elif faults.poison_step and self.step + 1 == faults.poison_step:
            self.end(faults.poison, JobState.FAILED, "the same as before")
        elif self.chance(faults.dies):
            self.end(rng.choice(DEATHS) if rng.random() < 0.5 else None, JobState.FAILED)
        elif self.chance(faults.hangs):
            self._stand_still()
        else:
            self.mute = self.mute or self.chance(faults.mute)
            return False
        return True

    def _save(self) -> bool:
        """False where the job does not come back from it."""
        if self.world.storage_full:
            self.end(OutcomeCause.STORAGE_FULL, JobState.FAILED, "no space is left")
            return False
        if self.chance(self.faults.stalls_in_save):
            self._tell(Phase.CHECKPOINT)
            self._stand_still(silent=False)
            return False
        self.world.checkpoints[self.run_id].add(self.step)
        if self.chance(self.faults.dies_in_save):
            self.end(None, JobState.FAILED)
            return False
        self.saved = self.step
        return True

    def _finish(self) -> None:
        self.proved = True
        if self.chance(self.faults.lies_at_end):
            # everything is there, but the job says that it failed, and its word is taken
            return self.end(OutcomeCause.WORKER_LOST, JobState.FAILED)
        return self.end(OutcomeCause.FINISHED, JobState.SUCCEEDED)

    def end(self, cause: OutcomeCause | None, state: JobState, message: str = "died") -> None:
        """The process is over; with a cause it still wrote its outcome."""
        if not self.lives or self.frozen:
            return
        loop = self.world.loop
        if cause is not None and not self.mute:
            self._store(RunKeys(self.run_id).outcome(self.n), Outcome(
                run_id=self.run_id, attempt=self.n, cause=cause, message=message, step=self.step,
                total_steps=self.spec.training.total_steps, resumed_step=max(self.resumed, 0), saved_step=self.saved,
                exit_code=0 if cause.is_success else 75, at=loop.now(),
            ))  # fmt: skip
            self.reported = max(self.reported, self.saved)
            self.cause = cause
            self.world.outcome_written(self.run_id, self.n)
        self.state, self.message, self.silent_since = state, message, loop.time
        self.actors_until = loop.time + loop.rng.uniform(0, 8)
        if self.chance(self.faults.lingers):
            workers = [p for p in self.cluster.pods if not p.is_head and p.ready_at <= loop.time]
            self.lingers_in = workers[0] if workers else None
            self.lingers_until = loop.time + loop.rng.choice((20.0, 400.0, 20_000.0))

    def _store(self, key: str, thing: Any) -> None:
        self.world.bucket.store(self.run_id, key, thing)

    def _tell(self, phase: Phase) -> None:
        if self.mute:
            return
        self.reported = max(self.reported, self.saved)
        self._store(RunKeys(self.run_id).progress(self.n), Progress(
            run_id=self.run_id, attempt=self.n, phase=phase, step=self.step,
            total_steps=self.spec.training.total_steps, resumed_step=None if self.resumed < 0 else self.resumed,
            saved_step=self.saved, acknowledged=self.acknowledged, at=self.world.loop.now(),
        ))  # fmt: skip

    def _eval(self) -> None:
        keys = RunKeys(self.run_id)
        self._store(keys.eval_rows(self.n, self.step, EvalSet.FIXED), ROWS)
        self._store(keys.eval_summary(self.n, self.step, EvalSet.FIXED), EvalSummary(
            run_id=self.run_id, attempt=self.n, step=self.step, eval_set=EvalSet.FIXED, solved=min(32 + self.step, 64), of=64,
            low=0.1, high=0.9, avg_score=0.5, pass_at_1=0.5, rows_sha256=ROWS_SHA, at=self.world.loop.now(),
        ))  # fmt: skip

    def _export(self) -> None:
        keys = RunKeys(self.run_id)
        for name, body in ADAPTER.items():
            self._store(f"{keys.export(self.n, self.step)}{name}", body)
        self._store(keys.export_record(self.n, self.step), ExportRecord(
            run_id=self.run_id, attempt=self.n, step=self.step, files=ADAPTER_DIGESTS, lora_b_nonzero=5,
            lora_b_total=5, at=self.world.loop.now(),
        ))  # fmt: skip
