"""The best adapter was chosen on the fixed set: wherever it is shown, so is what it solves of the hold-out."""

from __future__ import annotations

import json

from nightshift.contract.evals import EvalSet
from nightshift.contract.events import Stage
from nightshift.report.card import model_card
from nightshift.report.html import render_report
from nightshift.report.slack import blocks
from nightshift.report.text import headline
from tests.report.support import evaluated, event, manifest, provenance

BEST = evaluated(63, step=40, attempt=2)
CONFIRMED = evaluated(236, 256, 40, 2, EvalSet.HOLDOUT)
BOTH = {"best": BEST, "holdout_best": CONFIRMED, "adapters": {"best": 40, "final": 50}}


def test_headline_report_and_message_show_both_figures_of_the_best_adapter() -> None:
    one = manifest(**BOTH)
    assert headline(one) == "From 28 of 64 to 63 of 64 solved, 236 of 256 on the hold-out"
    page = render_report(one, provenance())
    said = json.dumps(blocks(event(Stage.FINISHED, baseline=one.baseline, final=one.final, **chosen(one))))
    for part in ("Best adapter, step 40", "63 of 64", "236 of 256", "which it was chosen on"):
        assert part in page and part in said


def chosen(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("best", "holdout_best")}


def test_a_best_adapter_that_nobody_confirmed_is_not_shown_as_if_it_was() -> None:
    one = manifest(best=BEST, adapters=BOTH["adapters"])
    assert headline(one) == "From 28 of 64 to 62 of 64 solved"
    assert "not confirmed on a hold-out" in render_report(one, provenance())
    assert "not confirmed on a hold-out" in json.dumps(blocks(event(Stage.FINISHED, best=BEST)))


def test_the_card_of_the_best_adapter_has_the_figure_of_its_own_hold_out_eval() -> None:
    card = model_card(manifest(**BOTH), provenance(), "best")
    assert "63 of 64" in card and "236 of 256" in card and "462 of 500" not in card
    assert "not evaluated on the hold-out" not in card
