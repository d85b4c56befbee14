"""A rehearsal: the first steps of a run, as a run of its own on the same cluster, through the death of its driver.

Its spec follows from the run's spec alone, here, for whoever asks for it: it comes in like any other, and waits for its pool like
any other. Sizes, model, task, image and topology stay: what is measured is what the run will meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nightshift.contract.spec import (
    Budgets,
    Data,
    NotifyLevel,
    Recovery,
    Rehearsal,
    RunSpec,
    SeedData,
    Training,
    spec_digest,
)
from nightshift.contract.tracking import Tracking

STEPS: Final = 2
KILLED_AFTER: Final = 1
"""The step whose verified checkpoint the driver does not survive."""

EVAL_ITEMS: Final = 4
MAX_HOURS: Final = 6.0
"""Of wall time, once it has its nodes: most of it is for bringing a base model to /shared."""

MAX_NODE_WAIT: Final = 30
MAX_ASK_HOURS: Final = 0.25
"""Whoever asked for it is looking: what it would ask a person is its result."""

PREFIX: Final = "rehearsal-"
"""Of every rehearsal's run id, and of no other's: the bucket's rule that removes their objects goes by it."""

EXPIRE_DAYS: Final = 7
"""After which the bucket removes what a rehearsal has left there."""

MAX_NUMBER: Final = 99
_DIGITS: Final = 8
_STEM: Final = 40 - len(PREFIX) - _DIGITS - 1


class NotToRehearse(ValueError):
    """The spec cannot be reduced; ``field`` says where, the text why."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


def is_rehearsal(run_id: str) -> bool:
    """Whether a run is a rehearsal, by its id."""
    return run_id.startswith(PREFIX)


def rehearsal_of(spec: RunSpec, number: int = 1) -> RunSpec:
    """The rehearsal of a run. Specs under one name that differ only in how long, how often and to what end they train have the
    same one: raising ``total_steps`` needs no other. ``number`` above 1 rehearses again. Raises NotToRehearse."""
    if spec.rehearsal is not None:
        raise NotToRehearse("rehearsal", f"it is a rehearsal already, of {spec.rehearsal.of}")
    if not 1 <= number <= MAX_NUMBER:
        raise NotToRehearse("run_id", f"it was rehearsed {MAX_NUMBER} times: rehearse it under another run_id")
    reduced = _reduced(spec, number)
    stem = reduced.run_id
    return reduced.model_copy(update={"run_id": f"{PREFIX}{stem}-{spec_digest(reduced)[:_DIGITS]}"})


def rehearsal_problems(spec: RunSpec) -> Sequence[tuple[str, str]]:
    """(field, problem) pairs: a name that is kept for rehearsals, or a rehearsal that is none."""
    if spec.rehearsal is None:
        kept = f"names that begin with {PREFIX} are kept for rehearsals, whose objects are removed after {EXPIRE_DAYS} days"
        return [("run_id", f"{kept}: choose another")] if is_rehearsal(spec.run_id) else []
    made = "a rehearsal's spec is made by `nightshift rehearse` and sent as it is"
    problems = []
    if not is_rehearsal(spec.run_id):
        problems.append(("run_id", f"of a rehearsal it begins with {PREFIX}: {made}"))
    if (spec.training.total_steps, spec.training.ckpt_interval) != (STEPS, 1):
        problems.append(("training", f"a rehearsal has {STEPS} steps and a checkpoint after each: {made}"))
    if spec.publish is not None:
        problems.append(("publish", f"a rehearsal is registered nowhere: {made}"))
    return problems


def _reduced(spec: RunSpec, number: int) -> RunSpec:
    """Still under the run's own name, as far as there is room for it."""
    task, stem = spec.task, spec.run_id[:_STEM].rstrip("-")
    holdout = few(task.holdout) if task.holdout is not None else None
    return spec.model_copy(
        update={
            "run_id": stem,
            "rehearsal": Rehearsal(of=stem, number=number),
            "task": task.model_copy(update={"eval": few(task.eval), "holdout": holdout}),
            "training": _short(spec.training),
            "budgets": _small(spec.budgets, spec.topology.gpus),
            "recovery": Recovery(),  # nothing is to be replaced, or made smaller, for a death that was wanted
            "target": None,
            "plateau": None,
            "publish": None,
            "tracking": Tracking(),  # two steps in a tracker would stand among the runs that count
            "notify": NotifyLevel.QUIET,
        }
    )


def few(data: Data) -> Data:
    """The first ``EVAL_ITEMS`` of a data set, or all where it has fewer."""
    if isinstance(data, SeedData):
        return data.model_copy(update={"stop": min(data.stop, data.start + EVAL_ITEMS)})
    return data.model_copy(update={"first": min(data.first or EVAL_ITEMS, EVAL_ITEMS)})


def _short(training: Training) -> Training:
    changes = {"total_steps": STEPS, "eval_interval": STEPS, "ckpt_interval": 1, "hf_save_interval": 1}
    # Without a warm-up, or the first steps would leave the adapter as good as untrained.
    return training.model_copy(update=changes | {"warmup_steps": 0})


def _small(budgets: Budgets, gpus: int) -> Budgets:
    return budgets.model_copy(
        update={
            "max_recoveries_without_progress": 1,
            "max_rollback_steps": 0,
            "node_wait_minutes": min(budgets.node_wait_minutes, MAX_NODE_WAIT),
            "wall_hours": min(budgets.wall_hours, MAX_HOURS),
            "gpu_hours": min(budgets.gpu_hours, MAX_HOURS * gpus),
            "ask_hours": min(budgets.ask_hours, MAX_ASK_HOURS),
        }
    )
