"""The verdict on one fault: every promise that was not kept, as a sentence. Pure.

The record is held against the world: the process table, the objects that the job wrote, the Kubernetes API, the table's
leases, Slack. A record that merely says so is not believed.
"""

from __future__ import annotations

from collections.abc import Iterator

from local.chaos.evidence import Evidence, Expected, percentile
from local.chaos.processes import overlaps

FINAL_WORDS = {"succeeded": "finished", "failed": "failed", "cancelled": "was cancelled"}
TORN_PAIR_SECONDS = 0.02
"""Start times come from the kernel in hundredths of a second: less than two of them proves no overlap."""


def broken_promises(seen: Evidence, expected: Expected) -> list[str]:
    """Empty where the fault came out right."""
    if seen.view is None:
        return ["the run is not known to the API"]
    found: list[str] = []
    for check in (_ended, _attempts, _drivers, _steps, _times, _left_over, _faults):
        found += check(seen, expected)
    return found


def _ended(seen: Evidence, expected: Expected) -> Iterator[str]:
    assert seen.view is not None, "checked before"
    if seen.view.state != expected.state:
        yield f"the run is {seen.view.state}, not {expected.state}: {seen.view.sentence[:200]}"
    wanted = f"{seen.run_id} {FINAL_WORDS[expected.state]}"
    if len(seen.finals) != 1 or not seen.finals[0].startswith(wanted):
        yield f"Slack was told the end {len(seen.finals)} times ({'; '.join(seen.finals)[:200]}), not once as {wanted!r}"
    if expected.manifest and seen.manifest_state != expected.state:
        yield f"the manifest says {seen.manifest_state}, not {expected.state}"
    running = sorted(name for name, status in seen.executions.items() if status == "RUNNING")
    if running:
        yield f"executions still run: {', '.join(running)}"


def _attempts(seen: Evidence, expected: Expected) -> Iterator[str]:
    assert seen.view is not None, "checked before"
    attempts, (low, high) = seen.view.attempts, expected.attempts
    if not low <= len(attempts) <= high:
        yield f"there were {len(attempts)} attempts, not {low if low == high else f'{low} to {high}'}"
    early = attempts[:-1] if expected.state == "succeeded" else attempts
    for one in early:
        if expected.causes and one.end_cause not in expected.causes:
            yield f"attempt {one.n} ended as {one.end_cause}, not as {' or '.join(sorted(expected.causes))}"
        parts = set((one.signal or "none").split("+"))
        if expected.signals and not parts & expected.signals:
            yield f"attempt {one.n} was ended by {one.signal}, not by {' or '.join(sorted(expected.signals))}"
    if [one.n for one in attempts] != list(range(1, len(attempts) + 1)):
        yield f"attempts are numbered {[one.n for one in attempts]}"


def _drivers(seen: Evidence, expected: Expected) -> Iterator[str]:
    for one in overlaps(seen.drivers):
        if one.seconds >= TORN_PAIR_SECONDS:
            yield f"attempts {one.older} and {one.newer} both had a living driver for {one.seconds:.2f} s or more"
    assert seen.view is not None, "checked before"
    driven = {one.attempt for one in seen.drivers}
    for number in driven - {one.n for one in seen.view.attempts}:
        yield f"a driver of attempt {number} ran, which the record does not know"
    for number in driven:
        if len([one for one in seen.drivers if one.attempt == number]) > 1:
            yield f"attempt {number} was started more than once"


def _steps(seen: Evidence, expected: Expected) -> Iterator[str]:
    allowed = seen.ckpt_interval * (1 + expected.rollbacks)
    for attempt, steps in seen.losses:
        if steps > allowed:
            yield f"{steps} steps of attempt {attempt} were lost, and {allowed} are allowed"
    below = 0
    for number in sorted(seen.progress)[1:]:
        before, after = seen.progress.get(number - 1), seen.progress[number]
        if before is None or after.resumed_step is None or after.resumed_step >= before.saved_step:
            continue
        below += 1
        yield from (
            ()
            if below <= expected.rollbacks
            else (
                f"attempt {number} resumed at {after.resumed_step}, below step {before.saved_step} that was saved and reported",
            )
        )
    assert seen.view is not None, "checked before"
    for one in seen.view.attempts:
        told = seen.progress.get(one.n)
        if told is not None and one.resumed_step is not None and one.resumed_step != told.resumed_step:
            yield f"the record says that attempt {one.n} resumed at {one.resumed_step}; the job said {told.resumed_step}"
    last = seen.progress.get(max(seen.progress, default=0))
    if expected.state == "succeeded" and (last is None or last.step != last.total_steps):
        yield f"the last progress is step {last.step if last else 'none'} of {last.total_steps if last else 'none'}"


def _times(seen: Evidence, expected: Expected) -> Iterator[str]:
    if expected.decided_within is not None:
        for hit in seen.hits:
            if not _within(hit.to_decided, expected.decided_within):
                took, allowed = _seconds(hit.to_decided), f"{expected.decided_within:g} s"
                yield f"attempt {hit.attempt} was judged {took} after the fault, and {allowed} are allowed"
    if expected.running_p95 is not None:
        times = [hit.to_running for hit in seen.hits if hit.to_running is not None]
        if len(times) < len(seen.hits):
            yield f"{len(seen.hits) - len(times)} hits were never followed by a running attempt"
        p95 = percentile(times, 0.95) if times else None
        if not _within(p95, expected.running_p95):
            allowed = f"{expected.running_p95:g} s"
            yield f"RUNNING {_seconds(p95)} after the fault at the 95th percentile, and {allowed} are allowed"


def _within(value: float | None, bound: float) -> bool:
    return value is not None and 0 <= value <= bound


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _left_over(seen: Evidence, expected: Expected) -> Iterator[str]:
    for what, left in (
        ("pods", seen.pods),
        ("RayClusters", seen.rayclusters),
        ("holders of a lease", seen.lease_holders),
        ("processes of pods", seen.processes),
    ):
        if left:
            yield f"{what} left over: {', '.join(left)[:200]}"


def _faults(seen: Evidence, expected: Expected) -> Iterator[str]:
    for number, times in enumerate(seen.struck, start=1):
        if times == 0:
            yield f"fault {number} of the plan never struck, so nothing was shown"
