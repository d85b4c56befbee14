"""``python -m training_job plan``: everything about a run that can be known without a cluster, and what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from nightshift.contract import ExitCode, RunSpec, SeedData, SharedPaths
from nightshift.contract.skyrl import max_input_length, skyrl_problems
from nightshift.contract.skyrl_keys import SKYRL_VERSION
from nightshift.contract.spec import Data, Trainer, batch_size_problems
from nightshift.contract.tracking import tracking_problems
from training_job.errors import BadConfiguration
from training_job.plug import SeedItems, ceiling
from training_job.sources import local_model
from training_job.store import ObjectStore
from training_job.trainers.skyrl.config import Derived, Inputs, command_line, derive, settings
from training_job.trainers.skyrl.memory import KNOWN, Shape, estimate, read_shape

UNKNOWN_ROWS = "the rows of a parquet file are counted where the job runs"


@dataclass
class Plan:
    """Lines for a person; ``problems`` names the checks that speak against the run, once for each reason."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    data_problem: str | None = None

    def say(self, line: str = "") -> None:
        self.lines.append(line)

    def fact(self, name: str, value: object) -> None:
        self.say(f"  {name:<24}{value}")

    def check(self, name: str, problem: str | None, fine: str = "") -> None:
        self.say(f"  {'NO' if problem else 'ok':<4}{name:<22}{problem or fine}")
        if problem:
            self.problems.append(name)

    def unknown(self, name: str, why: str) -> None:
        self.say(f"  ?   {name:<22}not checked: {why}")

    def check_all(self, name: str, problems: Sequence[tuple[str, str]], fine: str) -> None:
        """One line for each (field, problem), or one that says why it is fine."""
        for where, problem in problems:
            self.check(name, f"{where}: {problem}")
        if not problems:
            self.check(name, None, fine)


def read_spec_file(path: Path) -> RunSpec:
    """YAML or JSON. Raises BadConfiguration or pydantic's ValidationError, by field."""
    raw: Any = yaml.safe_load(path.read_text())
    if not isinstance(raw, dict):
        raise BadConfiguration("spec", f"{path} holds no mapping")
    return RunSpec.model_validate(raw)


def plan(spec: RunSpec, train_rows: int | None = None, model: Shape | None = None) -> Plan:
    """What matters first: what the run is, what was checked, what it will cost; SkyRL's command line comes last.

    ``train_rows``: of a parquet training set; ``model``: the base model's shape, where it is known here."""
    found, training, workers = Plan(), spec.training, spec.topology.workers
    rows = _rows(spec.task.train) or train_rows
    derived = _derived(found, spec, rows)
    found.say(
        f"{spec.run_id}: {training.total_steps} steps of {training.train_batch_size} prompts x "
        f"{training.n_samples_per_prompt} rollouts of at most {training.max_turns} turns, on {spec.topology.gpus} GPUs "
        f"({workers.count} x {workers.instance_type})"
    )
    found.say("\nChecks")
    found.check_all("batch sizes", batch_size_problems(training, spec.topology.gpus), _batch_line(spec))
    if training.trainer is Trainer.SKYRL:
        by_part: dict[str, list[tuple[str, str]]] = {"adapter": [], "overrides": [], "lengths and engines": []}
        for where, problem in skyrl_problems(spec):
            part = "adapter" if where.startswith("model.lora") else "lengths and engines"
            by_part["overrides" if ".overrides." in where else part].append((where, problem))
        fine = {
            "adapter": f"rank {spec.model.lora.rank}, {_adapted(spec)}",
            "overrides": f"{len(training.skyrl.overrides)} keys, of SkyRL {SKYRL_VERSION}",
            "lengths and engines": _lengths_line(spec),
        }
        for part, problems in by_part.items():
            found.check_all(part, problems, fine[part])
    if rows is None:
        found.unknown("training data", f"{UNKNOWN_ROWS}; name them by --train-rows")
    else:
        found.check("training data", found.data_problem, _rows_line(rows, derived))
    named = f"; secrets {', '.join(spec.secrets)}" if spec.secrets else ""
    found.check_all("tracker", tracking_problems(spec), f"{spec.tracking.tracker}{named}")
    _ceiling_line(found, spec)
    _memory_lines(found, spec, model)
    _consequences(found, spec, derived, model)
    _command_line(found, spec, derived)
    return found


def _rows(data: Data) -> int | None:
    return len(data) if isinstance(data, SeedData) else None


def _derived(found: Plan, spec: RunSpec, rows: int | None) -> Derived | None:
    if rows is None:
        return None
    try:
        return derive(spec, rows)
    except BadConfiguration as error:
        found.data_problem = str(error)
        return None


def _rows_line(rows: int, derived: Derived | None) -> str:
    return f"{rows} items" + (
        f", {derived.steps_per_epoch} steps an epoch, {derived.epochs} epochs" if derived is not None else ""
    )


def _batch_line(spec: RunSpec) -> str:
    training, gpus = spec.training, spec.topology.gpus
    share = training.policy_mini_batch_size * training.n_samples_per_prompt // gpus
    micro = training.micro_train_batch_size_per_gpu
    updates = training.train_batch_size // training.policy_mini_batch_size
    return f"{updates} updates a step, each of {share} rollouts a GPU in {share // micro} micro batches of {micro}"


def _lengths_line(spec: RunSpec) -> str:
    more = spec.training.skyrl
    return (
        f"{spec.topology.gpus // more.tensor_parallel_size} engines of {more.tensor_parallel_size} GPUs; at most "
        f"{max_input_length(spec)} tokens before a turn, {more.max_generate_length} in it, {more.max_model_len} in all"
    )


def _adapted(spec: RunSpec) -> str:
    lora = spec.model.lora
    return f"{lora.target_modules}" + (f" but {lora.exclude_modules}" if lora.exclude_modules else "")


def _consequences(found: Plan, spec: RunSpec, derived: Derived | None, model: Shape | None) -> None:
    training = spec.training
    found.say("\nWhat follows")
    found.fact("rollouts a step", training.train_batch_size * training.n_samples_per_prompt)
    found.fact("evals", f"{training.total_steps // training.eval_interval + 1}, the first before step 1")
    if derived is not None and training.trainer is Trainer.SKYRL:
        if derived.dropped_prompts:
            found.fact("prompts dropped a step", f"{derived.dropped_prompts}, so that the rest divides among the GPUs")
        if derived.steps_per_epoch % training.ckpt_interval:
            ends = f"and at each epoch's end, every {derived.steps_per_epoch}"
            found.fact("checkpoints", f"every {training.ckpt_interval} steps {ends}")
        else:
            found.fact("checkpoints", f"every {training.ckpt_interval} steps")
    if model is not None and training.trainer is Trainer.SKYRL:
        one = estimate(spec, model).checkpoint
        kept = training.max_ckpts_to_keep + 1
        found.fact(
            "on /shared", f"{kept} checkpoints of about {one:.0f} GiB, {kept * one:.0f} GiB, while one is written"
        )


def _command_line(found: Plan, spec: RunSpec, derived: Derived | None) -> None:
    if spec.training.trainer is not Trainer.SKYRL:
        found.say(f"\nThe trainer is {spec.training.trainer}: there is no SkyRL command line.")
        return
    if derived is None:
        found.say("\nThere is no SkyRL command line yet: it depends on the training data.")
        return
    paths = SharedPaths(spec.run_id)
    inputs = Inputs(
        paths.models / "<digest>", paths.data / "train-<digest>.jsonl", [paths.data / "fixed-<digest>.jsonl"]
    )
    found.say("\nSkyRL's command line")
    found.lines += [f"  {line}" for line in command_line(settings(spec, paths, inputs, derived))]


def _ceiling_line(found: Plan, spec: RunSpec) -> None:
    if not isinstance(spec.task.eval, SeedData) or spec.task.oracle is None:
        found.unknown("ceiling", "the task names no oracle, or its items are not here")
        return
    try:
        share = ceiling(spec, SeedItems(spec.task.eval))
    except BadConfiguration as error:
        found.unknown("ceiling", f"the task's code is not here: {error.problem}")
        return
    assert share is not None
    of = len(spec.task.eval)
    said = f"{round(share * of)} of {of} eval items ({share:.2%}) can be solved within {spec.training.max_turns} turns"
    wanted = spec.target.success if spec.target else 0.0
    found.check("ceiling", f"{said}; the target asks for {wanted:.2%}" if wanted > share else None, said)


def _memory_lines(found: Plan, spec: RunSpec, shape: Shape | None) -> None:
    if spec.training.trainer is not Trainer.SKYRL:
        return
    if shape is None:
        known = ", ".join(KNOWN)
        found.unknown("GPU memory", f"name the model's folder, or one of {known}, by --model")
        return
    one = estimate(spec, shape)
    told = (
        f"about {one.training:.0f} GiB a GPU to train (shards {one.shards:.1f}, adapter {one.adapter:.1f}, activations "
        f"{one.activations:.1f}, logits {one.logits:.1f})"
    )
    if one.engine is not None and one.gpu is not None:
        told += (
            f" of {one.gpu:.0f}; engine {one.engine:.0f}: weights {one.engine_weights:.1f}, the longest conversation "
            f"{one.engine_cache:.1f}"
        )
    found.check("GPU memory", one.problem, told)


def shape_for(spec: RunSpec, model: str | None) -> Shape | None:
    """Of the folder or known name that a person gave, else of the spec's own model where it lies on this computer. Raises
    BadConfiguration for what was given and cannot be read."""
    if model is None:
        try:
            return read_shape(local_model(spec.model.source, SharedPaths(spec.run_id)))
        except (BadConfiguration, OSError):
            return None
    shape = KNOWN.get(model.lower()) or read_shape(Path(model))
    if shape is None:
        raise BadConfiguration(
            "--model", f"{model} has no config.json of a known kind, and is none of {', '.join(KNOWN)}"
        )
    return shape


def main(path: Path, train_rows: int | None, model: str | None, say: Callable[[str], None] = print) -> int:
    """Print the plan; 0 where nothing speaks against it, 65 where something does."""
    try:
        spec = read_spec_file(path)
        found = plan(spec, train_rows, shape_for(spec, model))
    except OSError as error:
        say(f"NO  {path}: {error.strerror or error}")
        return int(ExitCode.BAD_DATA)
    except BadConfiguration as error:
        say(f"NO  {error}")
        return int(ExitCode.BAD_DATA)
    except ValidationError as error:
        say(f"NO  {path} is no run spec:\n" + "\n".join(f"  {line}" for line in field_errors(error)))
        return int(ExitCode.BAD_DATA)
    except (ValueError, yaml.YAMLError) as error:
        say(f"NO  {path} is neither YAML nor JSON: {' '.join(str(error).split())[:300]}")
        return int(ExitCode.BAD_DATA)
    for line in found.lines:
        say(line)
    say("")
    count, named = len(found.problems), ", ".join(dict.fromkeys(found.problems))
    say(f"NO: {count} things speak against this run ({named})" if count else "nothing speaks against this run")
    return int(ExitCode.BAD_DATA if count else ExitCode.OK)


EXAMPLES: Final = {
    "image": "a repository with the image's digest: name@sha256:<64 hex digits>",
    "sha": "a commit: 40 hex digits",
    "sha256": "64 hex digits",
    "uri": "an address s3://bucket/key, for data also /shared/path",
    "source": "hf://owner/name@revision, s3://bucket/prefix, /shared/path or package://module/folder",
    "environment": "module:Class",
    "oracle": "module:function",
    "run_id": "lower-case letters, digits and hyphens, beginning with a letter, at most 40",
    "instance_type": "for example ml.g7e.12xlarge",
}
"""Field -> what would be right, for fields whose pattern says less to a person."""


def field_errors(error: ValidationError) -> list[str]:
    """One line a field: what is wrong and, where that can be known, what would be right."""
    lines = []
    for one in error.errors(include_url=False):
        path = [str(part) for part in one["loc"]]
        said = one["msg"]
        if one["type"] == "string_pattern_mismatch" and path[-1] in EXAMPLES:
            said = f"{str(one['input'])[:60]!r} is not {EXAMPLES[path[-1]]}"
        elif one["type"] == "extra_forbidden":
            close = get_close_matches(path[-1], _fields_at(path[:-1]), 1)
            said = f"there is no such field{f'; perhaps {close[0]}' if close else ''}"
        elif "input" in one and isinstance(one["input"], bool | int | float | str):
            said = f"{said}, not {str(one['input'])[:60]!r}"
        lines.append(f"{'.'.join(path)}: {said}")
    return lines


def _fields_at(path: Sequence[str]) -> list[str]:
    """Names of the fields of the model at a dotted place; none where it is no plain model."""
    model: type[BaseModel] = RunSpec
    for part in path:
        known = model.model_fields.get(part)
        if known is None or not isinstance(known.annotation, type) or not issubclass(known.annotation, BaseModel):
            return []
        model = known.annotation
    return list(model.model_fields)


def _no_store(bucket: str) -> ObjectStore:
    raise BadConfiguration("model.source", f"the bucket {bucket} is not looked into here")
