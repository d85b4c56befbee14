"""`make lint`: what it lets pass has a reason beside it, and what it cannot do here it says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.repository import ROOT

CODE = [
    path for folder in ("functions", "training_job", "cli", "local", "docs", ".ci") for path in (ROOT / folder).rglob("*.py")
]  # fmt: skip
TYPED = [path for path in CODE if {"functions", "training_job"} & set(path.relative_to(ROOT).parts[:1])]


def script(name: str) -> ModuleType:
    where = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert where is not None and where.loader is not None
    module = importlib.util.module_from_spec(where)
    sys.modules[name] = module
    where.loader.exec_module(module)
    return module


def lines(paths: list[Path], what: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in paths
        for line in path.read_text().splitlines()
        if re.search(what, line)
    ]


def test_every_suppression_of_a_rule_says_why_on_its_line() -> None:
    found = lines(CODE, r"# noqa")
    assert found
    assert [line for line in found if not re.search(r"# noqa: [A-Z0-9, ]+ - \S.{3,}", line)] == []


def test_every_suppression_of_the_type_checker_names_its_rule_and_says_why() -> None:
    found = lines(TYPED, r"# type: ignore")
    assert found
    assert [line for line in found if not re.search(r"# type: ignore\[[a-z-]+\]  # \S.{3,}", line)] == []


@pytest.mark.parametrize(
    ("path", "suppression"),
    [(".ci/checkov.yaml", r"^  - CKV"), ("container/Dockerfile", r"^# hadolint ignore=")],
)
def test_every_check_that_is_left_out_has_its_reason_above_it(path: str, suppression: str) -> None:
    text = (ROOT / path).read_text().splitlines()
    reasonless = [
        line
        for number, line in enumerate(text)
        if re.match(suppression, line)
        and not re.match(r"\s*# \S.{15,}", text[number - 1])
        and not re.match(suppression, text[number - 1])
    ]
    assert [line for line in reasonless if line] == []


# secrets ------------------------------------------------------------------------------------------------------------


def test_a_secret_that_nobody_knows_of_fails_and_so_does_a_known_one_that_is_gone() -> None:
    secrets = script("secrets")
    allowed = secrets.known("a.py | Slack Token | 1 | made up for a test\n")
    assert secrets.judged({("a.py", "Slack Token"): 1}, allowed) == []
    [news] = secrets.judged({("a.py", "Slack Token"): 2}, allowed)
    assert "a.py: Slack Token (2 of them, 1 known)" in news
    [gone] = secrets.judged({}, allowed)
    assert "more often than in the file" in gone
    assert len(secrets.judged({("b.py", "Private Key"): 1}, {})) == 1


def test_a_known_secret_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="why it is none"):
        script("secrets").known("a.py | Slack Token | 1 | \n")


# vulnerabilities ----------------------------------------------------------------------------------------------------

CLEAN: dict[str, Any] = {"name": "one", "version": "1", "vulns": []}
BAD: dict[str, Any] = {"name": "two", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNKNOWN: dict[str, Any] = {"name": "three", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("report", "required", "status", "said"),
    [
        ({"dependencies": [CLEAN]}, True, 0, "no known vulnerability in 1 packages"),
        ({"dependencies": [CLEAN, BAD]}, False, 1, "two 2: PYSEC-1, fixed in 2.1"),
        ({"dependencies": [BAD, UNKNOWN]}, False, 1, "PYSEC-1"),
        ({"dependencies": [CLEAN, UNKNOWN]}, False, 0, "not audited"),
        ({"dependencies": [CLEAN, UNKNOWN]}, True, 1, "AUDIT=required"),
        (None, False, 0, "not audited"),
        (None, True, 1, "AUDIT=required"),
    ],
)
def test_a_vulnerability_fails_silence_is_told_and_fails_where_an_audit_is_required(
    report: Any, required: bool, status: int, said: str
) -> None:
    found = script("audit").judged(report, required)
    assert found[0] == status and said in found[1]
