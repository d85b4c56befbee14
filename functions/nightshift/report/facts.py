"""Facts of a spec and a model reference in words, shared by the report and the model card."""

from __future__ import annotations

from nightshift.contract.lineage import Lineage
from nightshift.contract.spec import Data, GitCode, RunSpec, SeedData


def base_model(source: str) -> str:
    """What PEFT and Ray Serve take as the base: ``owner/name`` of a hub reference, anything else as it is."""
    return source.removeprefix("hf://").split("@")[0] if source.startswith("hf://") else source


def parent_words(parent: Lineage) -> str:
    """``maze-1 at step 40 (asked for as maze-1@best), which solved 50 of 64; it began from maze-0 at step 20``."""
    solved = f", which solved {parent.solved} of {parent.of} of its fixed set" if parent.of is not None else ""
    asked = f" (asked for as {parent.asked})" if parent.asked != f"{parent.parent}@{parent.step}" else ""
    before = ", and that one from ".join(f"{one.run_id} at step {one.step}" for one in parent.ancestors)
    return f"{parent.parent} at step {parent.step}{asked}{solved}" + (f"; it began from {before}" if before else "")


def data_words(data: Data | None) -> str:
    """``seeds 0 to 63 (64 items)``, or the address of a parquet file."""
    if data is None:
        return "none"
    if isinstance(data, SeedData):
        return f"seeds {data.start} to {data.stop - 1} ({len(data)} items)"
    return data.uri


def code_words(spec: RunSpec) -> str:
    """Where the task's code comes from."""
    code = spec.task.code
    if isinstance(code, GitCode):
        return f"git {code.sha}" + (f" of {code.repository}" if code.repository else " of this project")
    return f"wheel {code.uri}, SHA-256 {code.sha256}"


def training_facts(spec: RunSpec) -> list[tuple[str, str]]:
    """(name, value) pairs a reader needs to repeat the run or to judge it."""
    training = spec.training
    return [
        ("Training data", data_words(spec.task.train)),
        ("Fixed set", data_words(spec.task.eval)),
        ("Hold-out", data_words(spec.task.holdout)),
        ("Solved means", f"sum of rewards at least {spec.task.success.min_score:g}, within {training.max_turns} turns"),
        ("Random seed", str(training.seed)),
        (
            "Method",
            f"GRPO, {training.total_steps} steps of {training.train_batch_size} prompts, "
            f"{training.n_samples_per_prompt} samples each",
        ),
        ("Adapter", f"LoRA, rank {spec.model.lora.rank}, alpha {spec.model.lora.alpha}"),
        ("Learning rate", f"{training.learning_rate:g}, {training.warmup_steps} warm-up steps"),
        ("Sampling", f"temperature {training.temperature:g}"),
    ]
