"""The tables of the report, each a function from contract models to HTML in which all outside text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape
from itertools import pairwise
from urllib.parse import quote

from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import AttemptLine, Manifest, Provenance
from nightshift.contract.spec import RunSpec
from nightshift.report.facts import base_model, parent_words, training_facts
from nightshift.report.svg import kept_points
from nightshift.report.text import attempt_notes, count, interval, resume_sentence
from nightshift.report.words import bounded, cause_words, clean, hours, moment, percent, plural, size, spend_words, utc


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""


def _head(columns: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f'<th scope="col"{_class(css)}>{title}</th>' for title, css in columns)
    return f"<thead><tr>{cells}</tr></thead>"


def _cell(text: str, css: str = "") -> str:
    return f"<td{_class(css)}>{escape(text)}</td>"


def _scroll(label: str, table: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def evals(manifest: Manifest) -> str:
    """The points of the curve as a table, folded: the picture's figures for those who do not see it."""
    if not manifest.curve:
        return ""
    kept = kept_points(manifest.curve, manifest.attempts)
    rows = []
    for one in sorted(manifest.curve, key=lambda e: (e.step, e.attempt)):
        note = "" if one in kept else "lost with its attempt"
        if manifest.best is not None and (one.step, one.attempt) == (manifest.best.step, manifest.best.attempt):
            note = "best"
        rows.append(
            f'<tr><th scope="row" class="number">{one.step:,}</th>{_cell(str(one.attempt), "number")}'
            f"{_cell(count(one), 'number')}{_cell(percent(one.success), 'number')}{_cell(interval(one))}"
            f"{_cell(f'{one.avg_score:.3f}', 'number')}{_cell(note)}</tr>"
        )
    head = _head(
        [
            ("Step", "number"),
            ("Attempt", "number"),
            ("Solved", "number"),
            ("Share", "number"),
            ("95% interval", ""),
            ("Mean score", "number"),
            ("", ""),
        ]
    )
    table = f"<table><caption>Evals on the fixed set</caption>{head}<tbody>{''.join(rows)}</tbody></table>"
    return f"<details><summary>All evals as a table</summary>{_scroll('Evals', table)}</details>"


def _when(at: datetime | None) -> str:
    if at is None:
        return "<td>–</td>"
    day, time = utc(at).strftime("%Y-%m-%d %H:%M:%S").split()
    return f'<td class="when"><span class="day">{day}</span> <span class="time">{time}</span></td>'


def _attempt_rows(line: AttemptLine) -> str:
    resumed = "–" if line.resumed_step is None else f"{line.resumed_step:,}"
    told = "; ".join(part for part in (clean(line.message), attempt_notes(line)) if part)
    more = ' class="more"' if told else ""
    row = (
        f'<tr{more}><th scope="row" class="number">{line.n}</th>'
        f"{_when(line.started_at)}{_when(line.ended_at)}{_cell(cause_words(line.end_cause))}"
        f"{_cell(clean(line.signal or '–'))}{_cell(bounded(clean(line.node or '–'), 60), 'node')}"
        f"{_cell(resumed, 'number')}{_cell(f'{line.last_saved_step:,}', 'number')}"
        f"{_cell(hours(line.gpu_hours), 'number')}</tr>"
    )
    if told:
        row += f'<tr><td></td><td class="message" colspan="8">{escape(told)}</td></tr>'
    return row


def attempts(manifest: Manifest) -> str:
    """What happened, in sentences where something did, and the table of attempts."""
    lines = sorted(manifest.attempts, key=lambda one: one.n)
    if not lines:
        return '<h2>Attempts</h2><p class="empty">No attempt was started.</p>'
    story = []
    for before, after in pairwise(lines):
        node = f" ({clean(before.node)})" if before.node else ""
        story.append(f"Attempt {before.n}: {cause_words(before.end_cause)}{node}. {resume_sentence(before, after)}")
    told = '<ul class="story">' + "".join(f"<li>{escape(one)}</li>" for one in story) + "</ul>" if story else ""
    head = _head(
        [
            ("Attempt", "number"),
            ("Start (UTC)", ""),
            ("End (UTC)", ""),
            ("How it ended", ""),
            ("Noticed by", ""),
            ("Node", ""),
            ("Resumed at step", "number"),
            ("Last saved step", "number"),
            ("GPU-hours", "number"),
        ]
    )
    caption = f"<caption>{plural(len(lines), 'attempt')}, {hours(manifest.gpu_hours)} GPU-hours in all</caption>"
    body = "".join(_attempt_rows(one) for one in lines)
    table = f"<table>{caption}{head}<tbody>{body}</tbody></table>"
    return f"<h2>Attempts</h2>{told}{_scroll('Attempts', table)}{_costs(manifest)}"


def _costs(manifest: Manifest) -> str:
    """What the run is said to cost, and the smaller values that attempts trained with."""
    lines = []
    if manifest.spend is not None:
        lines.append(f"Cost: {spend_words(manifest.spend)}. HyperPod bills nodes whether they are used or not.")
    if manifest.smaller is not None:
        named = manifest.smaller.model_dump(exclude_none=True)
        values = ", ".join(f"training.{name} {value:g}" for name, value in named.items())
        lines.append(f"Smaller values, after a GPU ran out of memory: {values}.")
    return "".join(f'<p class="note-text">{escape(line)}</p>' for line in lines)


def _adapter_row(manifest: Manifest, name: str, step: int) -> str:
    result = next((one for one in (manifest.best, manifest.final) if one and one.step == step), None)
    shown = f"{count(result)} ({percent(result.success)})" if result else "not evaluated at this step"
    digest = manifest.objects.get(f"adapters/{name}/adapter_model.safetensors")
    return (
        f'<tr><th scope="row">{escape(clean(name))}</th>{_cell(f"{step:,}", "number")}{_cell(shown)}'
        f"{_cell(digest.sha256 if digest else 'no weights listed', 'digest')}</tr>"
    )


def adapters(manifest: Manifest, provenance: Provenance) -> str:
    """Published adapters and how to load them with PEFT and with Ray Serve."""
    if not manifest.adapters:
        return '<h2>Adapters</h2><p class="empty">No adapter was published.</p>'
    names = sorted(manifest.adapters, key=lambda name: (name != "final", name))
    rows = "".join(_adapter_row(manifest, name, manifest.adapters[name]) for name in names)
    head = _head([("Adapter", ""), ("Step", "number"), ("Fixed set", ""), ("SHA-256 of its weights", "")])
    table = f"<table>{head}<tbody>{rows}</tbody></table>"
    folder = f"s3://YOUR-BUCKET/{RunKeys(clean(manifest.run_id)).prefix}adapters"
    first, model = clean(names[0]), base_model(provenance.model)
    peft = f"from peft import PeftModel\n\nmodel = PeftModel.from_pretrained(base_model, {f'adapters/{first}'!r})"
    serve = (
        "from ray.serve.llm import LLMConfig, LoraConfig\n\n"
        "LLMConfig(\n"
        f'    model_loading_config={{"model_id": "base", "model_source": {model!r}}},\n'
        f"    lora_config=LoraConfig(dynamic_lora_loading_path={folder!r}),\n"
        ")\n"
        f"# then ask for the model {f'base:{first}'!r}"
    )
    return (
        f"<h2>Adapters</h2>{_scroll('Adapters', table)}"
        f"<h3>Load with PEFT</h3><p>base_model is {escape(model)}, loaded as usual; run beside this file.</p>"
        f"<pre>{escape(peft)}</pre><h3>Serve with Ray Serve</h3><pre>{escape(serve)}</pre>"
    )


def provenance_table(provenance: Provenance, spec: RunSpec | None) -> str:
    """What the run was made from."""
    pairs = [
        ("Run", provenance.run_id),
        ("Owner", provenance.owner),
        ("Base model", provenance.model),
        *([("Parent", parent_words(provenance.parent))] if provenance.parent else []),
        ("Task environment", provenance.task_environment),
        ("Task code", provenance.task_code),
        ("Image", provenance.image),
        ("SkyRL", provenance.skyrl_version or "not used: small local trainer"),
        ("Controller", provenance.controller_version),
        ("Asked for at", moment(provenance.created_at)),
        ("SHA-256 of the spec", provenance.spec_sha256),
        *(training_facts(spec) if spec else [("Data and numbers", "in spec.json beside this file")]),
    ]
    rows = "".join(f'<tr><th scope="row">{escape(a)}</th>{_cell(clean(b))}</tr>' for a, b in pairs)
    return f'<h2>Provenance</h2><table class="pairs"><tbody>{rows}</tbody></table>'


def objects(manifest: Manifest) -> str:
    """Every published object with its size and digest."""
    rows = []
    for key in sorted(manifest.objects):
        digest = manifest.objects[key]
        link = f'<a href="./{escape(quote(key, errors="replace"))}">{escape(clean(key))}</a>'
        rows.append(
            f'<tr><th scope="row" class="id">{link}</th>{_cell(size(digest.size), "number when")}'
            f"{_cell(digest.sha256, 'digest')}</tr>"
        )
    head = _head([("Object", ""), ("Size", "number"), ("SHA-256", "")])
    total = size(sum(one.size for one in manifest.objects.values()))
    return (
        f"<h2>Objects</h2><details open><summary>{plural(len(rows), 'object')}, {total}</summary>"
        f'<table class="objects">{head}<tbody>{"".join(rows)}</tbody></table></details>'
    )
