"""Arguments, and the exit code."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cli import commands
from cli.commands import API_VARIABLE
from cli.exits import CliError, Exit
from cli.view import clean
from nightshift.contract.costs import MONTH

MAX_LISTED = 1_000
MAX_MINUTES = 7 * 24 * 60


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Wrong usage is 64 here, not argparse's 2."""
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_LISTED:
        raise ValueError(text)
    return number


def _month(text: str) -> str:
    if re.fullmatch(MONTH, text, re.ASCII) is None:
        raise ValueError(text)
    return text


def _minutes(text: str) -> float:
    number = float(text)
    if not 0 < number <= MAX_MINUTES:
        raise ValueError(text)
    return number


def _arguments() -> argparse.ArgumentParser:
    parser = _Parser(prog="nightshift", description="Ask for training runs, look at them, and steer them.")
    every = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    def command(name: str, does: Callable[[argparse.Namespace], None], help: str, needs: str = "") -> Any:
        """``needs`` is the one thing that the command is about: run, file or pool."""
        made = every.add_parser(name, help=help)
        made.set_defaults(does=does)
        if needs == "file":
            made.add_argument("file", type=Path, help="a run spec, YAML or JSON")
        elif needs:
            made.add_argument(needs, help="the run's id" if needs == "run" else "the pool's name")
        if name not in ("validate", "schema"):
            made.add_argument("--api", help=f"address of the API; default: ${API_VARIABLE}")
        return made

    command("validate", commands.validate, "check a run spec without sending it", "file")
    command("plan", commands.plan, "have everything checked and nothing started", "file")
    command("start", commands.start, "ask for a run; asking again for the same one is harmless", "file")
    tried = command("rehearse", commands.rehearse, "try a spec: 2 steps on the cluster, through its driver's death")
    tried.add_argument("--spec", type=Path, required=True, help="a run spec, YAML or JSON")
    tried.add_argument("--again", action="store_true", help="also where it passed before")
    tried.add_argument(
        "--timeout", type=_minutes, default=120, metavar="MINUTES", help="how long to watch (default 120)"
    )
    tried.add_argument("--json", action="store_true", help="the report as JSON")
    tried.add_argument("--show", action="store_true", help="print the rehearsal's own spec, and start nothing")
    listed = command("list", commands.list_runs, "show runs: those that are not over, then the others, newest first")
    listed.add_argument("--state", help="runs in this state only")
    listed.add_argument("--pool", help="runs of this pool only")
    listed.add_argument("--owner", help="runs of this owner only, as status shows it")
    listed.add_argument("--limit", type=_count, default=50, help=f"how many at most (1 to {MAX_LISTED})")
    command("status", commands.status, "show where a run is", "run")
    trail = command("events", commands.events, "show what happened to a run, newest last", "run")
    trail.add_argument("--limit", type=_count, default=100, help="how many of the newest")
    command("queue", commands.queue, "show who holds a pool and who waits for it", "pool")
    fetched = command("artifacts", commands.artifacts, "list what a run left, or fetch it", "run")
    fetched.add_argument("--download", type=Path, metavar="DIR", help="fetch everything into this folder")
    spent = command("cost", commands.cost, "show what is attributed to whom, and what stood idle")
    spent.add_argument("--from", dest="first", type=_month, metavar="MONTH", help="as 2026-11; default: this month")
    spent.add_argument("--to", dest="last", type=_month, metavar="MONTH", help="the last month; default: the first one")
    spent.add_argument("--by", choices=("run", "month", "owner", "project", "pool"), default="run", help="sum by this")
    spent.add_argument("--owner", help="runs of this owner only, as status shows it")
    spent.add_argument("--project", help="runs of this project only")
    spent.add_argument("--json", action="store_true", help="one JSON object: sums, idle, and every run")
    cancel = command("cancel", commands.cancel, "end a run; asking again is harmless", "run")
    cancel.add_argument("--now", action="store_true", help="without waiting for a checkpoint")
    drain = command("drain", commands.drain_runs, "end every run and wait until nothing is left: before a deletion")
    drain.add_argument("--now", action="store_true", help="without waiting for checkpoints")
    drain.add_argument("--minutes", type=_count, default=60, help="how long to wait at most")
    answer = command("answer", commands.answer, "answer what a run asks; it ends where nobody does in time", "run")
    said = answer.add_mutually_exclusive_group(required=True)
    said.add_argument("--go-on", action="store_true", help="the run goes on waiting, or with its next attempt")
    said.add_argument("--give-up", action="store_true", help="the run ends for what it asked about")
    retry = command("retry", commands.retry, "have a failed or cancelled run go on from its checkpoints", "run")
    retry.add_argument(
        "--raise", dest="raised", action="append", default=[], metavar="NAME=NUMBER", help="raise a budget"
    )
    retry.add_argument("--image", help="another image, by its digest")
    dashboard = command("dashboard", commands.dashboard, "print an address of a run's Ray dashboard", "run")
    dashboard.add_argument("--open", action="store_true", help="open it in the browser instead")
    command("schema", commands.schema, "print the JSON schema of a run spec")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of sysexits."""
    arguments = _arguments().parse_args(argv)
    try:
        arguments.does(arguments)
    except CliError as error:
        print(f"nightshift: {clean(str(error), 1_000)}", file=sys.stderr)
        for line in error.lines:
            print(f"  {clean(line, 600)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter's last flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK
