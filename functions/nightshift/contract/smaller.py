"""What an attempt trains with after a GPU ran out of memory. Intake checks it, and the job applies it, in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from nightshift.contract.spec import RunSpec, batch_size_problems

FIELD = "recovery.on_out_of_memory"


def with_smaller_values(spec: RunSpec) -> RunSpec:
    """The spec as an attempt with the smaller values trains it; without ``recovery.on_out_of_memory`` the spec itself."""
    smaller = spec.recovery.on_out_of_memory
    if smaller is None:
        return spec
    training = spec.training.model_copy(update=smaller.model_dump(exclude_none=True))
    return spec.model_copy(update={"training": training})


def smaller_problems(spec: RunSpec) -> Sequence[tuple[str, str]]:
    """(field, problem) pairs: values that are not smaller, or that the trainer would refuse."""
    smaller = spec.recovery.on_out_of_memory
    if smaller is None:
        return []
    named = smaller.model_dump(exclude_none=True)
    now = spec.training.model_dump(include=set(named))
    problems = [
        (f"{FIELD}.{name}", f"{value:g} is not below training.{name}, which is {now[name]:g}")
        for name, value in named.items()
        if value >= now[name]
    ]
    if not named:
        problems.append((FIELD, "name at least one smaller value"))
    refused = batch_size_problems(with_smaller_values(spec).training, spec.topology.gpus)
    already = batch_size_problems(spec.training, spec.topology.gpus)
    return problems + [(FIELD, f"with these values: {problem}") for _, problem in refused if not already]
