"""Writes runspec.schema.json from the RunSpec model: ``make schema``. A test fails where the two differ."""

from __future__ import annotations

from pathlib import Path

from nightshift.contract.schema import schema_text

PATH = Path(__file__).with_name("runspec.schema.json")


if __name__ == "__main__":
    PATH.write_text(schema_text())
    print(f"written: {PATH.name}")
