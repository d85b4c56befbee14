"""The report of a run as one self-contained HTML file: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from html import escape

from nightshift.contract.evals import EvalSet, EvalSummary
from nightshift.contract.publication import Manifest, Provenance
from nightshift.contract.spec import RunSpec
from nightshift.report.facts import parent_words
from nightshift.report.sections import adapters, attempts, evals, objects, provenance_table
from nightshift.report.style import CSS
from nightshift.report.svg import curve_svg, interval_svg, legend_svg
from nightshift.report.text import best_sentence, ceiling_sentence, count, gain, headline, interval, target_sentence
from nightshift.report.words import (
    between,
    cause_words,
    clean,
    dollars,
    duration,
    hours,
    moment,
    percent,
    plural,
)

STATES = {
    "finished": ("finished", "good"),
    "succeeded": ("finished", "good"),
    "failed": ("failed", "bad"),
    "cancelled": ("cancelled", "warn"),
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: whatever slipped in could load and run nothing."""


def _state(manifest: Manifest) -> str:
    words, css = STATES.get(manifest.state, (clean(manifest.state.replace("_", " ")), "warn"))
    return f'<span class="state {css}">{escape(words)}</span>'


def _unfinished(manifest: Manifest) -> str:
    """What a reader must know first about a run that was not finished."""
    if STATES.get(manifest.state, ("", ""))[1] == "good":
        return ""
    cause = cause_words(manifest.attempts[-1].end_cause, "no cause was recorded") if manifest.attempts else "no attempt"
    return f'<p class="lead">This run did not finish: {escape(cause)}. What it left by then is below.</p>'


def _facts(manifest: Manifest, provenance: Provenance) -> str:
    took = duration(between(provenance.created_at, manifest.at).total_seconds())
    facts = [
        ("Asked for by", clean(provenance.owner)),
        ("Asked for at", moment(provenance.created_at)),
        ("Published after", took),
        ("Attempts", f"{len(manifest.attempts)}"),
        ("GPU-hours", hours(manifest.gpu_hours)),
    ]
    if manifest.spend is not None:
        facts.append(("Attributed cost", dollars(manifest.spend.dollars)))
    return '<dl class="facts">' + "".join(f"<div><dt>{a}</dt><dd>{escape(b)}</dd></div>" for a, b in facts) + "</dl>"


def _row(label: str, result: EvalSummary, css: str) -> str:
    figures = f"{count(result)} · 95% interval {interval(result)}"
    return (
        f'<div class="row"><span>{label}</span>{interval_svg(result, css)}<span class="figures">{figures}</span></div>'
    )


def _card(title: str, baseline: EvalSummary | None, final: EvalSummary | None, note: str) -> str:
    if baseline is None and final is None:
        return ""
    before = f'<span class="from">{percent(baseline.success)}</span>' if baseline else '<span class="from">?</span>'
    after = percent(final.success) if final else "?"
    rows = (_row("baseline", baseline, "before") if baseline else "") + (_row("final", final, "after") if final else "")
    verdict = f"<p>{escape(gain(baseline, final))}</p>" if baseline and final else ""
    return (
        f'<section class="card"><h3>{title}</h3>'
        f'<p class="big">{before}<span class="arrow" aria-label="to">→</span>{after}</p>{rows}{verdict}'
        f'<p class="note-text">{escape(note)}</p></section>'
    )


def _results(manifest: Manifest) -> str:
    fixed_note = "Evaluated again and again during training; the best adapter is chosen on it."
    holdout_note = "Other items, which nothing was chosen by: the fairer figure."
    cards = _card("Fixed set", manifest.baseline, manifest.final, fixed_note)
    cards += _card("Hold-out", manifest.holdout_baseline, manifest.holdout_final, holdout_note)
    lines = []
    if manifest.parent is not None:
        lines.append(f"It began from {escape(clean(parent_words(manifest.parent)))}: the baseline is that adapter's.")
    if manifest.best is not None:
        lines.append(escape(best_sentence(manifest.best, manifest.holdout_best)))
    if manifest.target is not None:
        reached = manifest.final is not None and manifest.final.success >= manifest.target
        css = "good" if reached else "warn"
        lines.append(f'<span class="{css}">{escape(target_sentence(manifest.target, manifest.final))}</span>')
    if manifest.ceiling is not None:
        lines.append(ceiling_sentence(manifest.ceiling))
    return f'<p class="lead">{" ".join(lines)}</p><div class="cards">{cards}</div>'


def _curve(manifest: Manifest) -> str:
    numbers = sorted({one.attempt for one in manifest.curve if one.eval_set is EvalSet.FIXED})
    legend = "".join(f"<li>{legend_svg(n)}<span>attempt {n}</span></li>" for n in numbers)
    wide = curve_svg(manifest).replace('class="curve"', 'class="curve wide"', 1)
    narrow = curve_svg(manifest, width=380, height=300).replace('class="curve"', 'class="curve narrow"', 1)
    pictures = wide + narrow if numbers else wide
    told = "Band: 95% Wilson interval."
    if len(manifest.attempts) > 1:
        told += (
            " A dashed upright line marks where an attempt went on after the end of the one before it;"
            " hollow marks are evals whose policy was lost then."
        )
    return (
        f'<h2>Learning</h2><figure>{pictures}<ul class="legend">{legend}</ul>'
        f"<figcaption>{told}</figcaption></figure>{evals(manifest)}"
    )


def render_report(manifest: Manifest, provenance: Provenance, spec: RunSpec | None = None) -> str:
    """The whole report. Every text from outside is escaped; links point to objects beside the report itself.

    ``spec`` adds data, seeds and training numbers to the provenance; without it the reader is pointed to spec.json.
    """
    run_id = escape(clean(manifest.run_id))
    summary = f"{plural(len(manifest.attempts), 'attempt')}, {hours(manifest.gpu_hours)} GPU-hours"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="description" content="{escape(headline(manifest))}; {summary}">'
        f"<title>{run_id}: {escape(headline(manifest))}</title><style>{CSS}</style></head>\n<body>\n"
        f'<header><p class="run">{_state(manifest)}Run {run_id}</p><h1>{escape(headline(manifest))}</h1>'
        f"{_unfinished(manifest)}{_facts(manifest, provenance)}</header>\n<main>\n"
        f"{_results(manifest)}\n{_curve(manifest)}\n{attempts(manifest)}\n{adapters(manifest, provenance)}\n"
        f"{provenance_table(provenance, spec)}\n{objects(manifest)}\n</main>\n"
        f"<footer><p>Written by Nightshift {escape(clean(provenance.controller_version))}, {moment(manifest.at)}. "
        "manifest.json beside this file lists the same objects and digests and was written last: "
        "where it exists, the publication is complete.</p></footer>\n</body></html>\n"
    )
