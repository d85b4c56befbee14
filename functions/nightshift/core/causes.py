"""Why an attempt ended, what follows from it, and how to say it to a person."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift.contract.job import OutcomeCause


class Action(StrEnum):
    """What the controller does about an end cause: RECOVER spends a recovery, WAIT goes on when what is missing comes
    back and spends none, ASK waits for a person's answer (``budgets.ask_hours``) and then gives up."""

    DONE = "done"
    RECOVER = "recover"
    WAIT = "wait"
    ASK = "ask"
    GIVE_UP = "give_up"


class EndCause(StrEnum):
    """Closed: an attempt ends for exactly one of these."""

    FINISHED = "finished"
    NODE_REPLACED = "node_replaced"
    NODE_LOST = "node_lost"
    HEAD_LOST = "head_lost"
    START_DEADLINE = "start_deadline"
    HUNG = "hung"
    PROGRESS_UNWRITABLE = "progress_unwritable"
    WORKER_FAILED = "worker_failed"
    EVIDENCE_MISSING = "evidence_missing"
    STORAGE_UNREACHABLE = "storage_unreachable"
    CREDENTIALS_EXPIRED = "credentials_expired"
    ENGINE_FAILURE = "engine_failure"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    STORAGE_FULL = "storage_full"
    BAD_IMAGE = "bad_image"
    BAD_CONFIGURATION = "bad_configuration"
    CHECKPOINT_UNUSABLE = "checkpoint_unusable"
    CODE_ERROR = "code_error"
    CAPACITY_MISSING = "capacity_missing"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    BUDGET_SPENT = "budget_spent"
    CONTROLLER_FAULT = "controller_fault"


@dataclass(frozen=True)
class CausePolicy:
    """``sentence`` is for a person who has just been woken up: what happened, and what to do where something is."""

    action: Action
    sentence: str


_R, _G = Action.RECOVER, Action.GIVE_UP

POLICIES: dict[EndCause, CausePolicy] = {
    EndCause.FINISHED: CausePolicy(Action.DONE, "The training ran to its end."),
    EndCause.NODE_REPLACED: CausePolicy(
        _R, "HyperPod replaced a node under the run; it goes on from the last checkpoint."
    ),
    EndCause.NODE_LOST: CausePolicy(_R, "A node went away without an event; the run goes on from the last checkpoint."),
    EndCause.HEAD_LOST: CausePolicy(
        _R, "The Ray head was lost and with it the job; the run goes on from the last checkpoint."
    ),
    EndCause.START_DEADLINE: CausePolicy(
        _R,
        "The job showed no sign of life within its start deadline; it is submitted again. If this repeats, look at the "
        "driver log in diagnostics/: image pulls and model downloads are the usual reasons.",
    ),
    EndCause.HUNG: CausePolicy(
        _R, "The job stood still: neither its progress nor its log moved. The run goes on from the last checkpoint."
    ),
    EndCause.PROGRESS_UNWRITABLE: CausePolicy(
        _R,
        "The job worked but could not write its progress to S3; the run goes on from the last checkpoint. If this "
        "repeats, look at the job role's permissions on the bucket.",
    ),
    EndCause.WORKER_FAILED: CausePolicy(_R, "A Ray worker process died; the run goes on from the last checkpoint."),
    EndCause.EVIDENCE_MISSING: CausePolicy(
        _R,
        "The job ended without the export or eval that proves its success; the run goes on from the last checkpoint.",
    ),
    EndCause.STORAGE_UNREACHABLE: CausePolicy(_R, "The shared filesystem could not be read; the run is started again."),
    EndCause.CREDENTIALS_EXPIRED: CausePolicy(
        _R, "The job's AWS credentials expired; the run goes on from the last checkpoint."
    ),
    EndCause.ENGINE_FAILURE: CausePolicy(
        _R, "NCCL or the inference engine failed; the run goes on from the last checkpoint."
    ),
    EndCause.GPU_OUT_OF_MEMORY: CausePolicy(
        _G, "A GPU ran out of memory. Lower training.gpu_memory_utilization or the micro batch sizes and start again."
    ),
    EndCause.STORAGE_FULL: CausePolicy(
        _G, "The shared filesystem is full. Make room under /shared and start the run again."
    ),
    EndCause.BAD_IMAGE: CausePolicy(
        _G, "The image cannot be pulled. Check that its digest exists and that the nodes may read it."
    ),
    EndCause.BAD_CONFIGURATION: CausePolicy(
        _G, "The job refused its configuration; the message names the field to change."
    ),
    EndCause.CHECKPOINT_UNUSABLE: CausePolicy(
        _G,
        "No checkpoint at or above the last verified step can be read. The broken ones are kept under quarantine/ on "
        "/shared; decide whether an older step is good enough.",
    ),
    EndCause.CODE_ERROR: CausePolicy(
        _G, "The task's or trainer's code raised an error; the message has its last lines."
    ),
    EndCause.CAPACITY_MISSING: CausePolicy(
        _G,
        "The HyperPod cluster does not have the nodes that the run asks for. Change topology, or the instance groups.",
    ),
    EndCause.STOPPED: CausePolicy(_R, "The job was stopped by something else than Nightshift; it is started again."),
    EndCause.CANCELLED: CausePolicy(_G, "The run was cancelled on request."),
    EndCause.BUDGET_SPENT: CausePolicy(_G, "A budget of the run is spent; raise it under budgets and start again."),
    EndCause.CONTROLLER_FAULT: CausePolicy(
        _G,
        "Nightshift itself failed; the checkpoints on /shared are kept. Start the run again under another id, and report "
        "this if it repeats.",
    ),
}
"""Every cause has a policy: a test walks the enum."""


def from_outcome(cause: OutcomeCause) -> EndCause:
    """The controller's first reading of what a job says about itself; a lost node may refine it."""
    match cause:
        case OutcomeCause.FINISHED | OutcomeCause.TARGET_REACHED:
            return EndCause.FINISHED
        case OutcomeCause.STOPPED_ON_REQUEST:
            return EndCause.STOPPED
        case OutcomeCause.WORKER_LOST:
            return EndCause.WORKER_FAILED
        case OutcomeCause.GPU_OUT_OF_MEMORY:
            return EndCause.GPU_OUT_OF_MEMORY
        case OutcomeCause.ENGINE_FAILURE:
            return EndCause.ENGINE_FAILURE
        case OutcomeCause.CREDENTIALS_EXPIRED:
            return EndCause.CREDENTIALS_EXPIRED
        case OutcomeCause.STORAGE_FULL:
            return EndCause.STORAGE_FULL
        case OutcomeCause.STORAGE_UNREACHABLE:
            return EndCause.STORAGE_UNREACHABLE
        case OutcomeCause.BAD_CONFIGURATION:
            return EndCause.BAD_CONFIGURATION
        case OutcomeCause.CHECKPOINT_UNUSABLE:
            return EndCause.CHECKPOINT_UNUSABLE
        case OutcomeCause.CODE_ERROR:
            return EndCause.CODE_ERROR
