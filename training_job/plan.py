"""``python -m training_job plan``: everything about a run that can be known without a cluster, and what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nightshift.contract import ExitCode, RunSpec, SeedData, SharedPaths
from nightshift.contract.skyrl import skyrl_problems
from nightshift.contract.spec import Data, Trainer, batch_size_problems
from training_job.errors import BadConfiguration
from training_job.plug import SeedItems, ceiling
from training_job.trainers.skyrl.config import Inputs, command_line, derive, settings
from training_job.trainers.skyrl.memory import Shape, estimate, read_shape

UNKNOWN_ROWS = "the rows of a parquet file are counted where the job runs"


@dataclass
class Plan:
    """Lines for a person; ``problems`` is what the run would be refused for, now or by the job."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def say(self, line: str = "") -> None:
        self.lines.append(line)

    def check(self, name: str, problem: str | None, fine: str = "ok") -> None:
        self.say(f"  {'NO' if problem else 'ok':<4}{name}: {problem or fine}")
        if problem:
            self.problems.append(f"{name}: {problem}")


def read_spec_file(path: Path) -> RunSpec:
    """YAML or JSON. Raises BadConfiguration or pydantic's ValidationError, by field."""
    raw: Any = yaml.safe_load(path.read_text())
    if not isinstance(raw, dict):
        raise BadConfiguration("spec", f"{path} holds no mapping")
    return RunSpec.model_validate(raw)


def plan(spec: RunSpec, train_rows: int | None = None, model: Path | None = None) -> Plan:
    """``train_rows``: of a parquet training set; ``model``: a folder with the base model's config.json."""
    found = Plan()
    rows = _rows(spec.task.train) or train_rows
    _settings_lines(found, spec, rows)
    found.say("\nChecks")
    for name, problems in (
        ("batch sizes", batch_size_problems(spec.training, spec.topology.gpus)),
        ("SkyRL", skyrl_problems(spec) if spec.training.trainer is Trainer.SKYRL else []),
    ):
        found.check(name, "; ".join(f"{where}: {problem}" for where, problem in problems) or None)
    _ceiling_line(found, spec)
    _memory_lines(found, spec, read_shape(model) if model else None)
    return found


def _rows(data: Data) -> int | None:
    return len(data) if isinstance(data, SeedData) else None


def _settings_lines(found: Plan, spec: RunSpec, rows: int | None) -> None:
    if spec.training.trainer is not Trainer.SKYRL:
        found.say(f"trainer {spec.training.trainer}: no SkyRL command line")
        return
    if rows is None:
        found.say(f"no command line: {UNKNOWN_ROWS}; name them with --train-rows")
        return
    paths = SharedPaths(spec.run_id)
    inputs = Inputs(
        paths.models / "<digest>", paths.data / "train-<digest>.jsonl", [paths.data / "fixed-<digest>.jsonl"]
    )
    derived = derive(spec, rows)
    found.say("SkyRL")
    found.lines += [f"  {line}" for line in command_line(settings(spec, paths, inputs, derived))]
    found.say("\nDerived")
    found.lines += [f"  {name.replace('_', ' '):<30}{value}" for name, value in vars(derived).items()]


def _ceiling_line(found: Plan, spec: RunSpec) -> None:
    if not isinstance(spec.task.eval, SeedData) or spec.task.oracle is None:
        found.check("ceiling", None, "the task names no oracle, or its items are not here")
        return
    try:
        share = ceiling(spec, SeedItems(spec.task.eval))
    except BadConfiguration as error:
        found.check("ceiling", None, f"the task's code is not here: {error.problem}")
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
        found.check("GPU memory", None, "not estimated: name a folder with the model's config.json by --model")
        return
    one = estimate(spec, shape)
    told = (
        f"an estimate, GiB a GPU: training {one.training:.1f} (shards {one.shards:.1f}, adapter {one.adapter:.1f}, "
        f"activations {one.activations:.1f}), engine's weights {one.engine_weights:.1f}"
        + (f" of {one.engine:.1f}, GPU {one.gpu:.0f}" if one.engine is not None and one.gpu is not None else "")
    )
    found.check("GPU memory", one.problem, told)


def main(spec: Path, train_rows: int | None, model: Path | None, say: Callable[[str], None] = print) -> int:
    """Print the plan; 0 where nothing speaks against it, 65 where something does."""
    try:
        found = plan(read_spec_file(spec), train_rows, model)
    except OSError as error:
        say(f"{spec}: {error.strerror or error}")
        return int(ExitCode.BAD_DATA)
    except BadConfiguration as error:
        say(f"NO  {error}")
        return int(ExitCode.BAD_DATA)
    except ValueError as error:  # of pydantic and of YAML: both tell where
        say(f"NO  {spec} is no run spec:\n{_errors(error)}")
        return int(ExitCode.BAD_DATA)
    for line in found.lines:
        say(line)
    say(f"\n{len(found.problems)} problems" if found.problems else "\nnothing speaks against this run")
    return int(ExitCode.BAD_DATA if found.problems else ExitCode.OK)


def _errors(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)[:2_000]
    rows: Sequence[Any] = error.errors(include_url=False, include_input=False)
    return "\n".join(f"  {'.'.join(map(str, row['loc']))}: {row['msg']}" for row in rows)
