"""The report and the model card: well formed, nothing from outside becomes markup, every number is there."""

from __future__ import annotations

import ast
import json
import re
import shlex
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
import yaml
from huggingface_hub import ModelCard as HubCard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightshift.contract import Manifest, Provenance, versions
from nightshift.report import model_card, render_report
from nightshift.report.card import Adapter
from nightshift.report.style import DARK, LIGHT
from nightshift.report.svg import curve_svg, kept_points, step_ticks
from tests.builders import spec
from tests.report.support import (
    ATTEMPT_LINES,
    ATTEMPTS,
    CURVE,
    EVALS,
    HOSTILE,
    SOME_EVAL,
    attempt,
    evaluated,
    manifest,
    provenance,
)

VOID = {"meta", "circle", "line", "rect", "polygon"}
TAGS = VOID | {
    "html", "head", "title", "style", "body", "header", "main", "footer", "section", "p", "h1", "h2", "h3", "span", "div",
    "dl", "dt", "dd", "svg", "g", "text", "figure", "figcaption", "ul", "li", "details", "summary", "table", "caption",
    "thead", "tbody", "tr", "th", "td", "pre", "a",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "role", "aria-label", "aria-hidden", "tabindex", "scope",
    "colspan", "href", "viewbox", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "width", "height", "open", "points",
    "text-anchor",
}  # fmt: skip


class Page(HTMLParser):
    """Checks the nesting of elements, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_every_number_of_a_finished_run_is_in_its_report() -> None:
    page = Page(render_report(manifest(), provenance()))

    for part in (
        "From 28 of 64 to 62 of 64 solved", "43.8%", "96.9%", "32.3% to 55.9%", "89.3% to 99.1%", "193 of 500",
        "462 of 500", "34.4% to 42.9%", "89.7% to 94.4%", "target of 95.0% was reached", "Every item", "18.0", "6.70",
        "11.3", "i-0a1b2c", "a node was lost", "trained to its end", "exactly the last step", "2026-11-30", "01:02:03",
        "02:09:03", "adapters/final", "owner/Model-VL-8B", "dynamic_lora_loading_path", "PeftModel.from_pretrained",
        "cd" * 32, "ef" * 32, "1f" * 32, "2e" * 32, "68.2 KiB", "0.3.0", "4f" * 20, "tasks.mazes:Maze",
    ):  # fmt: skip
        assert part in page.text, part


def test_the_report_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    text = render_report(manifest(), provenance())
    page = Page(text)

    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text
    assert [one["href"] for one in page.attributes("a")] == [
        "./adapters/final/adapter_model.safetensors",
        "./curve.png",
    ]


def test_a_reader_who_does_not_see_the_pictures_gets_their_figures() -> None:
    page = Page(render_report(manifest(), provenance()))

    for picture in page.attributes("svg"):
        assert picture.get("aria-hidden") == "true" or (picture["role"] == "img" and picture["aria-label"])
    assert all(cell.get("scope") in ("col", "row") for cell in page.attributes("th"))
    assert "All evals as a table" in page.text
    assert "Step 30, attempt 1: 41 of 64, 64.1% (51.8% to 74.7%). This state was lost with its attempt." in page.text


def manifests(least: int = 0) -> st.SearchStrategy[Manifest]:
    """Any manifest, with at least so many evals and adapters."""
    return st.builds(
        manifest,
        run_id=HOSTILE,
        state=st.sampled_from(["succeeded", "failed", "cancelled"]) | HOSTILE,
        target=st.none() | st.floats(0.01, 1),
        ceiling=st.none() | st.floats(0.01, 1),
        attempts=st.lists(ATTEMPT_LINES, max_size=4),
        baseline=EVALS,
        final=EVALS,
        best=EVALS,
        holdout_baseline=EVALS,
        holdout_final=EVALS,
        curve=st.lists(SOME_EVAL, min_size=least, max_size=6),
        adapters=st.dictionaries(HOSTILE, st.integers(0, 400), min_size=least, max_size=3),
        objects=st.dictionaries(HOSTILE, st.just(manifest().objects["curve.png"]), max_size=4),
    )


PROVENANCES = st.builds(
    provenance, owner=HOSTILE, image=HOSTILE, task_code=HOSTILE, model=HOSTILE, task_environment=HOSTILE,
    skyrl_version=st.none() | HOSTILE, controller_version=HOSTILE,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(manifests(), PROVENANCES)
def test_whatever_comes_in_stays_text(one: Manifest, origin: Provenance) -> None:
    page = Page(render_report(one, origin))

    assert {tag for tag, _ in page.tags} <= TAGS
    assert {name for _, attrs in page.tags for name in attrs} <= ATTRIBUTES
    assert all((link["href"] or "").startswith("./") for link in page.attributes("a"))


def test_outside_text_is_shown_as_it_came() -> None:
    line = attempt(1, end_cause="code_error", message="ValueError: <b>&amp;</b> \x1b[31mred", node="<i-1>")
    text = render_report(manifest(attempts=[line]), provenance())

    assert "ValueError: &lt;b&gt;&amp;amp;&lt;/b&gt; [31mred" in text
    assert "&lt;i-1&gt;" in text


def test_a_run_that_left_nothing_has_a_report_that_says_so() -> None:
    empty = manifest(
        state="failed", attempts=[], baseline=None, final=None, best=None, curve=[], adapters={}, objects={},
        holdout_baseline=None, holdout_final=None,
    )  # fmt: skip
    page = Page(render_report(empty, provenance()))

    for part in ("did not finish", "No eval result", "No attempt was started", "No adapter was published", "0 objects"):
        assert part in page.text
    assert "was reached" not in page.text


def test_a_failed_run_is_not_called_finished_and_says_why() -> None:
    lost = attempt(1, end_cause="gpu_out_of_memory")
    page = Page(render_report(manifest(state="failed", attempts=[lost], final=evaluated(30)), provenance()))

    assert "This run did not finish: ran out of GPU memory" in page.text
    assert "was missed by 48.1 points" in page.text
    assert "was reached" not in page.text


# ------------------------------------------------------------------ the curve
def test_the_line_goes_through_the_evals_that_the_final_policy_descends_from() -> None:
    kept = kept_points(CURVE, ATTEMPTS)

    assert [(one.step, one.attempt) for one in kept] == [(0, 1), (10, 1), (20, 1), (30, 2), (40, 2), (50, 2)]


def test_an_eval_past_the_resumed_step_is_lost_even_where_nobody_evaluated_that_step_again() -> None:
    kept = kept_points(CURVE[:4], ATTEMPTS)

    assert [one.step for one in kept] == [0, 10, 20]


def test_the_curve_tells_attempts_apart_and_marks_the_recovery() -> None:
    picture = ET.fromstring(curve_svg(manifest()))
    classes = [one.get("class") for one in picture.iter()]

    assert classes.count("stroke s0") == 2 and classes.count("stroke s1") == 3
    assert classes.count("mark s0") == 3 and classes.count("mark s1") == 3 and classes.count("mark s0 lost") == 1
    assert classes.count("recovery") == 1
    titles = [one.text for one in picture.iter() if one.tag == "title"]
    assert "Attempt 2 went on from step 20. Before it: a node was lost." in titles
    assert len(titles) == len(CURVE) + 1


@settings(max_examples=30, deadline=None)
@given(manifests(least=1), st.sampled_from([(880, 360), (380, 300)]))
def test_nothing_is_drawn_outside_the_picture(one: Manifest, size: tuple[int, int]) -> None:
    picture = ET.fromstring(curve_svg(one, *size))

    for element in picture.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(element.get(name, 0)) <= size[0]
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(element.get(name, 0)) <= size[1]


@given(st.integers(1, 10**6), st.integers(3, 12))
def test_ticks_are_few_and_round(last: int, most: int) -> None:
    ticks = step_ticks(last, most)

    assert 2 <= len(ticks) <= most + 1 and ticks[0] == 0 and ticks[-1] <= last
    assert re.fullmatch("[125]0*", str(ticks[1]))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_a_contrast_of_at_least_4_5_and_lines_of_at_least_3(theme: str) -> None:
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6});", theme))

    for name in ("ink", "soft", "good", "bad", "warn", "link", "s0", "s1", "s2", "s3", "before"):
        for ground in ("paper", "panel") + (("code",) if name == "ink" else ()):
            light, dark = sorted((_luminance(colours[name]), _luminance(colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= (
                3 if (name[0] == "s" and name != "soft") or name == "before" else 4.5
            )


# ------------------------------------------------------------------ the model card
def front_matter(card: str) -> dict:
    _, head, _ = card.split("---\n", 2)
    return yaml.safe_load(head)


def test_the_card_has_what_the_hub_reads_and_what_a_reader_must_know() -> None:
    card = model_card(manifest(), provenance(), "final")
    head = front_matter(card)

    assert head["base_model"] == "owner/Model-VL-8B"
    assert head["library_name"] == "peft" and head["pipeline_tag"] == "image-text-to-text"
    assert [one["metrics"][0]["value"] for one in head["model-index"][0]["results"]] == [0.9688, 0.924]
    for part in ("62 of 64", "28 of 64", "89.3% to 99.1%", "462 of 500", "What it is not good for", "Hold-out", "18.0"):
        assert part in card


def test_the_card_of_another_step_does_not_borrow_the_final_results() -> None:
    best = evaluated(63, step=40, attempt=2)
    card = model_card(manifest(best=best, adapters={"best": 40, "final": 50}), provenance(), "best")

    results = card.partition("## Curve")[0]
    assert "63 of 64" in results and "not evaluated on the hold-out" in results
    assert "62 of 64" not in results and "462 of 500" not in card


def test_the_hubs_own_reader_finds_the_base_the_licence_and_both_results() -> None:
    card = HubCard(model_card(manifest(), provenance(), Adapter("final", licence="apache-2.0")))

    assert (card.data.base_model, card.data.license) == ("owner/Model-VL-8B", "apache-2.0")
    found = [(one.dataset_name, one.metric_type, one.metric_value) for one in card.data.eval_results]
    assert found == [
        ("tasks.mazes:Maze, fixed set, 64 items", "success_rate", 0.9688),
        ("tasks.mazes:Maze, hold-out, 500 items", "success_rate", 0.924),
    ]


@pytest.mark.parametrize(
    "source", ["/shared/models/mine", "s3://bucket/models/mine", "package://task/model", "hf://x@y"]
)
def test_a_base_model_that_the_hub_does_not_have_is_not_named_to_it(source: str) -> None:
    card = model_card(manifest(), provenance(model=source), "final")

    assert "base_model" not in front_matter(card)
    assert f"BASE_MODEL is `{source.removeprefix('hf://').partition('@')[0]}`" in card


@pytest.mark.parametrize(("licence", "told"), [("mit", "mit"), ("My own: terms\n- x", "other"), (None, None)])
def test_the_licence_is_the_base_models_and_never_breaks_the_front_matter(
    licence: str | None, told: str | None
) -> None:
    card = model_card(manifest(), provenance(), Adapter("final", licence=licence))

    assert front_matter(card).get("license") == told
    assert ("its files name none" in card) == (licence is None)


def test_the_curve_of_a_long_run_is_a_short_table_with_the_adapters_own_step() -> None:
    curve = [evaluated(i // 10, step=10 * i) for i in range(401)]
    card = model_card(
        manifest(curve=curve, attempts=[], adapters={"best": 3_770}), provenance(), Adapter("best", picture=True)
    )

    rows = re.findall(r"^\| \**([\d,]+)\** \| \d+ of 64", card, re.MULTILINE)
    assert rows[0] == "0" and rows[-1] == "4,000" and "3,770" in rows and len(rows) <= 14
    assert "| **3,770** |" in card and "](../../curve.png)" in card


def test_what_is_typed_to_load_the_adapter_fits_its_rank_and_its_revision() -> None:
    ranked = spec(model={"source": "hf://owner/Model-VL-8B@4f4f4f", "lora": {"rank": 33, "alpha": 66}})
    card = model_card(manifest(), provenance(model="hf://owner/Model-VL-8B@4f4f4f"), "final", ranked)

    [vllm] = re.findall(r"^vllm .*$", card, re.MULTILINE)
    words = shlex.split(vllm)
    assert words[words.index("--max-lora-rank") + 1] == "64" and words[words.index("--revision") + 1] == "4f4f4f"
    assert "revision='4f4f4f'" in card and '"max_lora_rank": 64' in card
    assert "s3://YOUR-BUCKET/runs/maze-demo/adapters" in card


def test_what_the_weights_and_results_are_can_be_checked() -> None:
    card = model_card(manifest(), provenance(), Adapter("final", weights_sha256="1f" * 32))

    for part in ("1f" * 32, CURVE[-1].rows_sha256, versions.SKYRL_SHA, "cd" * 32, "ef" * 32):
        assert part in card


def test_a_card_for_an_adapter_that_was_not_published_is_an_error() -> None:
    with pytest.raises(KeyError):
        model_card(manifest(), provenance(), "other")


@settings(max_examples=40, deadline=None)
@given(manifests(least=1), PROVENANCES)
@example(manifest(adapters={"best": 1}), provenance(model="```"))
def test_a_card_stays_a_card_whatever_comes_in(one: Manifest, origin: Provenance) -> None:
    name = next(iter(one.adapters))
    card = model_card(one, origin, name)
    head = front_matter(card)

    assert set(head) <= {
        "base_model", "base_model_relation", "license", "library_name", "pipeline_tag", "tags", "model-index",
    }  # fmt: skip
    json.dumps(head)
    headings = [line for line in card.splitlines() if line.startswith("#") and not line.startswith("# then ask for")]
    assert [line.split(" ")[0] for line in headings] == ["#", "##", "##", "##", "##", "##", "##"]
    for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        ast.parse(code)
    prose = re.sub(r"```.*?```", "", card.split("---\n", 2)[2], flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<", re.sub(r"`[^`\n]*`", "", prose))
