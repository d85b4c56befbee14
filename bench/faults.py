"""The table of faults for docs/benchmarks.md: ``python bench/faults.py SUMMARY_JSON ...`` prints it as Markdown.

Takes what `make chaos` left in out/chaos/summary.json; of several files the last word on a fault counts.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEAD = ("fault", "what was seen", "by which signal", "judged", "RUNNING", "first new step", "steps lost", "verdict")


def markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    """All faults of the summaries, in the order in which they were first seen, and what they were measured on."""
    faults: dict[str, Mapping[str, Any]] = {}
    for document in documents:
        faults.update({one["name"]: one for one in document["faults"]})
    rows = [HEAD, tuple("---" for _ in HEAD), *(row(one) for one in faults.values())]
    measured = [f"{one['at'][:10]}, {one['machine']}: {load(one)}" for one in documents]
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in rows] + ["", *measured]) + "\n"


def row(fault: Mapping[str, Any]) -> tuple[str, ...]:
    """One fault; times in seconds after it."""
    attempts = fault.get("attempts", [])
    early = [one for one in attempts if one["end_cause"] != "finished"]
    seen = f"{fault.get('state', 'not played')}, {len(attempts)} attempts"
    causes = counted([str(one["end_cause"]) for one in early])
    signals = counted([str(one["signal"]).replace("hyperpod_", "") for one in early])
    lost = list(fault.get("steps_lost", {}).values())
    return (
        fault["fault"],
        "; ".join(part for part in (seen, causes, *fault.get("notes", [])) if part),
        signals,
        times(fault.get("to_decided", [])),
        times(fault.get("to_running", [])),
        times(fault.get("to_first_step", [])),
        str(max(lost)) if lost else "",
        "ok" if fault["ok"] else f"NOT OK: {'; '.join(fault['problems'])}",
    )


def load(document: Mapping[str, Any]) -> str:
    share = document["seconds_of_others"] / max(1.0, document["seconds"])
    return f"{document['seconds'] / 60:.1f} minutes, other programs busy with {share:.2f} cores"


def times(values: Sequence[float | None]) -> str:
    """One as it is; several by median and 95th percentile, by nearest rank."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    if len(known) == 1:
        return f"{known[0]:.1f}"
    p95 = known[math.ceil(0.95 * len(known)) - 1]
    return f"{known[(len(known) - 1) // 2]:.1f} (p95 {p95:.1f}, n {len(known)})"


def counted(words: Sequence[str]) -> str:
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    return ", ".join(word if count == 1 else f"{word} ×{count}" for word, count in counts.items())


if __name__ == "__main__":
    print(markdown([json.loads(Path(name).read_text()) for name in sys.argv[1:]]), end="")
