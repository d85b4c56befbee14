"""A rehearsal's report as text for a terminal. Pure; what comes from outside is cleaned."""

from __future__ import annotations

from cli.forecast import Forecast
from cli.lists import table
from cli.rehearsal import Check, Failure, Spent
from cli.view import clean, length
from nightshift.contract.base import Model


class Report(Model):
    """What `nightshift rehearse` prints; ``steps`` are the whole run's."""

    run_id: str
    number: int
    passed: bool
    checks: list[Check]
    failure: Failure | None = None
    seconds: list[Spent]
    forecast: Forecast | None = None
    steps: int
    prefix: str


def report_text(report: Report) -> str:
    again = f", rehearsal number {report.number}" if report.number > 1 else ""
    lines = [f"{clean(report.run_id, 40)}: {'PASSED' if report.passed else 'DID NOT PASS'}{again}", ""]
    rows = [("ok" if one.ok else "NO", one.name, one.expected, clean(one.seen, 200)) for one in report.checks]
    lines += [table(("", "CHECK", "EXPECTED", "SEEN"), rows)]
    if report.failure is not None:
        told = report.failure
        lines += ["", f"it failed in: {clean(told.phase, 100)}", f"because: {clean(told.cause, 1_000)}"]
        lines += [f"what to do: {clean(told.remedy, 1_000)}"] if told.remedy else []
    if report.seconds:
        lines += [
            "",
            table(("SECONDS", "PART"), [(f"{one.seconds:9.1f}", clean(one.part, 80)) for one in report.seconds]),
        ]
    lines += ["", *_forecast(report.forecast, report.steps)]
    return "\n".join([*lines, f"files {clean(report.prefix)}, removed after some days"])


def _forecast(found: Forecast | None, steps: int) -> list[str]:
    if found is None:
        return ["there is no forecast: not every step of the rehearsal was made"]
    rows = [
        (f"{one.count} x {seconds(one.each)}", length(one.seconds) if one.seconds >= 1 else "<1 s", one.name)
        for one in found.parts
    ]
    money = (
        f", ${found.dollars:,.2f} at list prices of {clean(found.prices_as_of or '')}"
        if found.dollars is not None
        else ""
    )
    lines = [
        f"forecast of the whole run, {steps} steps without a failure: {length(found.seconds)}, "
        f"{found.gpu_hours:,.2f} GPU-hours{money}",
        table(("COUNT", "TOGETHER", "PART"), rows),
    ]
    if found.recovery is not None:
        repeated = f"{found.repeated_steps} step{'s' if found.repeated_steps != 1 else ''}"
        lines.append(f"each recovery: about {length(found.recovery)}, and at most {repeated} again")
    if found.download:
        lines.append(f"the model's download took {length(found.download)}; it is on /shared now")
    return [*lines, *(f"note: {clean(one)}" for one in found.notes)]


def seconds(value: float) -> str:
    """``0.42 s``, ``42.3 s``, and from two minutes on as any length."""
    return length(value) if value >= 120 else f"{value:.3g} s"
