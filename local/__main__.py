"""``python -m local demo``, ``up``, ``start`` and ``chaos``: Nightshift on this computer, without a cloud."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from local.chaos.command import run_chaos
from local.config import REPOSITORY
from local.processes import Interrupted, StackError
from local.story.demo import fail, run_demo
from local.story.screen import Screen
from local.story.up import run_start, run_up

INTERRUPTED_EXIT = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 ok, 1 a promise was broken or the stack failed, 130 ended by a signal."""
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for what is left; below out/ by default")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start the stack, print its addresses, and keep it until Ctrl-C")
    commands.add_parser("demo", help="play one run from start event to verified adapter, through a node's death")
    start = commands.add_parser("start", help="send the demo's start event to a stack that `up` keeps running")
    start.add_argument("stack_json", type=Path, help="the configuration file that `up` names")
    chaos = commands.add_parser("chaos", help="strike runs with real faults, one each, and judge what comes of it")
    chaos.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="NAME,...", help="these faults")
    chaos.add_argument("--fewer", action="store_true", help="the few that a short check plays")
    given = parser.parse_args(arguments)
    given.out = given.out or REPOSITORY / "out" / ("chaos" if given.command == "chaos" else "demo")
    if given.command == "start":
        return run_start(given.stack_json)
    screen = Screen()
    try:
        if given.command == "chaos":
            return run_chaos(given.out, screen, given.only, given.fewer)
        return run_up(given.out, screen) if given.command == "up" else run_demo(given.out, screen)
    except (KeyboardInterrupt, Interrupted):
        screen.close()
        fail(given.out, "ended by a signal before its end")
        return INTERRUPTED_EXIT
    except StackError as error:
        screen.close()
        fail(given.out, str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the command's outermost: a person gets a sentence, the log the rest
        screen.close()
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "error.txt").write_text(traceback.format_exc())
        fail(given.out, f"{type(error).__name__}: {str(error)[:500]} (traceback: {given.out / 'error.txt'})")
        return 1


if __name__ == "__main__":
    sys.exit(main())
