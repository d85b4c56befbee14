"""What the job's guard did before the trainer started, in words."""

from __future__ import annotations

from nightshift.contract.job import GuardReport

SHOWN = 4


def guard_words(report: GuardReport) -> str:
    """One sentence for the trail and the report; empty where the guard found everything as it should be."""
    parts = []
    if report.quarantined:
        more = len(report.quarantined) - SHOWN
        names = ", ".join(report.quarantined[:SHOWN]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"moved aside {names}")
    if report.repaired_pointer:
        before = "no step" if report.pointer_before is None else f"step {report.pointer_before}"
        parts.append(f"repaired the pointer, which named {before}")
    if report.resumed_step < report.floor:
        parts.append(f"went back to step {report.resumed_step}, below the saved step {report.floor}")
    return f"the guard {'; '.join(parts)}" if parts else ""
