"""From a request's raw JSON to a RunSpec, or to a list of errors that each name a field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nightshift.contract.base import CONTRACT_VERSION
from nightshift.contract.events import FieldError
from nightshift.contract.redaction import is_secret, without_secrets
from nightshift.contract.rehearsal import rehearsal_problems
from nightshift.contract.secrets import secret_problems
from nightshift.contract.skyrl import skyrl_problems
from nightshift.contract.smaller import smaller_problems
from nightshift.contract.spec import RunSpec, SeedData, Trainer, batch_size_problems
from nightshift.contract.tracking import tracking_problems
from nightshift.core.errors import bounded
from nightshift.core.prices import price_problems

MAX_ERRORS = 50
"""Of one request; what a stage event takes. Whoever corrects those is told the rest."""


@dataclass(frozen=True)
class Ceiling:
    """The best that an oracle can reach on an eval set within ``max_turns``: ``solved`` of ``of``."""

    solved: int
    of: int

    @property
    def share(self) -> float:
        return self.solved / self.of


MAZE_ENVIRONMENTS = frozenset({"training_job.tasks.mazes.env:MazeTextEnv", "training_job.tasks.visgym.env:VisGymEnv"})
MAZE_VARIANT = "maze_2d/easy"
MAZE_FIXED_SEEDS = SeedData(kind="seeds", start=0, stop=64)
MAZE_CEILINGS: tuple[tuple[int, int], ...] = ((17, 64), (13, 50))
"""(turns, solvable): of the 64 fixed mazes 50 need 13 turns and 14 need 17, the final stop included."""


def known_ceiling(spec: RunSpec) -> Ceiling | None:
    """The ceiling where it is known without running an oracle: the maze task's fixed eval set."""
    if spec.task.environment not in MAZE_ENVIRONMENTS or spec.task.eval != MAZE_FIXED_SEEDS:
        return None
    options = {"env_id": MAZE_VARIANT} | spec.task.config
    if options.pop("env_id") != MAZE_VARIANT or options.keys() - {"recipe"}:
        return None
    of = len(MAZE_FIXED_SEEDS)
    solved = next((s for turns, s in MAZE_CEILINGS if spec.training.max_turns >= turns), 0)
    return Ceiling(solved, of)


def check_spec(raw: dict[str, Any]) -> RunSpec | list[FieldError]:
    """Validate everything that can be known without I/O. Errors come with dotted field paths, all at once."""
    leaks = [FieldError(field=bounded(f, 200), problem=p) for f, p in secret_problems(raw)]
    try:
        spec = RunSpec.model_validate(raw)
    except ValidationError as error:
        found = [_field_error(dict(e)) for e in error.errors(include_url=False, include_input=False)]
        return (leaks + found)[:MAX_ERRORS]
    problems = leaks + [
        FieldError(field=f, problem=p) for f, p in batch_size_problems(spec.training, spec.topology.gpus)
    ]
    if spec.training.trainer is Trainer.SKYRL:
        problems += [FieldError(field=f, problem=_shown(p)) for f, p in skyrl_problems(spec)]
    problems += [FieldError(field=f, problem=p) for f, p in _other_problems(spec)]
    ceiling = known_ceiling(spec)
    if spec.target is not None and ceiling is not None and spec.target.success > ceiling.share:
        problems.append(
            FieldError(
                field="target.success",
                problem=(
                    f"{spec.target.success:.4g} cannot be reached: within {spec.training.max_turns} turns an oracle solves "
                    f"{ceiling.solved} of {ceiling.of} ({ceiling.share:.2%}); lower the target or raise training.max_turns"
                ),
            )
        )
    return problems[:MAX_ERRORS] or spec


def _other_problems(spec: RunSpec) -> Sequence[tuple[str, str]]:
    return [*smaller_problems(spec), *price_problems(spec), *tracking_problems(spec), *rehearsal_problems(spec)]


def _shown(problem: str) -> str:
    """Without secrets before it is cut: half of one is not recognized."""
    return bounded(without_secrets(problem), 300)


def _field_error(error: dict[str, Any]) -> FieldError:
    path = ".".join(str(part) for part in error["loc"]) or "spec"
    problem = error["msg"]
    if path == "version":
        problem = (
            f"version {CONTRACT_VERSION} of the contract is the newest that is known here; what wrote this may be newer"
        )
    return FieldError(field=bounded(without_secrets(path), 200), problem=_shown(problem))


def request_digest(raw: dict[str, Any]) -> str:
    """SHA-256 of a request's content: names the record of a refused one, so that a repeat is the same record."""
    return hashlib.sha256(json.dumps(raw, sort_keys=True, default=str).encode()).hexdigest()


def shown_run_id(raw: dict[str, Any]) -> str:
    """The id of a request that may not be valid, fit to be shown and to be part of a key."""
    given = raw.get("run_id")
    if not isinstance(given, str) or not given or is_secret(given):
        return "unnamed"
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in given[:40])
