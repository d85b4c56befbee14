"""What the whole run takes, reckoned from what its rehearsal measured. Pure."""

from __future__ import annotations

from cli.rehearsal import Records, between
from nightshift.contract.base import Model
from nightshift.contract.job import Phase
from nightshift.contract.rehearsal import STEPS
from nightshift.contract.spec import RunSpec, SeedData

MAX_COUNTED = 1_000_000


class Part(Model):
    """``count`` times ``each`` seconds."""

    name: str
    count: int
    each: float

    @property
    def seconds(self) -> float:
        return self.count * self.each


class Forecast(Model):
    """Of a run without failures. ``recovery`` is what one costs beside the steps that it repeats, at most
    ``repeated_steps``."""

    parts: list[Part]
    seconds: float
    gpu_hours: float
    dollars: float | None = None
    prices_as_of: str | None = None
    recovery: float | None = None
    repeated_steps: int
    download: float = 0.0
    notes: list[str] = []


def forecast(records: Records) -> Forecast | None:
    """None where the rehearsal made not every step: there is nothing to reckon with."""
    asked, view = records.asked, records.view
    numbers = [one.n for one in view.attempts]
    made = sum(
        records.progress[n].step - (records.progress[n].resumed_step or 0) for n in numbers if n in records.progress
    )
    if made < STEPS or records.manifest is None:
        return None
    in_steps, warm_up = _steps(records, made)
    parts = [
        Part(name="nodes, start and set-up", count=1, each=_before(records, numbers[0]) + warm_up),
        Part(name="steps", count=asked.training.total_steps, each=in_steps),
        *_evals(records),
        *_saves(records),
        Part(name="publish, read back, give back", count=1, each=_end(records)),
    ]
    total = sum(one.seconds for one in parts)
    hourly = view.spend.dollars_per_hour if view.spend is not None else None
    waiting = between(view.created_at, records.at("lease ready"))
    found = Forecast(
        parts=[one.model_copy(update={"each": round(one.each, 3)}) for one in parts],
        seconds=round(total, 1),
        gpu_hours=round(total / 3_600 * asked.topology.gpus, 3),
        dollars=round(total / 3_600 * hourly, 2) if hourly is not None else None,
        prices_as_of=view.spend.prices_as_of.isoformat() if view.spend is not None else None,
        recovery=_recovery(records),
        repeated_steps=asked.training.ckpt_interval,
        download=round(_all(records, Phase.DOWNLOAD), 1),
    )
    notes = ["each measured step was the first of its process: later ones may be faster"]
    if not isinstance(asked.task.eval, SeedData):
        notes.append(
            "how many items its eval set has is not known here: evals take longer with more than were rehearsed"
        )
    if asked.target is not None or asked.plateau is not None:
        notes.append("it may end earlier, by its target or plateau")
    if waiting is not None and waiting > 60:
        notes.append("time in the queue is not in it")
    return found.model_copy(update={"notes": [*notes, *_over_budget(asked, found)]})


def _over_budget(asked: RunSpec, found: Forecast) -> list[str]:
    limits = asked.budgets
    used = {"wall_hours": found.seconds / 3_600, "gpu_hours": found.gpu_hours, "dollars": found.dollars}
    return [
        f"MORE THAN budgets.{name} ALLOWS: {value:,.1f} of {limit:,.1f}; raise it, or the run ends as budget_spent"
        for name, value in used.items()
        if value is not None and (limit := getattr(limits, name)) is not None and value > limit
    ]


def _steps(records: Records, made: int) -> tuple[float, float]:
    """Seconds of a step as the trainer itself measured them, in the mean; and what else an attempt spends in a step's phases:
    before the first it waits for its policy and engines. Where a trainer tells none, the phases are all there is."""
    in_phases = _all(records, Phase.GENERATE, Phase.TRAIN)
    told = [p.step_seconds for p in records.progress.values() if p.step_seconds is not None]
    if len(told) < made:
        return in_phases / made, 0.0
    each = sum(told) / len(told)
    return each, max(0.0, in_phases - each * made) / len(told)


def _all(records: Records, *phases: Phase) -> float:
    return sum(records.spent(n, *phases) for n in records.progress)


def _before(records: Records, attempt: int) -> float:
    """From the lease to the first eval, without the download: /shared has the model now."""
    cluster = between(records.at("lease ready"), records.at("cluster ready")) or 0.0
    told, line = records.progress.get(attempt), records.view.attempts[0]
    start = 0.0
    if told is not None:
        start = max(0.0, (between(line.started_at, told.at) or 0.0) - sum(told.phase_seconds.values()))
    return cluster + start + records.spent(attempt, Phase.SETUP)


def _evals(records: Records) -> list[Part]:
    """An eval of n items takes what the rehearsed one took, or what n rollouts take at the rate of a training step, whichever is
    longer: few items leave most of the engines idle."""
    asked, manifest = records.asked, records.manifest
    assert manifest is not None
    each = _all(records, Phase.EVAL) / max(1, len(manifest.curve))
    rates = [p.rollouts_per_second for p in records.progress.values() if p.rollouts_per_second]
    rate = min(rates) if rates else None
    training, task = asked.training, asked.task

    def took(items: int | None) -> float:
        return max(each, items / rate) if items is not None and rate else each

    count = 1 + times(training.total_steps, training.eval_interval)
    parts = [Part(name="evals", count=count, each=took(len(task.eval) if isinstance(task.eval, SeedData) else None))]
    if task.holdout is not None:
        items = len(task.holdout) if isinstance(task.holdout, SeedData) else None
        parts.append(Part(name="evals of the hold-out", count=3, each=took(items)))
    return parts


def _saves(records: Records) -> list[Part]:
    """A save is what both saved steps took; an export only counts where there was one."""
    asked = records.asked
    training, train = asked.training, asked.task.train
    exporting = [n for n in records.progress if records.spent(n, Phase.EXPORT) > 0]
    epoch = max(1, len(train) // training.train_batch_size) if isinstance(train, SeedData) else None
    return [
        Part(
            name="checkpoints",
            count=times(training.total_steps, training.ckpt_interval, epoch),
            each=_all(records, Phase.CHECKPOINT) / STEPS,
        ),
        Part(
            name="exports",
            count=times(training.total_steps, min(training.ckpt_interval, training.hf_save_interval)),
            each=_all(records, Phase.EXPORT) / max(1, len(exporting)),
        ),
    ]


def times(steps: int, interval: int, epoch: int | None = None) -> int:
    """How many steps are a multiple of the interval, the end of an epoch, or the last one."""
    if epoch is None:
        return -(-steps // interval)
    due = {*range(interval, min(steps, MAX_COUNTED) + 1, interval), *range(epoch, min(steps, MAX_COUNTED) + 1, epoch)}
    return len(due | {steps})


def _end(records: Records) -> float:
    last = records.view.attempts[-1]
    return between(last.ended_at, records.view.ended_at) or 0.0


def _recovery(records: Records) -> float | None:
    """From the driver's last word to the end of the next one's set-up."""
    killed, after = records.killed, records.after
    told = records.progress.get(killed.n) if killed is not None else None
    if told is None or after is None or after.n not in records.progress:
        return None
    again = records.progress[after.n]
    start = max(0.0, (between(after.started_at, again.at) or 0.0) - sum(again.phase_seconds.values()))
    away = between(told.at, after.started_at) or 0.0
    return round(away + start + records.spent(after.n, Phase.SETUP, Phase.DOWNLOAD), 1)
