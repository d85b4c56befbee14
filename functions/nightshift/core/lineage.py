"""Whether a run may begin from another run's weights, and from which of them. No I/O.

Only the adapter is taken: neither the optimizer nor the step counter, nor anything that depends on how many GPUs there were.
A child may therefore have another task, other sizes and another topology; its base model and the adapter's form must be the
parent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nightshift.contract.job import ExportRecord
from nightshift.contract.lineage import ADAPTER_FILES, MAX_ANCESTORS, Ancestor, Lineage
from nightshift.contract.spec import RunSpec
from nightshift.core.access import may_steer
from nightshift.core.run import Run

SHOWN_STEPS = 8

PUBLISHED = frozenset({"best", "final"})
"""Names of published adapters; a parent may be named by them once its publication was read back."""


class NoParent(ValueError):
    """Why a run cannot begin from the parent that its spec names, in words for the field ``parent``."""


def parts(asked: str) -> tuple[str, str]:
    """``maze-1@20`` -> (``maze-1``, ``20``)."""
    run_id, _, at = asked.partition("@")
    return run_id, at


def hold_access(run: Run, caller: str, operators: Sequence[str]) -> None:
    """What is published is for everybody who may ask for runs; what is not is its owner's and the operators'. Raises NoParent."""
    if not run.published and not may_steer(run.owner, caller, operators):
        raise NoParent(
            f"{run.run_id} belongs to somebody else and is not published: ask its owner, or an operator, to begin from it"
        )


def hold_fit(child: RunSpec, parent: RunSpec, model: str) -> None:
    """``model`` is the address of the parent's base model, its revision resolved to a commit. Raises NoParent."""
    name = parent.run_id
    if child.model.source not in (parent.model.source, model):
        raise NoParent(
            f"{name} adapts {model}, and model.source is {child.model.source}: an adapter fits one base model"
        )
    ours, theirs = child.model.lora.model_dump(), parent.model.lora.model_dump()
    other = [
        f"{field} {theirs[field]!r} there and {ours[field]!r} here" for field in ours if ours[field] != theirs[field]
    ]
    if other:
        raise NoParent(f"the adapter of {name} has another form (model.lora): {', '.join(other)}")


def step_asked(at: str, run: Run, exports: Mapping[int, ExportRecord], adapters: Mapping[str, int] | None) -> int:
    """The step that ``@best``, ``@final``, ``@latest`` or a number means. ``adapters`` are those of the run's manifest: None
    where there is none that was read back. Raises NoParent."""
    if at in PUBLISHED:
        if adapters is None:
            raise NoParent(
                f"{run.run_id} is {run.state} and not published, so it has no {at} adapter: name a step, or @latest"
            )
        if at not in adapters:
            raise NoParent(f"{run.run_id} has published no {at} adapter")
        return adapters[at]
    if at == "latest":
        newest = max([run.verified_step, *(step for step, e in exports.items() if e.lora_b_nonzero > 0)])
        if newest < 1:
            raise NoParent(f"{run.run_id} has neither exported nor saved anything yet")
        return newest
    return int(at)


def weights_at(step: int, run: Run, exports: Mapping[int, ExportRecord]) -> ExportRecord | None:
    """The verified export of a step; None where only the run's newest checkpoint has it. Raises NoParent where nothing has."""
    export = exports.get(step)
    if export is None:
        if step == run.verified_step:
            return None
        known = sorted({*exports, *([run.verified_step] if run.verified_step else [])})
        shown = f"{'..., ' if len(known) > SHOWN_STEPS else ''}{', '.join(map(str, known[-SHOWN_STEPS:]))}"
        raise NoParent(f"{run.run_id} has no verified weights of step {step}; it has those of {shown or 'no step'}")
    if export.lora_b_nonzero < 1:
        raise NoParent(f"the adapter of {run.run_id} at step {step} has changed nothing: it is the base model")
    missing = [name for name in ADAPTER_FILES if name not in export.files]
    if missing:
        raise NoParent(f"the export of step {step} of {run.run_id} lacks {', '.join(missing)}")
    return export


def ancestors(parent: Lineage | None) -> tuple[Ancestor, ...]:
    """Who stands behind a parent, by the parent's own lineage."""
    return parent.chain[:MAX_ANCESTORS] if parent is not None else ()
