"""Arguments, and one function a command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cli.exits import CliError, Exit
from cli.specfile import read_spec
from cli.view import clean, text
from nightshift.contract.spec import RunSpec, spec_digest

API_VARIABLE = "NIGHTSHIFT_API"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Wrong usage is 64 here, not argparse's 2."""
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")


def _arguments() -> argparse.ArgumentParser:
    parser = _Parser(prog="nightshift", description="Ask for training runs and look at them.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    check = commands.add_parser("validate", help="check a run spec (YAML or JSON) without sending it")
    start = commands.add_parser("start", help="ask for a run; asking again for the same one is harmless")
    status = commands.add_parser("status", help="show where a run is")
    cancel = commands.add_parser("cancel", help="end a run; asking again is harmless")
    answer = commands.add_parser("answer", help="answer what a run asks; it ends where nobody does in time")
    commands.add_parser("schema", help="print the JSON schema of a run spec")
    for one in (check, start):
        one.add_argument("file", type=Path)
    for one in (status, cancel, answer):
        one.add_argument("run", help="the run's id")
    said = answer.add_mutually_exclusive_group(required=True)
    said.add_argument("--go-on", action="store_true", help="the run goes on waiting, or with its next attempt")
    said.add_argument("--give-up", action="store_true", help="the run ends for what it asked about")
    for one in (start, status, cancel, answer):
        one.add_argument("--api", help=f"address of the API; default: ${API_VARIABLE}")
    return parser


def _address(given: str | None) -> str:
    from cli.client import checked_address

    address = given or os.environ.get(API_VARIABLE, "")
    if not address:
        raise CliError(Exit.CONFIGURATION, f"the API's address is not known: give --api or set {API_VARIABLE}")
    return checked_address(address)


def _validate(arguments: argparse.Namespace) -> None:
    spec = read_spec(arguments.file)
    print(f"{arguments.file}: valid. Run {spec.run_id}, {spec.topology.gpus} GPUs, digest {spec_digest(spec)[:12]}")


def _start(arguments: argparse.Namespace) -> None:
    # botocore takes half a second to import: only the commands that call the API pay for it.
    from cli.client import Api

    spec = read_spec(arguments.file)
    accepted = Api(_address(arguments.api)).start(spec)
    print(
        f"{clean(accepted.run_id)}: {'asked for' if accepted.created else 'asked for before'}, {clean(accepted.state)}"
    )


def _status(arguments: argparse.Namespace) -> None:
    from cli.client import Api

    print(text(Api(_address(arguments.api)).status(arguments.run)))


def _cancel(arguments: argparse.Namespace) -> None:
    from cli.client import Api

    told = Api(_address(arguments.api)).cancel(arguments.run)
    print(f"{clean(told.run_id)}: cancel is recorded, {clean(told.state)} for now")


def _answer(arguments: argparse.Namespace) -> None:
    from cli.client import Api

    told = Api(_address(arguments.api)).answer(arguments.run, arguments.go_on)
    print(f"{clean(told.run_id)}: answered to {'go on' if arguments.go_on else 'give up'}, {clean(told.state)} for now")


def _schema(_: argparse.Namespace) -> None:
    print(json.dumps(RunSpec.model_json_schema(), indent=2))


_COMMANDS = {
    "validate": _validate,
    "start": _start,
    "status": _status,
    "cancel": _cancel,
    "answer": _answer,
    "schema": _schema,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of sysexits."""
    arguments = _arguments().parse_args(argv)
    try:
        _COMMANDS[arguments.command](arguments)
    except CliError as error:
        print(f"nightshift: {clean(str(error), 1_000)}", file=sys.stderr)
        for line in error.lines:
            print(f"  {clean(line, 600)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter's last flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK
