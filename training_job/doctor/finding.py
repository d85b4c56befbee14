"""What a check answers, and checks that are run each within its own deadline."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.contract import ExitCode
from nightshift.contract.versions import REVISION_ENV

MAX_TEXT: Final = 400
"""Characters of anything measured: an error of a library can be long."""


class Verdict(StrEnum):
    """``--`` is no fault: what it is about is not here, or nobody asked for it."""

    OK = "ok"
    NO = "NO"
    NOT_HERE = "--"


@dataclass(frozen=True)
class Finding:
    """One line: what was measured and, where it speaks against a run, what a person can do.

    ``temporary`` marks what may be well again without anybody's doing.
    """

    check: str
    verdict: Verdict
    measured: str
    fix: str = ""
    temporary: bool = False

    def line(self, width: int) -> str:
        fix = f"\n{'':<{width + 4}}-> {self.fix}" if self.fix else ""
        return f"{self.verdict:<4}{self.check:<{width}}{self.measured}{fix}"


def ok(check: str, measured: str) -> Finding:
    return Finding(check, Verdict.OK, short(measured))


def not_here(check: str, why: str) -> Finding:
    return Finding(check, Verdict.NOT_HERE, short(why))


def no(check: str, measured: str, fix: str, temporary: bool = False) -> Finding:
    return Finding(check, Verdict.NO, short(measured), fix, temporary)


def short(text: str) -> str:
    """One line of at most ``MAX_TEXT`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_TEXT else f"{flat[: MAX_TEXT - 6]} [...]"


@dataclass(frozen=True)
class Place:
    """Where the doctor is: what must be so in a pod of a cluster need not be so on a desk."""

    pod: bool
    image: bool

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Place:
        return cls(pod="KUBERNETES_SERVICE_HOST" in environment, image=bool(environment.get(REVISION_ENV)))


@dataclass(frozen=True)
class Check:
    """Something to find out within ``seconds``. It answers one finding or several, and may raise: that is a finding too."""

    name: str
    seconds: float
    find: Callable[[], Iterable[Finding]]


def carry_out(check: Check) -> list[Finding]:
    """The check's findings. One that hangs is left behind in its thread, as a file system that is gone can hang for ever."""
    found: list[Finding] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            for one in check.find():
                found.append(one)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is what this check has found
            failure.append(error)

    thread = threading.Thread(target=work, name=f"doctor {check.name}", daemon=True)
    thread.start()
    thread.join(check.seconds)
    told = list(found)
    if thread.is_alive():
        told.append(
            no(
                check.name,
                f"no answer within {check.seconds:g} s",
                "Find out what hangs, or try again.",
                temporary=True,
            )
        )
    elif failure:
        error = failure[0]
        told.append(no(check.name, f"{type(error).__name__}: {error}", "This check could not be done."))
    return told


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """0 without a NO; 75 where all of them may pass by themselves; else 65."""
    wrong = [one for one in findings if one.verdict is Verdict.NO]
    if not wrong:
        return ExitCode.OK
    return ExitCode.TEMPORARY if all(one.temporary for one in wrong) else ExitCode.BAD_DATA


def as_json(findings: Sequence[Finding]) -> str:
    """One object: ``exit_code`` and the ``findings`` in order."""
    rows = [
        {"check": f.check, "verdict": f.verdict, "measured": f.measured, "fix": f.fix, "temporary": f.temporary}
        for f in findings
    ]
    return json.dumps({"exit_code": int(exit_code(findings)), "findings": rows}, indent=1)
