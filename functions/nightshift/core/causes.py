"""Why an attempt ended, what follows from it, and how to say it to a person."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from nightshift.contract.job import OutcomeCause


class Action(StrEnum):
    """What the controller does about an end cause: RECOVER spends a recovery, WAIT goes on when what is missing comes
    back and spends none, ASK waits for a person's answer (``budgets.ask_hours``) and then gives up."""

    DONE = "done"
    RECOVER = "recover"
    WAIT = "wait"
    ASK = "ask"
    GIVE_UP = "give_up"

    @property
    def goes_on(self) -> bool:
        """Another attempt follows, at once or later, as far as the budgets allow."""
        return self in (Action.RECOVER, Action.WAIT, Action.ASK)


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
    NCCL_FAILURE = "nccl_failure"
    ENGINE_FAILURE = "engine_failure"
    GPU_FAILED = "gpu_failed"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    PREEMPTED = "preempted"
    STORAGE_FULL = "storage_full"
    BAD_IMAGE = "bad_image"
    BAD_CONFIGURATION = "bad_configuration"
    CHECKPOINT_UNUSABLE = "checkpoint_unusable"
    CODE_ERROR = "code_error"
    CAPACITY_MISSING = "capacity_missing"
    QUOTA_MISSING = "quota_missing"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    BUDGET_SPENT = "budget_spent"
    CONTROLLER_FAULT = "controller_fault"


RECOVERY_DEADLINE = (
    "within budgets.max_recoveries_without_progress; nodes are waited for up to budgets.node_wait_minutes, then a person "
    "is asked"
)
WAIT_DEADLINE = "up to budgets.node_wait_minutes once the run is admitted, then a person is asked"
ASK_DEADLINE = "an answer is waited for up to budgets.ask_hours, then the run gives up"


@dataclass(frozen=True)
class CausePolicy:
    """``sentence`` is for a person who has just been woken up: what happened, and what to do where something is.
    ``deterministic``: the same attempt would end in the same way, so a second time at the same step is enough.
    ``by_node``: a node may be behind it; one that is lost explains it, and one that is found is blamed for it."""

    action: Action
    sentence: str
    deterministic: bool = False
    by_node: bool = False

    @property
    def deadline(self) -> str:
        """How long what follows may take, in the spec's words; empty where nothing follows."""
        match self.action:
            case Action.RECOVER:
                return RECOVERY_DEADLINE
            case Action.WAIT:
                return WAIT_DEADLINE
            case Action.ASK:
                return ASK_DEADLINE
            case Action.DONE | Action.GIVE_UP:
                return ""
        assert_never(self.action)


def _recover(sentence: str, deterministic: bool = False, by_node: bool = False) -> CausePolicy:
    return CausePolicy(Action.RECOVER, sentence, deterministic, by_node)


def _wait(sentence: str) -> CausePolicy:
    return CausePolicy(Action.WAIT, sentence)


def _ask(sentence: str) -> CausePolicy:
    return CausePolicy(Action.ASK, sentence)


def _give_up(sentence: str) -> CausePolicy:
    return CausePolicy(Action.GIVE_UP, sentence, deterministic=True)


def policy_of(cause: EndCause) -> CausePolicy:
    """Exhaustive: a cause without a policy does not pass the type check."""
    match cause:
        case EndCause.FINISHED:
            return CausePolicy(Action.DONE, "The training ran to its end.")
        case EndCause.NODE_REPLACED:
            return _recover(
                "HyperPod replaced a node under the run; it goes on from the last checkpoint.", by_node=True
            )
        case EndCause.NODE_LOST:
            return _recover(
                "A node went away without an event; the run goes on from the last checkpoint.", by_node=True
            )
        case EndCause.HEAD_LOST:
            return _recover("The Ray head was lost and with it the job; the run goes on from the last checkpoint.")
        case EndCause.START_DEADLINE:
            return _recover(
                "The job showed no sign of life within its start deadline, or brought its model to /shared too slowly; it is "
                "submitted again and goes on with what is there. If this repeats, look at the driver log in diagnostics/, or "
                "raise budgets.start_minutes or budgets.download_minutes."
            )
        case EndCause.HUNG:
            return _recover(
                "The job stood still: neither its progress nor its log moved, or a save never ended. The run goes on from "
                "the last checkpoint.",
                by_node=True,
            )
        case EndCause.PROGRESS_UNWRITABLE:
            return _recover(
                "The job worked but could not write its progress to S3; the run goes on from the last checkpoint. If this "
                "repeats, look at the job role's permissions on the bucket."
            )
        case EndCause.WORKER_FAILED:
            return _recover("A Ray worker process died; the run goes on from the last checkpoint.", by_node=True)
        case EndCause.EVIDENCE_MISSING:
            return _recover(
                "The job ended without the export or eval that proves its success; the run goes on from the last "
                "checkpoint.",
                by_node=True,
            )
        case EndCause.STORAGE_UNREACHABLE:
            return _recover(
                "The shared filesystem or S3 could not be reached; the run is started again. If this repeats, look at FSx.",
                by_node=True,
            )
        case EndCause.CREDENTIALS_EXPIRED:
            return _recover(
                "The job's AWS credentials expired; the run goes on from the last checkpoint with fresh ones. If this "
                "repeats, look at the service account's role."
            )
        case EndCause.NCCL_FAILURE:
            return _recover(
                "The GPUs' communication (NCCL) failed or timed out; the run goes on from the last checkpoint.",
                by_node=True,
            )
        case EndCause.ENGINE_FAILURE:
            return _recover("An inference engine died; the run goes on from the last checkpoint.", by_node=True)
        case EndCause.GPU_FAILED:
            return _recover("A GPU reported a fault; the run goes on from the last checkpoint.", by_node=True)
        case EndCause.GPU_OUT_OF_MEMORY:
            return _give_up(
                "A GPU ran out of memory. Lower training.gpu_memory_utilization or the micro batch sizes and start again, "
                "or name smaller values in recovery.on_out_of_memory for one retry."
            )
        case EndCause.HOST_OUT_OF_MEMORY:
            return _recover(
                "A pod or node ran out of main memory, not of GPU memory; the run goes on from the last checkpoint. If this "
                "repeats, take larger nodes or fewer workers on a node.",
                deterministic=True,
            )
        case EndCause.PREEMPTED:
            return _wait(
                "A pod was preempted or evicted; the run goes on from the last checkpoint when it has its nodes again."
            )
        case EndCause.STORAGE_FULL:
            return _ask("The shared filesystem is full. Make room under /shared and then answer with go on.")
        case EndCause.BAD_IMAGE:
            return _give_up("The image cannot be pulled. Check that its digest exists and that the nodes may read it.")
        case EndCause.BAD_CONFIGURATION:
            return _give_up("The job refused its configuration; the message names the field to change.")
        case EndCause.CHECKPOINT_UNUSABLE:
            return _give_up(
                "No checkpoint at or above the last verified step can be read. The broken ones are kept under quarantine/ "
                "on /shared; decide whether an older step is good enough."
            )
        case EndCause.CODE_ERROR:
            return _recover(
                "The task's or trainer's code raised an error; the message has its last lines. After new steps it is tried "
                "once more; correct the code if it repeats.",
                deterministic=True,
            )
        case EndCause.CAPACITY_MISSING:
            return _ask(
                "The HyperPod cluster does not have the nodes that the run asks for. Add nodes and answer with go on, or "
                "change topology."
            )
        case EndCause.QUOTA_MISSING:
            return _wait(
                "The queue has no quota for the run now; it goes on when it is admitted again. Raise the quota if this "
                "lasts too long."
            )
        case EndCause.STOPPED:
            return _recover("The job was stopped by something else than Nightshift; it is started again.")
        case EndCause.CANCELLED:
            return _give_up("The run was cancelled on request.")
        case EndCause.BUDGET_SPENT:
            return _give_up("A budget of the run is spent; raise it under budgets and start again.")
        case EndCause.CONTROLLER_FAULT:
            return _give_up(
                "Nightshift itself failed; the checkpoints on /shared are kept. Start the run again under another id, and "
                "report this if it repeats."
            )
    assert_never(cause)


POLICIES: dict[EndCause, CausePolicy] = {cause: policy_of(cause) for cause in EndCause}


def from_outcome(cause: OutcomeCause) -> EndCause:
    """The controller's first reading of what a job says about itself; a lost node may refine it."""
    match cause:
        case OutcomeCause.FINISHED | OutcomeCause.TARGET_REACHED | OutcomeCause.PLATEAU:
            return EndCause.FINISHED
        case OutcomeCause.STOPPED_ON_REQUEST:
            return EndCause.STOPPED
        case OutcomeCause.WORKER_LOST:
            return EndCause.WORKER_FAILED
        case OutcomeCause.GPU_OUT_OF_MEMORY:
            return EndCause.GPU_OUT_OF_MEMORY
        case OutcomeCause.HOST_OUT_OF_MEMORY:
            return EndCause.HOST_OUT_OF_MEMORY
        case OutcomeCause.GPU_FAILED:
            return EndCause.GPU_FAILED
        case OutcomeCause.NCCL_FAILURE:
            return EndCause.NCCL_FAILURE
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
    assert_never(cause)
