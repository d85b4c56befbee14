"""One function a command. Each prints what a person wants to read; what is wrong is a CliError."""

from __future__ import annotations

import argparse
import json
import os
import sys
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from cli import lists
from cli.drain import drain
from cli.exits import CliError, Exit
from cli.paging import paged
from cli.specfile import read_spec
from cli.view import clean, clock, text
from nightshift.contract.api import CancelMode, RaisedBudgets, Retry
from nightshift.contract.costs import CapacitySpan, RunCost, month_of
from nightshift.contract.spec import RunSpec, spec_digest

if TYPE_CHECKING:
    from cli.client import Api

API_VARIABLE = "NIGHTSHIFT_API"
MAX_SUMMED = 2_000
"""Pages of a list that is summed."""

T = TypeVar("T")


def _api(arguments: argparse.Namespace) -> Api:
    # botocore takes half a second to import: only the commands that call the API pay for it.
    from cli.client import Api, checked_address

    address = arguments.api or os.environ.get(API_VARIABLE, "")
    if not address:
        raise CliError(Exit.CONFIGURATION, f"the API's address is not known: give --api or set {API_VARIABLE}")
    return Api(checked_address(address))


def validate(arguments: argparse.Namespace) -> None:
    spec = read_spec(arguments.file)
    print(f"{arguments.file}: valid. Run {spec.run_id}, {spec.topology.gpus} GPUs, digest {spec_digest(spec)[:12]}")


def schema(_: argparse.Namespace) -> None:
    print(json.dumps(RunSpec.model_json_schema(), indent=2))


def start(arguments: argparse.Namespace) -> None:
    spec = read_spec(arguments.file)
    accepted = _api(arguments).start(spec)
    asked = "asked for" if accepted.created else "asked for before"
    print(f"{clean(accepted.run_id)}: {asked}, {clean(accepted.state)}")


def plan(arguments: argparse.Namespace) -> None:
    spec = read_spec(arguments.file)
    found = _api(arguments).plan(spec)
    print(lists.plan(found))
    if found.capacity:
        raise CliError(Exit.BAD_DATA, "it would be admitted and then fail for its capacity")


def rehearse(arguments: argparse.Namespace) -> None:
    from cli.rehearse import rehearse

    rehearse(arguments, _api)


def list_runs(arguments: argparse.Namespace) -> None:
    api, size = _api(arguments), str(min(arguments.limit, 100))
    wanted = {"state": arguments.state, "pool": arguments.pool, "owner": arguments.owner, "limit": size}

    def page(after: str | None) -> tuple[list[lists.RunLine], str | None]:
        found = api.runs(**wanted, next=after)
        return found.runs, found.next

    print(lists.runs(list(paged(page, arguments.limit)), datetime.now(UTC)))


def status(arguments: argparse.Namespace) -> None:
    print(text(_api(arguments).status(arguments.run)))


def events(arguments: argparse.Namespace) -> None:
    """The newest ``--limit`` of them, newest last."""
    api, size = _api(arguments), str(min(arguments.limit, 100))

    def page(after: str | None) -> tuple[list[lists.AuditLine], str | None]:
        found = api.events(arguments.run, order="newest", limit=size, next=after)
        return found.events, found.next

    print(lists.events(list(paged(page, arguments.limit))[::-1]))


def queue(arguments: argparse.Namespace) -> None:
    print(lists.pool(_api(arguments).pool(arguments.pool, limit="100")))


def artifacts(arguments: argparse.Namespace) -> None:
    """List them, or fetch each into a folder: page by page, since addresses end soon."""
    api = _api(arguments)

    def page(after: str | None) -> tuple[list[lists.Artifact], str | None]:
        found = api.artifacts(arguments.run, limit="100", next=after)
        if arguments.download is not None:
            _fetch(found.artifacts, arguments.download)
        return found.artifacts, found.next

    every = list(paged(page))
    print(lists.artifacts(every) if arguments.download is None else f"{len(every)} objects are in {arguments.download}")


def _fetch(found: list[lists.Artifact], folder: Path) -> None:
    import urllib3

    from cli.download import download

    pool = urllib3.PoolManager()
    for one in found:
        new = download(one, folder, pool)
        print(f"{'fetched' if new else 'there already'}: {clean(one.key)} ({lists.size(one.size)})")


def cost(arguments: argparse.Namespace) -> None:
    """Every page is read: a sum of some of them would be a wrong sum. What stood idle needs everybody's runs."""
    from cli import costs

    api, this = _api(arguments), month_of(datetime.now(UTC))
    first = arguments.first or arguments.last or this
    wanted = {"from": first, "to": arguments.last or first, "limit": "100"}
    whose = {"owner": arguments.owner, "project": arguments.project}

    def page(after: str | None) -> tuple[list[RunCost], str | None]:
        found = api.costs(**wanted, **whose, next=after)
        return found.runs, found.next

    def spans(after: str | None) -> tuple[list[CapacitySpan], str | None]:
        found = api.capacity(**wanted, next=after)
        return found.spans, found.next

    runs = _every(page)
    capacity = None if any(whose.values()) else _every(spans)
    if arguments.json:
        print(json.dumps(costs.document(first, wanted["to"], runs, capacity, arguments.by), indent=1))
    else:
        print(costs.text(runs, capacity, arguments.by))


def _every(page: Callable[[str | None], tuple[list[T], str | None]]) -> list[T]:
    """All items of a list. Raises CliError where it does not end."""
    found, after = page(None)
    for _ in range(MAX_SUMMED):
        if after is None:
            return found
        items, after = page(after)
        found += items
    raise CliError(Exit.UNAVAILABLE, f"there are more than {MAX_SUMMED} pages: ask for an owner, or for fewer months")


def cancel(arguments: argparse.Namespace) -> None:
    told = _api(arguments).cancel(arguments.run, CancelMode.NOW if arguments.now else CancelMode.AFTER_CHECKPOINT)
    print(f"{clean(told.run_id)}: cancel is recorded, {clean(told.state)} for now")


def drain_runs(arguments: argparse.Namespace) -> None:
    mode = CancelMode.NOW if arguments.now else CancelMode.AFTER_CHECKPOINT
    ended = drain(_api(arguments), mode, arguments.minutes * 60.0, lambda line: print(clean(line, 600), flush=True))
    print(f"{ended} ended by this; no run is left. The stack can be deleted: sam delete")


def answer(arguments: argparse.Namespace) -> None:
    told = _api(arguments).answer(arguments.run, arguments.go_on)
    print(f"{clean(told.run_id)}: answered to {'go on' if arguments.go_on else 'give up'}, {clean(told.state)} for now")


def retry(arguments: argparse.Namespace) -> None:
    told = _api(arguments).retry(arguments.run, _change(arguments))
    print(f"{clean(told.run_id)}: goes on from its checkpoints, {clean(told.state)} for now")


def _change(arguments: argparse.Namespace) -> Retry:
    """Raises CliError (64) for a limit that there is not, or that is no number."""
    raised: dict[str, str] = {}
    for pair in arguments.raised:
        name, equals, value = pair.partition("=")
        if not equals or name not in RaisedBudgets.model_fields:
            known = ", ".join(RaisedBudgets.model_fields)
            raise CliError(Exit.USAGE, f"--raise takes NAME=NUMBER, and NAME is one of {known}")
        raised[name] = value
    try:
        return Retry(budgets=RaisedBudgets.model_validate(raised), image=arguments.image)
    except ValidationError as error:
        problems = tuple(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise CliError(Exit.USAGE, "that is no retry", problems) from error


def dashboard(arguments: argparse.Namespace) -> None:
    """The address goes to the browser, or to stdout: it lets anybody in who has it."""
    link = _api(arguments).dashboard(arguments.run)
    print(f"good for one session, to be begun before {clock(link.expires_at)} UTC; do not pass it on", file=sys.stderr)
    if not (arguments.open and webbrowser.open(link.url)):
        print(clean(link.url, 10_000))
