"""What a job writes: progress.json, exports and outcome.json."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum, StrEnum

from pydantic import Field

from nightshift.contract.base import Document, ExternalText, Model, Sha256
from nightshift.contract.evals import EvalSummary
from nightshift.contract.spec import SmallerValues


class Phase(StrEnum):
    """Where a job is."""

    SETUP = "setup"
    DOWNLOAD = "download"
    GENERATE = "generate"
    TRAIN = "train"
    EVAL = "eval"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    DONE = "done"


class ExitCode(IntEnum):
    """Exit codes of ``python -m training_job``, after sysexits."""

    OK = 0
    USAGE = 64
    BAD_DATA = 65
    SOFTWARE = 70
    TEMPORARY = 75


class OutcomeCause(StrEnum):
    """Why the job itself thinks that it ended. The controller decides the end cause with more evidence."""

    FINISHED = "finished"
    TARGET_REACHED = "target_reached"
    PLATEAU = "plateau"
    STOPPED_ON_REQUEST = "stopped_on_request"
    WORKER_LOST = "worker_lost"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    GPU_FAILED = "gpu_failed"
    NCCL_FAILURE = "nccl_failure"
    ENGINE_FAILURE = "engine_failure"
    CREDENTIALS_EXPIRED = "credentials_expired"
    STORAGE_FULL = "storage_full"
    STORAGE_UNREACHABLE = "storage_unreachable"
    BAD_CONFIGURATION = "bad_configuration"
    CHECKPOINT_UNUSABLE = "checkpoint_unusable"
    CODE_ERROR = "code_error"

    @property
    def is_success(self) -> bool:
        """The job did what was asked for: to the end, to the target, or to where it stopped getting better."""
        return self is OutcomeCause.FINISHED or self.is_early

    @property
    def is_early(self) -> bool:
        """Success before the last step: the evals must bear it out."""
        return self in (OutcomeCause.TARGET_REACHED, OutcomeCause.PLATEAU)


class FileDigest(Model):
    """A file's size in bytes and its SHA-256, computed by its writer."""

    sha256: Sha256
    size: int = Field(ge=0)


class ExportRecord(Document):
    """A verified HF adapter export that was uploaded to S3; written after its files, as ``export.json`` beside them."""

    run_id: str
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    files: dict[str, FileDigest]
    lora_b_nonzero: int
    lora_b_total: int
    base_licence: str | None = Field(None, max_length=100, description="as the base model's own files name it")
    at: datetime


class GuardReport(Document):
    """What the guard found and did before the trainer started."""

    floor: int = Field(ge=0)
    pointer_before: int | None = None
    resumed_step: int = Field(ge=0)
    checked: list[int] = []
    quarantined: list[str] = []
    repaired_pointer: bool = False
    notes: list[ExternalText] = []


class Download(Model):
    """Files that are being brought to the shared mount, in bytes."""

    done: int = Field(ge=0)
    total: int = Field(ge=0)
    since: datetime


class Progress(Document):
    """Rewritten after every phase change and step; small, and replaced as a whole."""

    run_id: str
    attempt: int = Field(ge=1)
    phase: Phase
    step: int = Field(ge=0)
    total_steps: int = Field(ge=1)
    resumed_step: int | None = None
    saved_step: int = Field(ge=0, description="the last step verified after its save; 0 before the first")
    reward: float | None = None
    success: float | None = None
    step_seconds: float | None = None
    rollouts_per_second: float | None = Field(None, description="finished rollouts a second of generation, last step")
    tokens_per_second: float | None = Field(None, description="generated tokens a second of generation, last step")
    eta_seconds: float | None = Field(None, description="to the end of the run, evals and saves included")
    acknowledged: int = Field(0, ge=0, description="highest Control.seq that was carried out")
    guard: GuardReport | None = Field(None, description="what the guard found, from the moment when it was done")
    download: Download | None = Field(None, description="in phase download")
    phase_seconds: dict[str, float] = Field({}, description="that this attempt has spent in each phase so far")
    at: datetime


class Outcome(Document):
    """outcome.json: written once, as the job's last act. Its arrival in S3 is a signal."""

    run_id: str
    attempt: int = Field(ge=1)
    cause: OutcomeCause
    message: ExternalText
    step: int = Field(ge=0)
    total_steps: int = Field(ge=1)
    resumed_step: int | None = None
    saved_step: int = Field(ge=0)
    exit_code: int
    guard: GuardReport | None = None
    smaller: SmallerValues | None = Field(None, description="the spec's smaller values, where it trained with them")
    model: str | None = Field(None, description="address of the base model, its revision resolved to a commit")
    evals: list[EvalSummary] = []
    final_export: ExportRecord | None = None
    at: datetime
