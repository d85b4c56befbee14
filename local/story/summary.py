"""summary.json, the numbers with their bounds, and the claims that the story must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.contract import EvalSummary, Manifest
from nightshift.contract.publication import AttemptLine

DEMO_SECONDS = 150.0
RUNNING_SECONDS = 15.0
MEMORY_MIB = 6 * 1024
BASELINE = (28, 64)
FINAL_AT_LEAST = 61


@dataclass(frozen=True)
class Measured:
    """What was measured from outside. Seconds; None where it never happened."""

    demo: float
    kill_to_running: float | None
    kill_to_first_step: float | None
    peak_memory_mib: int
    memory_samples: int
    events_per_poll: int | None
    looks: int
    processes_seen: int
    left_over: Sequence[str]
    cpu_seconds: float
    cpu_of_others: float


@dataclass(frozen=True)
class Number:
    """One line of the table: ``ok`` is None where there is no bound."""

    name: str
    value: str
    bound: str
    ok: bool | None

    @property
    def verdict(self) -> str:
        return "" if self.ok is None else "ok" if self.ok else "NOT OK"


def summary(run_id: str, manifest: Manifest, measured: Measured) -> dict[str, Any]:
    """The document of out/demo/summary.json."""
    return {
        "run_id": run_id,
        "attempts": [_attempt(line) for line in manifest.attempts],
        "baseline": _count(manifest.baseline),
        "final": _count(manifest.final),
        "holdout": _holdout(manifest),
        "seconds": {
            "demo": round(measured.demo, 1),
            "kill_to_running": _rounded(measured.kill_to_running),
            "kill_to_first_step": _rounded(measured.kill_to_first_step),
        },
        "peak_memory_mib": measured.peak_memory_mib,
        "memory_samples": measured.memory_samples,
        "events_per_poll": measured.events_per_poll,
        "looks": measured.looks,
        "cpu_seconds": {"stack": round(measured.cpu_seconds, 1), "others": round(measured.cpu_of_others, 1)},
        "processes": {"seen": measured.processes_seen, "left": len(measured.left_over)},
        "gpu_hours": manifest.gpu_hours,
        "target": manifest.target,
        "ceiling": manifest.ceiling,
    }


def numbers(manifest: Manifest, measured: Measured) -> list[Number]:
    """What the demo promises, beside what it did."""
    resumed, saved = resume_steps(manifest)
    final = manifest.final.solved if manifest.final else 0
    running = measured.kill_to_running
    return [
        Number("whole demo", f"{measured.demo:.1f} s", f"at most {DEMO_SECONDS:g} s", measured.demo <= DEMO_SECONDS),
        Number(
            "memory of the whole stack (PSS, peak)",
            f"{measured.peak_memory_mib} MiB",
            f"at most {MEMORY_MIB} MiB",
            0 < measured.peak_memory_mib <= MEMORY_MIB,
        ),
        Number(
            "node kill -> attempt 2 RUNNING",
            _seconds(running),
            f"at most {RUNNING_SECONDS:g} s",
            running is not None and running <= RUNNING_SECONDS,
        ),
        Number("node kill -> its first new step", _seconds(measured.kill_to_first_step), "", None),
        Number("attempt 2 resumed at step", str(resumed), f"exactly {saved}, the last saved one", resumed == saved),
        Number(
            "solved before training",
            _of(manifest.baseline),
            f"exactly {BASELINE[0]} of {BASELINE[1]}",
            _baseline_ok(manifest),
        ),
        Number("solved after training", _of(manifest.final), f"at least {FINAL_AT_LEAST}", final >= FINAL_AT_LEAST),
        Number("hold-out before -> after", _holdout_text(manifest), "", None),
        Number("history events of one poll", _polls(measured), "exactly 6", _polls_ok(measured)),
        Number(
            "processor time: this stack, others meanwhile",
            f"{measured.cpu_seconds:.0f} s, {measured.cpu_of_others:.0f} s",
            "",
            None,
        ),
        Number(
            "processes left",
            str(len(measured.left_over)),
            f"0 of {measured.processes_seen} seen",
            not measured.left_over,
        ),
    ]


def resume_steps(manifest: Manifest) -> tuple[int | None, int | None]:
    """(step at which the last attempt resumed, last saved step of the one before); None without such an attempt."""
    if len(manifest.attempts) < 2:
        return None, None
    before, after = manifest.attempts[-2:]
    return after.resumed_step, before.last_saved_step


def broken_claims(manifest: Manifest, verified: bool) -> list[str]:
    """Promises about the run itself that were not kept, each as a sentence."""
    first, last = manifest.attempts[:1], manifest.attempts[-1:]
    claims = {
        f"the publication says {manifest.state} and not succeeded": manifest.state == "succeeded",
        f"there were {len(manifest.attempts)} attempts and not 2": len(manifest.attempts) == 2,
        "attempt 1 does not name the node that was lost": bool(first and first[0].node),
        "the last attempt did not end as finished": bool(last and last[0].end_cause in ("finished", "target_reached")),
        "the publication was not read back and verified in a fresh process": verified,
    }
    return [text for text, kept in claims.items() if not kept]


def _attempt(line: AttemptLine) -> dict[str, Any]:
    return {
        "n": line.n,
        "end_cause": line.end_cause,
        "signal": line.signal,
        "resumed_step": line.resumed_step,
        "last_saved_step": line.last_saved_step,
        "node": line.node,
    }


def _count(result: EvalSummary | None) -> dict[str, int] | None:
    return None if result is None else {"solved": result.solved, "of": result.of}


def _holdout(manifest: Manifest) -> dict[str, int] | None:
    before, after = manifest.holdout_baseline, manifest.holdout_final
    if before is None or after is None:
        return None
    return {"baseline": before.solved, "final": after.solved, "of": after.of}


def _holdout_text(manifest: Manifest) -> str:
    return f"{_of(manifest.holdout_baseline)} -> {_of(manifest.holdout_final)}"


def _of(result: EvalSummary | None) -> str:
    return "none" if result is None else f"{result.solved} of {result.of}"


def _baseline_ok(manifest: Manifest) -> bool:
    return manifest.baseline is not None and (manifest.baseline.solved, manifest.baseline.of) == BASELINE


def _polls(measured: Measured) -> str:
    if measured.events_per_poll is None:
        return f"no nap ended by its timeout ({measured.looks} looks)"
    return f"{measured.events_per_poll} ({measured.looks} looks)"


def _polls_ok(measured: Measured) -> bool | None:
    return None if measured.events_per_poll is None else measured.events_per_poll == 6


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"
