"""RunSpec: what was asked for. Its JSON schema is published as ``docs/runspec.schema.json``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, FiniteFloat, HttpUrl, StringConstraints, field_validator, model_validator

from nightshift.contract.base import CONTRACT_VERSION, DnsLabel, GitSha, ImportPath, Model, Sha256
from nightshift.contract.retention import Retention
from nightshift.contract.secrets import SecretId, SecretName
from nightshift.contract.skyrl import SkyRLSettings
from nightshift.contract.tracking import Tracking
from nightshift.contract.upgrades import digested, read_moved

S3Uri = Annotated[str, StringConstraints(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+$", max_length=1_024)]
ImageRef = Annotated[str, StringConstraints(pattern=r"^[\w.\-/:]+@sha256:[0-9a-f]{64}$", max_length=400)]


def _goes_not_up(reference: str) -> str:
    """The job reads it with its own rights: a spec must not lead it out of where it may name something."""
    if ".." in reference.split("/"):
        raise ValueError("a path must not go up with ..")
    return reference


ModelRef = Annotated[
    str,
    StringConstraints(
        pattern=r"^(hf://[\w.\-]+/[\w.\-]+@[\w.\-]+(/[\w./\-]+)?|s3://.+|/shared/.+|package://[A-Za-z_][\w.]*/[\w./\-]+)$",
        max_length=1_024,
    ),
    AfterValidator(_goes_not_up),
]
"""``hf://owner/name@revision`` or ``hf://owner/name@revision/folder``, ``s3://bucket/prefix``, ``/shared/path`` or ``package://module/folder``."""

QueueName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=63)]
"""The name of a Kueue LocalQueue, short enough to be a label's value."""

ParentRef = Annotated[
    str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?@([1-9][0-9]{0,6}|best|final|latest)$")
]
"""``<run_id>@<step>``, or ``@best``, ``@final`` (as published) or ``@latest`` (the newest that was exported or saved)."""


class GitCode(Model):
    """The task's code is at a commit. Without ``repository`` it is this project's own code, baked into the image."""

    kind: Literal["git"]
    sha: GitSha
    repository: HttpUrl | None = None


class WheelCode(Model):
    """The task's code is a pure Python wheel in S3; the job refuses other bytes than these."""

    kind: Literal["wheel"]
    uri: S3Uri
    sha256: Sha256


Code = Annotated[GitCode | WheelCode, Field(discriminator="kind")]


class SeedData(Model):
    """Items ``start .. stop-1``, each a seed of the environment's reset."""

    kind: Literal["seeds"]
    start: int = Field(ge=0)
    stop: int = Field(ge=1, le=2**53)

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.stop <= self.start:
            raise ValueError("stop must be above start")
        return self

    def __len__(self) -> int:
        return self.stop - self.start


class ParquetData(Model):
    """Rows of a parquet file in SkyRL's dataset format."""

    kind: Literal["parquet"]
    uri: Annotated[str, StringConstraints(pattern=r"^(s3://|/shared/).+$", max_length=1_024)]
    first: int | None = Field(None, ge=1, description="use only so many of its first rows; none: all of them")


Data = Annotated[SeedData | ParquetData, Field(discriminator="kind")]


class SuccessRule(Model):
    """An item is solved when the sum of its rewards is at least this."""

    min_score: FiniteFloat = 1.0


class Task(Model):
    """The plug: what is learned. The controller never looks inside."""

    code: Code
    environment: ImportPath = Field(description="module:Class, a skyrl_gym BaseTextEnv")
    config: dict[str, Any] = Field(default_factory=dict, description="passed to the environment as it is")
    train: Data
    eval: Data
    holdout: Data | None = Field(
        None, description="disjoint items (256 are a good number): at the start and at the end, and once with the best"
    )
    success: SuccessRule = SuccessRule()
    oracle: ImportPath | None = Field(None, description="(item, max_turns, config) -> solvable")
    trace_renderer: ImportPath | None = Field(None, description="(trace) -> PNG bytes")


class Trainer(StrEnum):
    """``skyrl`` on a GPU cluster; ``local`` is the small CPU trainer of the embedded default."""

    SKYRL = "skyrl"
    LOCAL = "local"


class LoraSettings(Model):
    """``exclude_modules``: by default the vision tower, whose adapters vLLM ignores while SkyRL trains them: rollouts
    and training would use different weights."""

    rank: int = Field(32, ge=1, le=512)
    alpha: int = Field(32, ge=1, le=1_024)
    target_modules: Annotated[str, StringConstraints(max_length=1_000)] = "all-linear"
    exclude_modules: Annotated[str, StringConstraints(max_length=1_000)] | None = ".*visual.*"


class BaseModelSettings(Model):
    """The policy to start from."""

    source: ModelRef
    lora: LoraSettings = LoraSettings()


class Training(Model):
    """Numbers of the GRPO run; defaults are the source article's, and SkyRL's for the rest."""

    trainer: Trainer = Trainer.SKYRL
    seed: int = Field(0, ge=0)
    total_steps: int = Field(400, ge=1, le=1_000_000)
    train_batch_size: int = Field(24, ge=1, description="prompts a step")
    policy_mini_batch_size: int = Field(12, ge=1, description="prompts an optimizer update")
    micro_train_batch_size_per_gpu: int = Field(4, ge=1)
    micro_forward_batch_size_per_gpu: int = Field(4, ge=1)
    n_samples_per_prompt: int = Field(8, ge=2, description="rollouts a prompt: the group of the advantage")
    max_turns: int = Field(15, ge=1, le=1_000)
    learning_rate: float = Field(3e-5, gt=0, lt=1)
    warmup_steps: int = Field(0, ge=0)
    temperature: float = Field(0.7, gt=0, le=2)
    clip: float = Field(0.2, gt=0, lt=1)
    eval_interval: int = Field(10, ge=1)
    ckpt_interval: int = Field(20, ge=1)
    hf_save_interval: int = Field(20, ge=1)
    max_ckpts_to_keep: int = Field(2, ge=1)
    gpu_memory_utilization: float = Field(0.45, gt=0, lt=1)
    skyrl: SkyRLSettings = SkyRLSettings()


class InstanceGroup(Model):
    """Nodes of one instance type."""

    instance_type: Annotated[str, StringConstraints(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")]
    count: int = Field(ge=1, le=256)
    gpus: int = Field(0, ge=0, le=16, description="a node")


class Topology(Model):
    """One head without GPUs, and the workers."""

    head: InstanceGroup = InstanceGroup(instance_type="ml.r5d.16xlarge", count=1)
    workers: InstanceGroup = InstanceGroup(instance_type="ml.g7e.12xlarge", count=3, gpus=2)

    @property
    def gpus(self) -> int:
        """All GPUs of the workers: the world size of the policy."""
        return self.workers.count * self.workers.gpus


class Target(Model):
    """Stop early when ``success`` on the fixed eval set is held on ``evals`` evals in a row."""

    success: float = Field(gt=0, le=1)
    evals: int = Field(1, ge=1, le=100)
    stop: bool = Field(False, description="end the run when the target is held; otherwise only report it")


class Plateau(Model):
    """Stop early when the fixed set's success has not risen for ``evals`` evals in a row. A rise is ``min_gain`` above where
    it was at the last rise, so that many small ones together are one too."""

    evals: int = Field(5, ge=1, le=1_000)
    min_gain: float = Field(0.01, gt=0, le=1, description="a share of the items: 0.01 is one point")


class Priority(StrEnum):
    """``urgent`` runs of a pool go before all others that wait; none is interrupted."""

    NORMAL = "normal"
    URGENT = "urgent"


class SmallerValues(Model):
    """What one attempt more may be tried with after a GPU ran out of memory; None keeps a value as it is."""

    gpu_memory_utilization: float | None = Field(None, gt=0, lt=1)
    micro_train_batch_size_per_gpu: int | None = Field(None, ge=1)
    micro_forward_batch_size_per_gpu: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("name at least one smaller value")
        return self


class Recovery(Model):
    """What Nightshift may do by itself, beyond starting again from the last checkpoint."""

    on_out_of_memory: SmallerValues | None = Field(None, description="one retry with these values; none: give up")
    replace_nodes: bool = Field(
        False, description="ask HyperPod to replace an instance that is blamed twice (BatchReplaceClusterNodes)"
    )


class Budgets(Model):
    """Limits within which nobody needs to be asked."""

    max_recoveries_without_progress: int = Field(3, ge=0, le=100)
    max_rollback_steps: int | None = Field(None, ge=0, description="steps below the floor; default one ckpt_interval")
    start_minutes: int = Field(
        60, ge=1, le=60 * 24 * 7, description="from submission to the first progress of an attempt"
    )
    download_minutes: int = Field(
        120, ge=1, le=60 * 24 * 7, description="for bringing the base model and data to /shared"
    )
    node_wait_minutes: int = Field(90, ge=1, le=60 * 24 * 30, description="waiting for a replacement node")
    wall_hours: float = Field(24 * 14, gt=0, le=24 * 365)
    gpu_hours: float = Field(5_000, gt=0, le=1e9)
    dollars: float | None = Field(
        None, gt=0, le=1e9, description="attributed spend, by the dated price table; none: no limit"
    )
    ask_hours: float = Field(24, gt=0, le=24 * 30, description="how long a question to a person may stay open")


class Publishing(Model):
    """Where a verified success goes beyond the bucket."""

    model_package_group: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9](-?[a-zA-Z0-9])*$", max_length=63)] = (
        Field(description="of SageMaker's model registry: a package of the best adapter waits there for approval")
    )


ProjectName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._ -]*[A-Za-z0-9])?$", max_length=63)]


class Rehearsal(Model):
    """Marks a rehearsal, and says of what: ``contract.rehearsal`` makes its spec. The job ends its own driver by SIGKILL
    after the first verified checkpoint, and removes the run's folder on /shared when all is proven."""

    of: DnsLabel = Field(description="name of the run that is rehearsed, as far as the id has room")
    number: int = Field(1, ge=1, le=99, description="rises where the same is rehearsed again")


class NotifyLevel(StrEnum):
    QUIET = "quiet"
    NORMAL = "normal"
    ALL = "all"


class RunSpec(Model):
    """One training run that somebody asks for. Unknown fields are refused at every depth."""

    version: Literal[1] = CONTRACT_VERSION
    run_id: DnsLabel
    pool: DnsLabel = "default"
    project: ProjectName | None = Field(None, description="for whom it is paid: a name by which costs are summed")
    image: ImageRef
    task: Task
    model: BaseModelSettings
    parent: ParentRef | None = Field(
        None,
        description="begin with another run's adapter (run_id@step, @best, @final or @latest), at an own step 0; none: with "
        "the base model alone",
    )
    training: Training = Training()
    topology: Topology = Topology()
    budgets: Budgets = Budgets()
    recovery: Recovery = Recovery()
    priority: Priority = Priority.NORMAL
    queue: QueueName | None = Field(
        None,
        description="Kueue LocalQueue in the deployment's namespace, which then admits the run in place of Nightshift's "
        "own lease of the pool; an urgent run gets the WorkloadPriorityClass urgent-priority there",
    )
    target: Target | None = None
    plateau: Plateau | None = Field(None, description="end the run when it stopped getting better; none: go on")
    tracking: Tracking = Tracking()
    secrets: dict[SecretName, SecretId] = Field(
        default_factory=dict,
        max_length=20,
        description="environment variable of the job's driver -> name or ARN of a Secrets Manager secret, or ARN#key",
    )
    notify: NotifyLevel = NotifyLevel.NORMAL
    retention: Retention | None = Field(None, description="how long its things stay on /shared; none: as deployed")
    publish: Publishing | None = Field(None, description="where a success is registered as well; none: nowhere")
    rehearsal: Rehearsal | None = Field(None, description="of a rehearsal only, which `nightshift rehearse` asks for")

    @model_validator(mode="before")
    @classmethod
    def _of_an_older_contract(cls, raw: Any) -> Any:
        return read_moved(raw)

    @field_validator("topology")
    @classmethod
    def _workers_have_gpus(cls, value: Topology) -> Topology:
        if value.workers.gpus < 1:
            raise ValueError("workers need at least one GPU a node")
        return value

    @property
    def max_rollback_steps(self) -> int:
        given = self.budgets.max_rollback_steps
        return self.training.ckpt_interval if given is None else given


def spec_digest(spec: RunSpec) -> str:
    """SHA-256 over the spec with all defaults filled in: equal for equal requests, however they were written, and by whichever
    version of the contract."""
    return hashlib.sha256(digested(spec)).hexdigest()


def batch_size_problems(training: Training, gpus: int) -> Sequence[tuple[str, str]]:
    """(field, problem) pairs for sizes that SkyRL 0.3.0 refuses on so many GPUs (``validate_batch_sizes``)."""
    prompts, mini, samples = training.train_batch_size, training.policy_mini_batch_size, training.n_samples_per_prompt
    micro = training.micro_train_batch_size_per_gpu
    where = "training.policy_mini_batch_size"
    if prompts % mini:
        return [(where, f"train_batch_size {prompts} is not a multiple of policy_mini_batch_size {mini}")]
    mini_per_gpu, batch_per_gpu = mini * samples // gpus, prompts * samples // gpus
    share = f"{mini} prompts x {samples} samples on {gpus} GPUs are {mini_per_gpu} rollouts per GPU"
    if mini_per_gpu < 1:
        return [(where, f"{share}: fewer than one")]
    if mini_per_gpu % micro:
        return [(where, f"{share}: not a multiple of micro_train_batch_size_per_gpu {micro}")]
    if batch_per_gpu % mini_per_gpu:
        return [(where, f"{share}, which does not divide the batch's {batch_per_gpu}")]
    return []
