"""The model card of a published adapter: Markdown with the YAML front matter that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.contract import versions
from nightshift.contract.evals import EvalSummary
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest, Provenance
from nightshift.contract.spec import RunSpec
from nightshift.report.facts import base_model, parent_words, training_facts
from nightshift.report.svg import kept_points
from nightshift.report.text import ceiling_sentence, count, gain, interval, result_words, sparkline
from nightshift.report.words import cause_words, clean, hours, moment, percent

MOST_ROWS = 12
"""Rows of the curve's table; the picture and the eval files have every point."""

VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for ``--max-lora-rank``."""

OWN_LICENCE = "apache-2.0"

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
_HUB_NAME = re.compile(r"[\w.\-]{1,96}/[\w.\-]{1,96}", re.ASCII)
_LICENCE_ID = re.compile(r"[a-z0-9][a-z0-9.\-]{0,60}")


@dataclass(frozen=True)
class Adapter:
    """What a card says of one adapter beyond the manifest. ``licence`` is the base model's, as its own files name it (an
    identifier of the Hub's); ``picture``: the run has a curve.png."""

    name: str
    weights_sha256: str | None = None
    licence: str | None = None
    picture: bool = False


def _md(text: str) -> str:
    """Outside text as plain Markdown: one line, nothing in it formats, links or is HTML."""
    return _SPECIAL.sub(r"\\\1", clean(text)).replace("&", "&amp;")


def _code(text: str) -> str:
    return f"`{clean(text).replace('`', 'ʼ')}`"


def _fenced(text: str) -> str:
    """Outside text in a fenced block, which it cannot end."""
    return clean(text).replace("`", "ʼ")


def _yaml(text: str) -> str:
    """A double-quoted scalar; JSON strings of printable characters are YAML."""
    return json.dumps(clean(text), ensure_ascii=False)


def _pipeline(model: str) -> str:
    """The Hub's pipeline tag by the base model's name: models that see pictures say so there."""
    sees = re.search(r"(?i)(\bvl\b|vision)", re.sub(r"[-_/.]", " ", model))
    return "image-text-to-text" if sees else "text-generation"


def _results_of(manifest: Manifest, name: str) -> list[tuple[str, EvalSummary | None, EvalSummary]]:
    """(set, baseline, result) of the adapter's own step."""
    step = manifest.adapters[name]
    found: list[tuple[str, EvalSummary | None, EvalSummary]] = []
    fixed = next((one for one in (manifest.final, manifest.best) if one and one.step == step), None)
    if fixed is not None:
        found.append(("Fixed set", manifest.baseline, fixed))
    held = next((one for one in (manifest.holdout_final, manifest.holdout_best) if one and one.step == step), None)
    if held is not None:
        found.append(("Hold-out", manifest.holdout_baseline, held))
    return found


def _hub_name(source: str) -> str | None:
    """``owner/name`` where the base model is one of the Hub's; the Hub refuses anything else as a base model."""
    name = base_model(source)
    return name if source.startswith("hf://") and _HUB_NAME.fullmatch(name) else None


def _licence_lines(licence: str | None) -> list[str]:
    """The adapter is a work on the base model: its licence is the base model's. The Hub knows ``other`` for the rest."""
    if licence is None:
        return []
    return [f"license: {licence}"] if _LICENCE_ID.fullmatch(licence) else ["license: other"]


def _front_matter(manifest: Manifest, provenance: Provenance, adapter: Adapter) -> str:
    hub = _hub_name(provenance.model)
    lines = [
        "---",
        *([f"base_model: {_yaml(hub)}", "base_model_relation: adapter"] if hub else []),
        *_licence_lines(adapter.licence),
        "library_name: peft",
        f"pipeline_tag: {_pipeline(provenance.model)}",
        "tags:",
        "- lora",
        "- grpo",
        "- reinforcement-learning",
        "- nightshift",
    ]
    results = _results_of(manifest, adapter.name)
    if results:
        lines += ["model-index:", f"- name: {_yaml(f'{manifest.run_id}-{adapter.name}')}", "  results:"]
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
    told = ". ".join(f"{title}: **{result_words(result)}**" for title, _, result in results)
    rows = [f"{told}.", "", "| | Baseline | This adapter | Change |", "|---|---|---|---|"]
    for title, baseline, result in results:
        before = f"{count(baseline)}, {percent(baseline.success)} ({interval(baseline)})" if baseline else "not known"
        after = f"**{count(result)}, {percent(result.success)}** ({interval(result)})"
        rows.append(f"| {title} | {before} | {after} | {gain(baseline, result) if baseline else ''} |")
    begun = "without the adapter" if manifest.parent is None else "with the parent's adapter, with which it began"
    notes = ["", f"Intervals are 95% Wilson score intervals. The baseline is the same base model {begun}."]
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


def _curve(manifest: Manifest, adapter: Adapter) -> str:
    points = kept_points(manifest.curve, manifest.attempts)
    if not points:
        return "No eval of the fixed set is part of this run's history."
    line = sparkline([one.success for one in points])
    told = (
        f"`{line}` success on the fixed set on a scale of 0% to 100%, step {points[0].step:,} to {points[-1].step:,}."
    )
    rows = ["| Step | Solved | Share | 95% interval |", "|---:|---:|---:|---|"]
    own = manifest.adapters[adapter.name]
    for one in _thinned(points, own):
        step = f"**{one.step:,}**" if one.step == own else f"{one.step:,}"
        rows.append(f"| {step} | {count(one)} | {percent(one.success)} | {interval(one)} |")
    picture = ["", "![Success on the fixed set by step](../../curve.png)"] if adapter.picture else []
    return "\n".join([told, *picture, "", *rows])


def _thinned(points: Sequence[EvalSummary], own: int) -> list[EvalSummary]:
    """At most ``MOST_ROWS`` of them; the first, the last and the adapter's own step stay."""
    stride = max(1, -(-(len(points) - 1) // (MOST_ROWS - 2)))
    return [one for i, one in enumerate(points) if i % stride == 0 or i == len(points) - 1 or one.step == own]


def _use(provenance: Provenance, adapter: Adapter, spec: RunSpec | None) -> str:
    name, hub = _fenced(adapter.name), _hub_name(provenance.model)
    base, folder = hub or "BASE_MODEL", f"adapters/{name}"
    revision = _fenced(provenance.model).partition("@")[2] if hub else ""
    kind = "ImageTextToText" if _pipeline(provenance.model) == "image-text-to-text" else "CausalLM"
    rank = next((one for one in VLLM_RANKS if spec is not None and one >= spec.model.lora.rank), None)
    pinned = f", revision={revision!r}" if revision else ""
    peft = (
        f"from peft import PeftModel\nfrom transformers import AutoModelFor{kind}\n\n"
        f"base = AutoModelFor{kind}.from_pretrained({base!r}{pinned})\n"
        f"model = PeftModel.from_pretrained(base, {folder!r})"
    )
    flags = [f"--revision {shlex.quote(revision)}"] if revision else []
    flags += ["--enable-lora", *([f"--max-lora-rank {rank}"] if rank else [])]
    vllm = f"vllm serve {base} {' '.join(flags)} --lora-modules {shlex.quote(f'{name}={folder}')}"
    limit = f', "max_lora_rank": {rank}' if rank else ""
    serve = (
        "from ray.serve.llm import LLMConfig, LoraConfig\n\nLLMConfig(\n"
        f'    model_loading_config={{"model_id": "base", "model_source": {base!r}}},\n'
        f'    engine_kwargs={{"enable_lora": True{limit}}},\n'
        f"    lora_config=LoraConfig(dynamic_lora_loading_path={_folder(provenance)!r}),\n)\n"
        f"# then ask for the model {f'base:{name}'!r}"
    )
    where = f"BASE_MODEL is {_code(base_model(provenance.model))}, loaded as usual.\n\n" if hub is None else ""
    return (
        f"{where}PEFT, from the run's folder:\n\n```python\n{peft}\n```\n\n"
        f"vLLM:\n\n```\n{vllm}\n```\n\n"
        f"Ray Serve, which loads adapters by name when they are asked for:\n\n```python\n{serve}\n```"
    )


def _folder(provenance: Provenance) -> str:
    return f"s3://YOUR-BUCKET/{RunKeys(_fenced(provenance.run_id)).prefix}adapters"


def _origin(manifest: Manifest, provenance: Provenance, adapter: Adapter, spec: RunSpec | None) -> str:
    facts = [
        ("Run", provenance.run_id),
        ("Published", moment(manifest.at)),
        ("Base model", provenance.model),
        *([("Parent", parent_words(provenance.parent))] if provenance.parent else []),
        ("Task", provenance.task_environment),
        ("Task code", provenance.task_code),
        ("Image", provenance.image),
        *_trainer_facts(provenance),
        ("Nightshift", provenance.controller_version),
        ("SHA-256 of the spec", provenance.spec_sha256),
        *([("SHA-256 of the weights", adapter.weights_sha256)] if adapter.weights_sha256 else []),
        *(
            (f"SHA-256 of the {title.lower()}'s rows", result.rows_sha256)
            for title, _, result in _results_of(manifest, adapter.name)
        ),
        *(training_facts(spec) if spec else []),
    ]
    rows = [f"| {label} | {_md(value)} |" for label, value in facts]
    ends = "; ".join(f"attempt {one.n}: {_md(cause_words(one.end_cause))}" for one in manifest.attempts)
    more = "" if spec else "\n\nData, seeds and all training numbers are in the run's `spec.json`."
    cost = f"\n\n{hours(manifest.gpu_hours)} GPU-hours." + (f" {ends[:1].upper()}{ends[1:]}." if ends else "")
    return "\n".join(["| | |", "|---|---|", *rows]) + more + cost


def _trainer_facts(provenance: Provenance) -> list[tuple[str, str]]:
    """The commits are those of this project's image; another one's are its builder's to tell."""
    if provenance.skyrl_version is None:
        return [("Trainer", "the small local one, on a CPU")]
    return [
        ("SkyRL", f"{provenance.skyrl_version}; this project's image has commit {versions.SKYRL_SHA}"),
        ("VisGym, where the task uses it", f"this project's image has commit {versions.VISGYM_SHA}"),
        ("Ray", versions.RAY),
    ]


def _licences(adapter: Adapter, provenance: Provenance) -> str:
    base = (
        f"its files name {_code(adapter.licence)}, which goes with what is made of it"
        if adapter.licence
        else "its files name none; ask whoever published it before you pass this adapter on"
    )
    return f"- Base model {_code(provenance.model)}: {base}.\n- Nightshift, which trained it: `{OWN_LICENCE}`."


def model_card(manifest: Manifest, provenance: Provenance, adapter: Adapter | str, spec: RunSpec | None = None) -> str:
    """README.md of one published adapter. ``spec`` adds data, seeds and training numbers.

    Raises KeyError if the manifest has no adapter of that name.
    """
    adapter = Adapter(adapter) if isinstance(adapter, str) else adapter
    step = manifest.adapters[adapter.name]
    parts = [
        _front_matter(manifest, provenance, adapter),
        f"# {_md(manifest.run_id)}, {_md(adapter.name)} adapter",
        f"A LoRA adapter for {_code(base_model(provenance.model))}, trained with reinforcement learning (GRPO) on "
        f"{_code(provenance.task_environment)}; the state after step {step:,}.",
        f"## Results\n\n{_results_table(manifest, adapter.name)}",
        f"## Curve\n\n{_curve(manifest, adapter)}",
        f"## How to load it\n\n{_use(provenance, adapter, spec)}",
        f"## What it is not good for\n\n{_limits(manifest, provenance)}",
        f"## Where it comes from\n\n{_origin(manifest, provenance, adapter, spec)}",
        f"## Licences\n\n{_licences(adapter, provenance)}",
    ]
    return "\n\n".join(parts) + "\n"
