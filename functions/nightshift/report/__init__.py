"""Pure rendering of what a run did: HTML report, model card, messages. No I/O and no clock."""

from nightshift.report.card import model_card
from nightshift.report.html import render_report
from nightshift.report.slack import blocks
from nightshift.report.text import sparkline

__all__ = ["blocks", "model_card", "render_report", "sparkline"]
