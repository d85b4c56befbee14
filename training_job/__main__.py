"""Command line: ``run`` is the Ray job's entrypoint, ``verify`` checks a publication in a fresh process, ``plan`` says
what a spec means, ``try`` plays an episode of its task, ``doctor`` says whether a run can work where it is started, and ``gc``
removes from /shared what is of no use any more."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from nightshift.contract import ExitCode


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # upstream's base is wider
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(int(ExitCode.USAGE))


def _at_least(low: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < low:
            raise ValueError(f"{value} is below {low}")
        return value

    return number


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(f"{value} is no size")
    return value


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    top = _Parser(prog="training_job", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="one attempt of a run")
    run.add_argument("--attempt", type=_at_least(1), required=True, help="number of the attempt, from 1")
    run.add_argument("--floor", type=_at_least(0), required=True, help="last step that was verified after its save")
    run.add_argument("--smaller", action="store_true", help="train with the spec's recovery.on_out_of_memory values")
    verify = commands.add_parser("verify", help="read a publication back and check it")
    plan = commands.add_parser("plan", help="what a spec means and what speaks against it; starts nothing")
    plan.add_argument("--spec", type=Path, required=True, help="a run spec, YAML or JSON")
    plan.add_argument("--train-rows", type=_at_least(1), help="rows of the training set, where it is a parquet file")
    plan.add_argument(
        "--model", help="a folder with the base model's config.json, or qwen3-vl-8b: for the memory estimate"
    )
    trial = commands.add_parser("try", help="one episode of a task here, with replies of yours")
    trial.add_argument("--spec", type=Path, required=True, help="a run spec, YAML or JSON")
    trial.add_argument("--code", type=Path, help="a wheel or folder with the task's code, where it is not importable")
    trial.add_argument("--item", type=_at_least(0), default=0, help="number of the eval item, from 0")
    trial.add_argument("--row", help="the item's row as JSON, where the items are a parquet file")
    trial.add_argument("--replies", type=Path, help="what to answer, a block a turn; a line of --- is between two")
    doctor = commands.add_parser("doctor", help="whether a run can work here, and what to fix; starts nothing")
    doctor.add_argument("--bucket", help="the bucket of the runs: written to, read back, and compared with the clock")
    doctor.add_argument("--spec", type=Path, help="a run spec: how many checkpoints must fit")
    doctor.add_argument("--shared", type=Path, help="the shared mount, where it is not the job's own")
    doctor.add_argument("--gpus", type=_at_least(0), help="GPUs that this node must have")
    doctor.add_argument(
        "--checkpoint-gb", type=_positive, default=35.0, help="a checkpoint's size, where none is there"
    )
    doctor.add_argument("--only", type=lambda text: text.split(","), default=[], help="names of checks, with commas")
    doctor.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    gc = commands.add_parser("gc", help="remove from the shared mount what runs that are over have left")
    gc.add_argument("--bucket", required=True, help="the bucket of the runs")
    gc.add_argument("--table", required=True, help="the table with their records")
    gc.add_argument("--shared", type=Path, help="the shared mount, where it is not the job's own")
    gc.add_argument("--dry-run", action="store_true", help="say what would go, how many bytes and why; change nothing")
    gc.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    for name, days, help in (
        ("succeeded", 14, "a success: its newest verified checkpoint"),
        ("rest", 3, "a success: everything else"),
        ("failed", 30, "a failure"),
        ("cancelled", 30, "a cancelled run"),
        ("models", 60, "a base model since its last use"),
        ("trash", 3, "what was moved to the trash"),
    ):
        gc.add_argument(f"--{name}-days", type=_at_least(0), default=days, metavar="N", help=f"{help}; default {days}")
    for command in (run, verify):
        command.add_argument("--bucket", required=True)
        command.add_argument("--run-id", required=True)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Exit codes follow sysexits: 0, 64 usage, 65 bad data, 70 software, 75 temporary."""
    # Before numpy and torch: the same numbers on every computer, and no fight for cores.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    args = parser().parse_args(arguments)
    if args.command == "verify":
        from training_job.verify import verify

        return verify(args.bucket, args.run_id)
    if args.command == "plan":
        from training_job.plan import main as plan

        return plan(args.spec, args.train_rows, args.model)
    if args.command == "try":
        from training_job.trial import main as trial

        return trial(args.spec, args.item, args.replies, args.row, args.code)
    if args.command == "gc":
        from training_job.gc.command import gc
        from training_job.gc.rule import Periods

        periods = Periods(**{name: getattr(args, f"{name}_days") for name in Periods.__dataclass_fields__})
        return gc(args.bucket, args.table, args.shared, periods, args.dry_run, args.json)
    if args.command == "doctor":
        from training_job.doctor.command import Wishes, doctor

        wishes = Wishes(args.bucket, None, args.shared, args.gpus, args.checkpoint_gb, args.only)
        return doctor(wishes, args.spec, args.json)
    from training_job.run import run

    return run(args.bucket, args.run_id, args.attempt, args.floor, args.smaller)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and Ray's exit hooks may take seconds; everything that matters is written.
    os._exit(code)
