"""The table is whole: every incident has a test of the right behaviour and one of what must not follow from it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.incidents.table import RIGHT, TABLE, TWINS, Incident

HERE = Path(__file__).parent
for module in HERE.glob("test_*.py"):
    if module != Path(__file__):
        importlib.import_module(f"tests.incidents.{module.stem}")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_every_incident_has_both_its_tests(row: Incident) -> None:
    assert RIGHT[row.number] and TWINS[row.number]
    assert all("must_not" in name for name in TWINS[row.number])
    assert not any("must_not" in name for name in RIGHT[row.number])


def test_rows_are_numbered_without_gaps_and_name_their_source() -> None:
    assert [row.number for row in TABLE] == list(range(1, 26))
    assert len({row.id for row in TABLE}) == 25
    assert all(re.fullmatch(r"\d+-\S+", row.id) and row.title for row in TABLE)
