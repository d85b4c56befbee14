"""What a rehearsal showed: each expectation beside what its records say, and where its seconds went. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nightshift.contract.api import AuditLine, RunView
from nightshift.contract.base import Model
from nightshift.contract.evals import EvalSummary
from nightshift.contract.job import Outcome, Phase, Progress
from nightshift.contract.publication import AttemptLine, Manifest
from nightshift.contract.rehearsal import EVAL_ITEMS, KILLED_AFTER, STEPS
from nightshift.contract.spec import Data, RunSpec, SeedData

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "rejected"})


@dataclass(frozen=True)
class Records:
    """What a rehearsal left: ``spec`` is its own, ``asked`` the whole run's. ``progress`` and ``outcomes`` are by attempt;
    ``rows`` is the number of rows of the last eval of the fixed set, where it was read."""

    asked: RunSpec
    spec: RunSpec
    view: RunView
    events: Sequence[AuditLine] = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    manifest: Manifest | None = None
    rows: int | None = None

    @property
    def killed(self) -> AttemptLine | None:
        """The attempt whose driver died: the first that saved the step after which it dies."""
        return next((a for a in self.view.attempts if a.last_saved_step >= KILLED_AFTER), None)

    @property
    def after(self) -> AttemptLine | None:
        """The attempt that went on after it: one that never came to its guard was followed by another."""
        killed = self.killed
        later = [a for a in self.view.attempts if killed is not None and a.n > killed.n]
        return next((a for a in later if a.resumed_step is not None), later[0] if later else None)

    def at(self, what: str, last: bool = False) -> datetime | None:
        """When the audit trail says it, the first time or the last."""
        found = [one.at for one in self.events if one.what == what]
        return None if not found else found[-1 if last else 0]

    def spent(self, attempt: int, *phases: Phase) -> float:
        """Seconds of an attempt in some of its phases, as its job told."""
        told = self.progress.get(attempt)
        return sum(told.phase_seconds.get(one, 0.0) for one in phases) if told is not None else 0.0


class Check(Model):
    """One expectation."""

    name: str
    expected: str
    seen: str
    ok: bool
    remedy: str = ""


class Spent(Model):
    """Seconds of one part of the rehearsal, in the order in which they were spent."""

    part: str
    seconds: float


class Failure(Model):
    """Where it stopped being what was expected, why, and what to do about it."""

    phase: str
    cause: str
    remedy: str


# the checks -----------------------------------------------------------------------------------------------------------


def checks(records: Records) -> list[Check]:
    """Every expectation, in the order in which a rehearsal meets them."""
    made = [_saved(records), _killed(records), _guarded(records), _resumed(records), _evaluated(records)]
    return [*made, _exported(records), _published(records), _over(records)]


def _saved(records: Records) -> Check:
    killed = records.killed
    return Check(
        name="saved",
        expected=f"step {KILLED_AFTER} saved and verified",
        seen=f"step {killed.last_saved_step}, by attempt {killed.n}" if killed is not None else "no step was saved",
        ok=killed is not None,
    )


def _killed(records: Records) -> Check:
    """A job that ends in any other way writes its outcome."""
    killed, after = records.killed, records.after
    outcome = records.outcomes.get(killed.n) if killed is not None else None
    seen = "it was not" if killed is None or killed.end_cause is None else f"attempt {killed.n}: {killed.end_cause}"
    if outcome is not None:
        seen += f", by its own word: {outcome.cause}"
    return Check(
        name="killed",
        expected="the driver dies without a word; the attempt is fenced and another follows",
        seen=f"{seen}{', then attempt ' + str(after.n) if after is not None else ''}",
        ok=killed is not None and killed.end_cause is not None and outcome is None and after is not None,
        remedy="is the image older than rehearsals? Build it anew: its job does not know what a rehearsal does",
    )


def _guarded(records: Records) -> Check:
    after = records.after
    told = records.progress.get(after.n) if after is not None else None
    report = told.guard if told is not None else None
    wanted = f"floor {KILLED_AFTER}, step {KILLED_AFTER} whole, nothing moved aside"
    if report is None:
        return Check(name="guard", expected=wanted, seen="no report", ok=False)
    moved = f"moved aside: {', '.join(report.quarantined[:3])}" if report.quarantined else "nothing moved aside"
    return Check(
        name="guard",
        expected=wanted,
        seen=f"floor {report.floor}, step {report.resumed_step} whole, {moved}",
        ok=report.floor == report.resumed_step == KILLED_AFTER and not report.quarantined,
        remedy="a save that is not whole once its driver is dead: look at FSx, and at quarantine/ on /shared",
    )


def _resumed(records: Records) -> Check:
    after = records.after
    step = after.resumed_step if after is not None else None
    return Check(
        name="resumed",
        expected=f"exactly at step {KILLED_AFTER}",
        seen=f"at step {step}" if step is not None else "it did not",
        ok=step == KILLED_AFTER,
        remedy="the trainer did not take up its own checkpoint: see the driver log in diagnostics/",
    )


def _items(data: Data) -> int | None:
    return len(data) if isinstance(data, SeedData) else None


def _evaluated(records: Records) -> Check:
    """A parquet file may have fewer rows than are wanted of it."""
    wanted, manifest = _items(records.spec.task.eval), records.manifest
    curve = {one.step: one for one in manifest.curve} if manifest is not None else {}
    found = [curve[step] for step in (0, STEPS) if step in curve]
    if records.spec.task.holdout is not None and manifest is not None:
        found += [one for one in (manifest.holdout_baseline, manifest.holdout_final) if one is not None]
    sets = 1 if records.spec.task.holdout is None else 2
    sizes = {one.of for one in found if one.eval_set == "fixed"}
    right = sizes == {wanted} if wanted is not None else len(sizes) == 1 and max(sizes) <= EVAL_ITEMS
    last = curve.get(STEPS)
    rows = "" if records.rows is None else f"; {records.rows} rows"
    return Check(
        name="evals",
        expected=f"{sets} x {wanted or f'up to {EVAL_ITEMS}'} items at steps 0 and {STEPS}, a row each",
        seen=f"{', '.join(map(_eval_words, found)) or 'none'}{rows}",
        ok=len(found) == 2 * sets and right and last is not None and records.rows == last.of,
        remedy="see the driver log of the last attempt: which eval it played, and what became of it",
    )


def _eval_words(one: EvalSummary) -> str:
    return f"{one.eval_set} at step {one.step}: {one.solved} of {one.of}"


def _exported(records: Records) -> Check:
    manifest, ended = records.manifest, [o.final_export for o in records.outcomes.values() if o.final_export]
    export, step = ended[-1] if ended else None, manifest.adapters.get("final") if manifest is not None else None
    trained = "" if export is None else f", {export.lora_b_nonzero} of {export.lora_b_total} lora_B are trained"
    remedy = "the job's export was refused or never made: see the driver log of the last attempt"
    if export is not None and not export.lora_b_nonzero:
        remedy = (
            f"{STEPS} steps left the adapter as it was: in each group all rollouts had the same reward. Is the task too hard "
            "or too easy for this model, or is task.success or the reward wrong? More rollouts a prompt may help"
        )
    return Check(
        name="adapter",
        expected=f"of step {STEPS}, trained, verified and published",
        seen=f"{f'step {step}' if step is not None else 'none was published'}{trained}",
        ok=step == STEPS and export is not None and export.lora_b_nonzero > 0,
        remedy=remedy,
    )


def _published(records: Records) -> Check:
    manifest, read_back = records.manifest, records.at("publication verified") is not None
    objects = f"a manifest of {len(manifest.objects)} objects" if manifest is not None else "no manifest"
    return Check(
        name="published",
        expected="a manifest of every object, read back",
        seen=f"{objects}, {'read back' if read_back else 'not read back'}",
        ok=manifest is not None and bool(manifest.objects) and read_back,
        remedy="look at the functions' log of the steps publish and verify",
    )


def _over(records: Records) -> Check:
    view, free = records.view, records.at("final message sent") is not None or records.view.ended_at is not None
    return Check(
        name="over",
        expected="succeeded, its GPUs given back",
        seen=f"{view.state}{', its GPUs given back' if free and view.ended_at else ''}",
        ok=view.state == "succeeded" and view.ended_at is not None,
    )


# what went wrong ------------------------------------------------------------------------------------------------------

WAYS = (
    ("admitted", "admission"),
    ("lease ready", "queue"),
    ("preflight passed", "preflight"),
    ("cluster ready", "cluster"),
)
"""What the audit trail says once a phase before the job is through, and the phase."""


def failure(records: Records, made: Sequence[Check]) -> Failure | None:
    """None where everything is as expected."""
    wrong = next((one for one in made if not one.ok), None)
    if wrong is None:
        return None
    view, phase = records.view, where(records)
    if view.state == "succeeded":
        return Failure(phase=wrong.name, cause=f"expected {wrong.expected}; seen {wrong.seen}", remedy=wrong.remedy)
    if view.state == "rejected":
        said = "; ".join(f"{one.field}: {one.problem}" for one in view.errors[:5])
        return Failure(phase=phase, cause=said or "it was refused", remedy="correct the spec and rehearse it again")
    last = view.attempts[-1] if view.attempts else None
    reason = last.message if last is not None and last.message else view.sentence
    hint = next((one.remedy for one in made if one.name == "adapter" and view.cause == "evidence_missing"), "")
    return Failure(
        phase=phase,
        cause=f"{(view.cause or view.state).replace('_', ' ')}: {reason or 'no word'}",
        remedy=hint or view.sentence or "look at its audit trail (events), and at diagnostics/ of its last attempt",
    )


def where(records: Records) -> str:
    """The phase in which a rehearsal is, or that it did not get through."""
    view, said = records.view, {one.what for one in records.events}
    if view.state == "rejected":
        return "intake"
    if not view.attempts:
        return next((phase for what, phase in WAYS if what not in said), "submission")
    if any(what.startswith("run succeeded") for what in said):
        if "published" not in said:
            return "publication"
        return "teardown" if "publication verified" in said else "verification"
    last, killed = view.attempts[-1], records.killed
    told = records.progress.get(last.n)
    side = "after the kill" if killed is not None and last.n > killed.n else "before the kill"
    if killed is not None and last.n == killed.n and last.end_cause is not None:
        return f"recovery from the kill, after attempt {last.n}"
    return f"{told.phase if told is not None else 'start'} of attempt {last.n}, {side}"


# seconds --------------------------------------------------------------------------------------------------------------


def seconds(records: Records) -> list[Spent]:
    """Where the time went, from the moment of the request: from the audit trail, the attempts' records, and what each job
    told of its phases. A part of which one end is not known is left out."""
    return [Spent(part=part, seconds=round(took, 1)) for part, took in _parts(records) if took is not None]


def _parts(records: Records) -> Iterator[tuple[str, float | None]]:
    view, lease, cluster = records.view, records.at("lease ready"), records.at("cluster ready")
    yield "in the queue", between(view.created_at, lease)
    yield "nodes and RayCluster", between(lease, cluster)
    before: datetime | None = None
    for one in view.attempts:
        if before is not None:
            yield f"recovery: fence, cluster, attempt {one.n}", between(before, one.started_at)
        yield from _of_attempt(records, one)
        before = one.ended_at
    published = records.at("publication verified")
    yield "publish and read back", between(before, published)
    yield "give the GPUs back", between(published, view.ended_at)
    yield "in all", between(view.created_at, view.ended_at)


def _of_attempt(records: Records, one: AttemptLine) -> Iterator[tuple[str, float | None]]:
    told = records.progress.get(one.n)
    if told is None:
        yield f"attempt {one.n}, silent", between(one.started_at, one.ended_at)
        return
    in_phases = sum(told.phase_seconds.values())
    started = between(one.started_at, told.at)
    yield f"attempt {one.n}: start of the driver", max(0.0, started - in_phases) if started is not None else None
    for phase, took in told.phase_seconds.items():
        yield f"attempt {one.n}: {phase}", took
    noticed = between(told.at, one.ended_at)
    yield f"attempt {one.n}: until its end was noticed", noticed if noticed is None else max(0.0, noticed)


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds; None where one end is not known."""
    return None if start is None or end is None else (end - start).total_seconds()
