"""Lists: runs, a run's events, a pool's line, a run's objects. Each answer reads one page and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from nightshift.contract.api import (
    Artifact,
    ArtifactList,
    EventList,
    Holder,
    Place,
    PoolView,
    RunLine,
    RunList,
)
from nightshift.contract.job import FileDigest
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest
from nightshift.contract.reading import Unreadable, read_document
from nightshift.core.paging import make_token, read_token
from nightshift.core.run import FINAL_STATES, RunState
from nightshift.steps.control import NoSuchRun
from nightshift.steps.ports import Downloads, Listings, Page, Ports

MAX_PAGE = 100
ADDRESS_SECONDS = 900
"""How long an object's address may be used."""

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00"
OF_A_RUN = rf"{STAMP}#[a-z0-9-]{{1,40}}"
OPEN_RUNS, OVER_RUNS = "open", "over"


@dataclass(frozen=True)
class RunFilter:
    state: RunState | None = None
    pool: str | None = None
    owner: str | None = None

    def admits(self, line: RunLine) -> bool:
        return (
            (self.state is None or line.state == self.state.value)
            and self.pool in (None, line.pool)
            and self.owner in (None, line.owner)
        )


def list_runs(listings: Listings, wanted: RunFilter, limit: int, token: str | None) -> RunList:
    """At most ``limit`` runs are read: of an owner, where one is named, else by their age. Raises BadToken."""
    scope = f"runs|{wanted.state or ''}|{wanted.pool or ''}|{wanted.owner or ''}"
    if wanted.owner is not None:
        after = read_token(scope, token, OF_A_RUN) if token else None
        page = listings.runs_of(wanted.owner, after, limit)
        following = page.after
    else:
        page, following = by_age(listings, wanted.state, scope, limit, token)
    runs = [line for line in page.items if wanted.admits(line)]
    return RunList(runs=runs, next=make_token(scope, following) if following is not None else None)


def by_age(
    listings: Listings, state: RunState | None, scope: str, limit: int, token: str | None
) -> tuple[Page[RunLine], str | None]:
    """Runs that are not over, then the others. What is left of a page after the last open one is filled with the others."""
    part, after = OVER_RUNS if state in FINAL_STATES else OPEN_RUNS, None
    if token:
        part, _, after = read_token(scope, token, rf"({OPEN_RUNS}|{OVER_RUNS})/({OF_A_RUN})?").partition("/")
    page = listings.runs_by_age(part == OVER_RUNS, after or None, limit)
    if page.after is not None:
        return page, f"{part}/{page.after}"
    if part == OVER_RUNS or state is not None:
        return page, None
    left = limit - len(page.items)
    if left < 1:
        return page, f"{OVER_RUNS}/"
    rest = listings.runs_by_age(True, None, left)
    following = f"{OVER_RUNS}/{rest.after}" if rest.after is not None else None
    return Page(page.items + rest.items), following


def list_events(
    ports: Ports, listings: Listings, run_id: str, newest_first: bool, limit: int, token: str | None
) -> EventList:
    """A run's audit trail; of one that was only refused it is empty. Raises NoSuchRun, BadToken."""
    scope = f"events|{run_id}|{newest_first}"
    after = read_token(scope, token, rf"{STAMP}#[0-9a-f]{{8}}") if token else None
    page = listings.events(run_id, newest_first, after, limit)
    if not page.items and after is None and ports.runs.get(run_id) is None and not ports.runs.rejections(run_id):
        raise NoSuchRun(run_id)
    following = make_token(scope, page.after) if page.after is not None else None
    return EventList(run_id=run_id, events=list(page.items), next=following)


def view_pool(ports: Ports, listings: Listings, pool: str, limit: int, token: str | None) -> PoolView:
    """Who holds the pool and who is next. A pool is a name: one that nobody uses is free. Raises BadToken."""
    scope, before, after = f"pool|{pool}", 0, None
    if token:
        counted, after = read_token(scope, token, rf"\d{{1,7}}/[01]#{OF_A_RUN}").split("/", 1)
        before = int(counted)
    page, lease = listings.line_of(pool, after, limit), listings.lease_of(pool)
    waiting = [
        Place(
            place=before + n, run_id=run.run_id, owner=run.owner, priority=run.priority.value, created_at=run.created_at
        )
        for n, run in enumerate(page.items, start=1)
    ]
    holder = None
    if lease is not None:
        holder = Holder(run_id=lease.run_id, since=lease.since)
        run = ports.runs.get(lease.run_id)
        if run is not None:
            told = {"step": run.step, "total_steps": run.total_steps, "eta_seconds": run.eta_seconds}
            holder = holder.model_copy(update={"owner": run.owner, "state": run.state.value, **told})
    following = f"{before + len(waiting)}/{page.after}" if page.after is not None else None
    return PoolView(
        pool=pool, holder=holder, waiting=waiting, next=make_token(scope, following) if following is not None else None
    )


def list_artifacts(ports: Ports, downloads: Downloads, run_id: str, limit: int, token: str | None) -> ArtifactList:
    """What lies below the run's prefix, whatever state the run is in. Raises NoSuchRun, BadToken."""
    run = ports.runs.get(run_id)
    if run is None:
        raise NoSuchRun(run_id)
    scope = f"artifacts|{run_id}"
    after = read_token(scope, token, r"[^\x00-\x1f]{1,900}") if token else None
    page, promised = downloads.page(run_id, after, limit), _promised(ports, run_id)
    until = ports.now() + timedelta(seconds=ADDRESS_SECONDS)
    artifacts = [
        Artifact(
            key=key,
            size=size,
            sha256=promised[key].sha256 if key in promised and promised[key].size == size else None,
            url=downloads.address(run_id, key, ADDRESS_SECONDS),
        )
        for key, size in page.items
    ]
    return ArtifactList(
        run_id=run_id,
        published=run.published,
        expires_at=until,
        artifacts=artifacts,
        next=make_token(scope, page.after) if page.after is not None else None,
    )


def _promised(ports: Ports, run_id: str) -> Mapping[str, FileDigest]:
    """What the manifest says; nothing where it is missing, or too large to be read for a page."""
    body = ports.artifacts.read_small(RunKeys(run_id).manifest)
    if body is None:
        return {}
    try:
        return read_document(Manifest, body).document.objects
    except Unreadable:
        return {}
