"""Which licence a base model's own files name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

_MOST_READ: Final = 200_000
_KNOWN: Final = (
    ("apache-2.0", re.compile(r"Apache License\s+Version 2\.0")),
    ("mit", re.compile(r"MIT License|Permission is hereby granted, free of charge")),
    ("bsd-3-clause", re.compile(r"Redistribution and use in source and binary forms.*Neither the name", re.DOTALL)),
)
"""Identifiers of the Hugging Face Hub's, by words that only these licences have."""

OTHER: Final = "other"


def model_licence(folder: Path) -> str | None:
    """As the front matter of README.md names it, or by the words of a LICENSE file: ``other`` for one that is not known,
    None where there is neither. What cannot be read names nothing."""
    return _of_readme(folder / "README.md") or _of_text(folder)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_READ).decode(errors="replace")
    except OSError:
        return ""


def _of_readme(path: Path) -> str | None:
    parts = re.split(r"^---\s*$", _read(path), maxsplit=2, flags=re.MULTILINE)
    if len(parts) < 3 or parts[0].strip():
        return None
    try:
        head = yaml.safe_load(parts[1])
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    named = head.get("license") if isinstance(head, dict) else None
    if isinstance(named, list) and named:
        named = named[0]
    if named == OTHER:
        named = head.get("license_name", OTHER)
    return named.strip()[:100] or None if isinstance(named, str) else None


def _of_text(folder: Path) -> str | None:
    names = sorted(one for pattern in ("LICENSE*", "LICENCE*", "license*") for one in folder.glob(pattern))
    text = next((found for one in names if (found := _read(one)).strip()), None)
    if text is None:
        return None
    return next((name for name, words in _KNOWN if words.search(text)), OTHER)
