"""What is shown and kept: one row for each fault, and the document behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from local.chaos.evidence import Evidence, percentile

COLUMNS = ("fault", "what was seen", "by which signal", "RUNNING", "first new step", "steps lost", "seconds", "verdict")


@dataclass(frozen=True)
class Row:
    """One fault's result. ``seconds`` is how long the whole run took, ``others`` the processor time of other programs."""

    name: str
    title: str
    evidence: Evidence | None
    problems: Sequence[str]
    seconds: float
    others: float

    @property
    def ok(self) -> bool:
        return not self.problems

    def cells(self) -> tuple[str, ...]:
        """In the order of COLUMNS."""
        seen = self.evidence
        verdict, took = "ok" if self.ok else "NOT OK", f"{self.seconds:.0f}"
        if seen is None:
            return self.title, "it could not be played", "", "", "", "", took, verdict
        return (
            self.title,
            what_was_seen(seen),
            signals(seen),
            times([hit.to_running for hit in seen.hits]),
            times([hit.to_first_step for hit in seen.hits]),
            lost(seen),
            took,
            verdict,
        )

    def document(self) -> dict[str, Any]:
        """For summary.json."""
        seen = self.evidence
        about = {"name": self.name, "fault": self.title, "ok": self.ok, "problems": list(self.problems)}
        about |= {"seconds": round(self.seconds, 1), "seconds_of_others": round(self.others, 1)}
        if seen is None or seen.view is None:
            return about
        return about | {
            "run_id": seen.run_id,
            "state": seen.view.state,
            "attempts": [
                {"n": one.n, "end_cause": one.end_cause, "signal": one.signal, "resumed_step": one.resumed_step}
                for one in seen.view.attempts
            ],
            "to_decided": [_rounded(hit.to_decided) for hit in seen.hits],
            "to_running": [_rounded(hit.to_running) for hit in seen.hits],
            "to_first_step": [_rounded(hit.to_first_step) for hit in seen.hits],
            "steps_lost": dict(seen.losses),
            "faults_struck": list(seen.struck),
            "notes": list(seen.notes),
        }


def what_was_seen(seen: Evidence) -> str:
    """End state, causes, notes of the fault's own."""
    if seen.view is None:
        return "nothing"
    early = [one for one in seen.view.attempts if one.n < len(seen.view.attempts) or seen.view.state != "succeeded"]
    causes = _counted([one.end_cause or "open" for one in early])
    said = f"{seen.view.state} in {len(seen.view.attempts)} attempts" if early else f"{seen.view.state}, not disturbed"
    return "; ".join([said + (f": {causes}" if causes else ""), *seen.notes])


def signals(seen: Evidence) -> str:
    early = seen.view.attempts[:-1] if seen.view is not None else []
    return _counted([(one.signal or "none").replace("hyperpod_", "") for one in early])


def times(values: Sequence[float | None]) -> str:
    """One as it is, several by median, 95th percentile and number."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    if len(values) == 1:
        return f"{known[0]:.1f}"
    return f"{percentile(known, 0.5):.1f}, p95 {percentile(known, 0.95):.1f}, n {len(known)}"


def lost(seen: Evidence) -> str:
    values = [steps for _, steps in seen.losses]
    if not values:
        return ""
    return str(values[0]) if len(values) == 1 else f"at most {max(values)}"


def _counted(words: Sequence[str]) -> str:
    """``a, b x3``: each once, in the order of the first."""
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    return ", ".join(word if count == 1 else f"{word} x{count}" for word, count in counts.items())


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
