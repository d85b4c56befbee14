"""The model card of a published adapter: Markdown with the YAML front matter that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import re

from nightshift.contract.evals import EvalSummary
from nightshift.contract.publication import Manifest, Provenance
from nightshift.contract.spec import RunSpec
from nightshift.report.facts import base_model, training_facts
from nightshift.report.text import ceiling_sentence, count, gain, interval
from nightshift.report.words import cause_words, clean, hours, percent

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def _md(text: str) -> str:
    """Outside text as plain Markdown: one line, nothing in it formats, links or is HTML."""
    return _SPECIAL.sub(r"\\\1", clean(text)).replace("&", "&amp;")


def _code(text: str) -> str:
    return f"`{clean(text).replace('`', 'ʼ')}`"


def _yaml(text: str) -> str:
    """A double-quoted scalar; JSON strings of printable characters are YAML."""
    return json.dumps(clean(text), ensure_ascii=False)


def _pipeline(model: str) -> str:
    """The Hub's pipeline tag by the base model's name: models that see pictures say so there."""
    sees = re.search(r"(?i)(\bvl\b|vision)", re.sub(r"[-_/.]", " ", model))
    return "image-text-to-text" if sees else "text-generation"


def _results_of(manifest: Manifest, name: str) -> list[tuple[str, EvalSummary | None, EvalSummary]]:
    """(set, baseline, result) of the adapter's own step. The hold-out was evaluated with the final policy only."""
    step = manifest.adapters[name]
    found: list[tuple[str, EvalSummary | None, EvalSummary]] = []
    fixed = next((one for one in (manifest.final, manifest.best) if one and one.step == step), None)
    if fixed is not None:
        found.append(("Fixed set", manifest.baseline, fixed))
    if manifest.holdout_final is not None and manifest.holdout_final.step == step:
        found.append(("Hold-out", manifest.holdout_baseline, manifest.holdout_final))
    return found


def _front_matter(manifest: Manifest, provenance: Provenance, name: str) -> str:
    lines = [
        "---",
        f"base_model: {_yaml(base_model(provenance.model))}",
        "library_name: peft",
        f"pipeline_tag: {_pipeline(provenance.model)}",
        "tags:",
        "- lora",
        "- grpo",
        "- reinforcement-learning",
    ]
    results = _results_of(manifest, name)
    if results:
        lines += ["model-index:", f"- name: {_yaml(f'{manifest.run_id}-{name}')}", "  results:"]
    for title, _, result in results:
        lines += [
            "  - task:",
            "      type: reinforcement-learning",
            "    dataset:",
            f"      name: {_yaml(f'{provenance.task_environment}, {title.lower()}, {result.of} items')}",
            f"      type: {_yaml(provenance.task_environment)}",
            "    metrics:",
            "    - type: success_rate",
            f"      value: {result.success:.4f}",
            f"      name: {_yaml(f'{count(result)} solved, 95% interval {interval(result)}')}",
        ]
    return "\n".join([*lines, "---"])


def _results_table(manifest: Manifest, name: str) -> str:
    results = _results_of(manifest, name)
    if not results:
        return "This adapter's step was not evaluated."
    rows = ["| | Baseline | This adapter | Change |", "|---|---|---|---|"]
    for title, baseline, result in results:
        before = f"{count(baseline)}, {percent(baseline.success)} ({interval(baseline)})" if baseline else "not known"
        after = f"**{count(result)}, {percent(result.success)}** ({interval(result)})"
        rows.append(f"| {title} | {before} | {after} | {gain(baseline, result) if baseline else ''} |")
    notes = ["", "Intervals are 95% Wilson score intervals. The baseline is the same base model without the adapter."]
    if manifest.ceiling is not None:
        notes.append(ceiling_sentence(manifest.ceiling))
    if len(results) == 1:
        notes.append("This adapter was not evaluated on the hold-out.")
    return "\n".join([*rows, *notes])


def _limits(manifest: Manifest, provenance: Provenance) -> str:
    lines = [
        f"- It was trained for one thing: the items of {_code(provenance.task_environment)}. "
        "It was not evaluated on anything else, and other abilities of the base model may be worse than before.",
        "- It is not a safety-tuned model: the only thing that was rewarded is solving those items.",
        "- Training used one random seed, so the spread between seeds is not known.",
    ]
    sizes = [one.of for one in (manifest.final, manifest.holdout_final) if one]
    if sizes:
        lines.append(
            f"- Results rest on {' and '.join(f'{n:,}' for n in sizes)} items. "
            "Do not read differences that are smaller than the intervals."
        )
    if manifest.best is not None:
        lines.append("- `best` was chosen on the fixed set, which flatters its figure there.")
    return "\n".join(lines)


def _use(provenance: Provenance, name: str) -> str:
    folder = f"adapters/{clean(name)}"
    return (
        "```python\nfrom peft import PeftModel\n\n"
        f"# base_model: {clean(base_model(provenance.model)).replace('`', 'ʼ')}\n"
        f"model = PeftModel.from_pretrained(base_model, {folder!r})\n```\n\n"
        "Ray Serve loads it by name when `dynamic_lora_loading_path` is the folder above this one."
    )


def _origin(manifest: Manifest, provenance: Provenance, spec: RunSpec | None) -> str:
    facts = [
        ("Run", provenance.run_id),
        ("Base model", provenance.model),
        ("Task code", provenance.task_code),
        ("Image", provenance.image),
        ("SHA-256 of the spec", provenance.spec_sha256),
        *(training_facts(spec) if spec else []),
    ]
    rows = [f"| {label} | {_md(value)} |" for label, value in facts]
    ends = "; ".join(f"attempt {one.n}: {_md(cause_words(one.end_cause))}" for one in manifest.attempts)
    more = "" if spec else "\n\nData, seeds and all training numbers are in the run's `spec.json`."
    cost = f"\n\n{hours(manifest.gpu_hours)} GPU-hours." + (f" {ends[:1].upper()}{ends[1:]}." if ends else "")
    return "\n".join(["| | |", "|---|---|", *rows]) + more + cost


def model_card(manifest: Manifest, provenance: Provenance, adapter_name: str, spec: RunSpec | None = None) -> str:
    """README.md of one published adapter. ``spec`` adds data, seeds and training numbers.

    Raises KeyError if the manifest has no adapter of that name.
    """
    step = manifest.adapters[adapter_name]
    parts = [
        _front_matter(manifest, provenance, adapter_name),
        f"# {_md(manifest.run_id)}, {_md(adapter_name)} adapter",
        f"A LoRA adapter for {_code(base_model(provenance.model))}, trained with reinforcement learning (GRPO) on "
        f"{_code(provenance.task_environment)}; the state after step {step:,}.",
        f"## Results\n\n{_results_table(manifest, adapter_name)}",
        f"## How to load it\n\n{_use(provenance, adapter_name)}",
        f"## What it is not good for\n\n{_limits(manifest, provenance)}",
        f"## Where it comes from\n\n{_origin(manifest, provenance, spec)}",
    ]
    return "\n\n".join(parts) + "\n"
