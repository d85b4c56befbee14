"""``nightshift rehearse``: ask for the rehearsal of a spec, watch it to its end, and say whether it passed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import urllib3
from pydantic import ValidationError

from cli.download import fetch_small
from cli.exits import CliError, Exit
from cli.forecast import forecast
from cli.paging import paged
from cli.rehearsal import FINAL_STATES, Records, checks, failure, seconds, where
from cli.rehearsal_text import Report, report_text
from cli.specfile import read_spec
from cli.view import audit, clean
from nightshift.contract.api import Artifact, AuditLine, RunView
from nightshift.contract.base import Document
from nightshift.contract.job import Outcome, Progress
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest
from nightshift.contract.rehearsal import MAX_NUMBER, STEPS, NotToRehearse, rehearsal_of
from nightshift.contract.spec import RunSpec
from nightshift.contract.upgrades import written

if TYPE_CHECKING:
    from cli.client import Api

D = TypeVar("D", bound=Document)
MAX_BYTES = 8_000_000
"""Of one record that is read."""

LOOKS = (1.0, 15.0)
"""Seconds between two looks at a rehearsal, at first and at most."""

PATIENCE = 20
"""Looks in a row that may fail before the watching is given up; the rehearsal goes on without it."""

PASSING = frozenset({Exit.UNAVAILABLE, Exit.TEMPORARY})


@dataclass(frozen=True)
class Wanted:
    """The rehearsal that is to be shown: ``there`` where it was asked for before."""

    spec: RunSpec
    there: bool


def rehearse(arguments: argparse.Namespace, connect: Callable[[argparse.Namespace], Api]) -> None:
    """0 where it passed, CliError (70) where it did not, (75) where it is not over yet, (65) for a spec that cannot be
    rehearsed."""
    asked = read_spec(arguments.spec)
    if arguments.show:
        print(json.dumps(written(_reduced(asked, 1)), indent=1))
        return
    api = connect(arguments)
    wanted = _wanted(api, asked, arguments.again)
    run_id = wanted.spec.run_id
    if not wanted.there:
        accepted = api.start(wanted.spec)
        _tell(f"{clean(accepted.run_id, 40)}: {'asked for' if accepted.created else 'asked for before'}")
    view = _watched(api, wanted.spec, time.monotonic() + 60 * arguments.timeout)
    records = _records(api, asked, wanted.spec, view)
    made = checks(records)
    report = Report(
        run_id=run_id,
        number=wanted.spec.rehearsal.number if wanted.spec.rehearsal is not None else 1,
        passed=all(one.ok for one in made),
        checks=made,
        failure=failure(records, made),
        seconds=seconds(records),
        forecast=forecast(records),
        steps=asked.training.total_steps,
        prefix=view.prefix,
    )
    print(report.model_dump_json(indent=1) if arguments.json else report_text(report))
    if not report.passed:
        raise CliError(Exit.SOFTWARE, f"{run_id} did not pass: do not start the run yet")


def _reduced(asked: RunSpec, number: int) -> RunSpec:
    try:
        return rehearsal_of(asked, number)
    except NotToRehearse as why:
        raise CliError(Exit.BAD_DATA, "this spec cannot be rehearsed", (str(why),)) from why


def _wanted(api: Api, asked: RunSpec, again: bool) -> Wanted:
    """One that is under way or has passed is shown; after one that failed, or on request, the next is asked for. Raises
    CliError (65) where the whole run would be refused, or could never have its nodes."""
    _reduced(asked, 1)
    plan = api.plan(asked)
    if plan.capacity:
        raise CliError(Exit.BAD_DATA, "nothing was started: it could never have its nodes", tuple(plan.capacity))
    before = plan.rehearsed
    if before is not None and (before.state not in FINAL_STATES or (before.passed and not again)):
        state = "it passed before" if before.passed else f"is {before.state.replace('_', ' ')}"
        _tell(f"{clean(before.run_id, 40)}: {clean(state)}{'; --again rehearses once more' if before.passed else ''}")
        return Wanted(_reduced(asked, before.number), there=True)
    number = 1 if before is None else before.number + 1
    if number > MAX_NUMBER:
        _reduced(asked, number)
    if plan.holder is not None:
        waiting = f", and {plan.waiting} wait before it" if plan.waiting else ""
        _tell(f"pool {clean(plan.pool, 40)} is held by {clean(plan.holder, 40)}{waiting}: the rehearsal waits in line")
    return Wanted(_reduced(asked, number), there=False)


def _tell(line: str) -> None:
    """What happens meanwhile is no part of the report."""
    print(line, file=sys.stderr, flush=True)


def _watched(api: Api, spec: RunSpec, deadline: float) -> RunView:
    """The run at its end. Raises CliError (75) where that does not come in time, and whatever keeps the API from being asked
    for ``PATIENCE`` looks in a row."""
    known: set[tuple[str, str]] = set()
    pause, failed, question, waits = LOOKS[0], 0, "", ""
    while True:
        view: RunView | None = None
        try:
            view, failed = api.status(spec.run_id), 0
        except CliError as error:
            failed += 1
            if error.exit_code not in PASSING or failed >= PATIENCE:
                raise
        if view is not None:
            for line in view.audit:
                if (line.at.isoformat(), line.what) not in known:
                    known.add((line.at.isoformat(), line.what))
                    _tell(audit(line))
            if view.state in FINAL_STATES and (view.ended_at is not None or view.state == "rejected"):
                return view
            if view.waiting_for and view.waiting_for != waits:
                _tell(f"  waits for {clean(view.waiting_for)}")
            if view.question and view.question != question:
                _tell(f"  asks: {clean(view.question, 1_000)}")
            question, waits = view.question, view.waiting_for
        if time.monotonic() + pause > deadline:
            raise _too_late(spec, view)
        time.sleep(pause)
        pause = min(LOOKS[1], pause * 1.2)


def _too_late(spec: RunSpec, view: RunView | None) -> CliError:
    here = "its state is not known"
    if view is not None:
        waits = f", and waits for {view.waiting_for}" if view.waiting_for else ""
        here = f"it is {view.state} (phase: {where(Records(spec, spec, view, events=view.audit))}){waits}"
    lines = (
        clean(here, 600),
        "ask again with the same command to go on watching it",
        f"or end it: nightshift cancel {spec.run_id} --now",
    )
    return CliError(Exit.TEMPORARY, f"{spec.run_id} is not over within --timeout; it goes on", lines)


# the records ----------------------------------------------------------------------------------------------------------


def _records(api: Api, asked: RunSpec, spec: RunSpec, view: RunView) -> Records:
    """Everything that the report is made from, over the API and the addresses that it hands out."""
    if view.state == "rejected":
        return Records(asked, spec, view)
    keys, pool, found = RunKeys(spec.run_id), urllib3.PoolManager(), _artifacts(api, spec.run_id)

    def read(key: str) -> bytes | None:
        one = found.get(key.removeprefix(keys.prefix))
        return fetch_small(one, pool, MAX_BYTES) if one is not None else None

    manifest = _parsed(Manifest, read(keys.manifest))
    final = manifest.final if manifest is not None else None
    rows = read(keys.eval_rows(final.attempt, final.step, final.eval_set)) if final is not None else None
    numbers = [one.n for one in view.attempts]
    progress = {n: _parsed(Progress, read(keys.progress(n))) for n in numbers}
    outcomes = {n: _parsed(Outcome, read(keys.outcome(n))) for n in numbers}
    return Records(
        asked,
        spec,
        view,
        events=_events(api, spec.run_id),
        progress={n: one for n, one in progress.items() if one is not None},
        outcomes={n: one for n, one in outcomes.items() if one is not None},
        manifest=manifest,
        rows=None if rows is None or final is None or final.step != STEPS else len(rows.splitlines()),
    )


def _artifacts(api: Api, run_id: str) -> dict[str, Artifact]:
    def page(after: str | None) -> tuple[list[Artifact], str | None]:
        found = api.artifacts(run_id, limit="100", next=after)
        return found.artifacts, found.next

    return {one.key: one for one in paged(page)}


def _events(api: Api, run_id: str) -> list[AuditLine]:
    def page(after: str | None) -> tuple[list[AuditLine], str | None]:
        found = api.events(run_id, order="oldest", limit="100", next=after)
        return found.events, found.next

    return list(paged(page))


def _parsed(kind: type[D], body: bytes | None) -> D | None:
    """None for what is missing or cannot be read: the check that needs it says so."""
    try:
        return kind.from_json(body) if body is not None else None
    except ValidationError:
        return None
