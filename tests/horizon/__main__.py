"""``python -m tests.horizon [--looks N]``: thousands of looks of each kind, and what follows from what they cost."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from local.cloud.deploy import deploy
from nightshift.core.history import BOUNDS
from tests.horizon.horizon import DAY, Plan, horizon, longest_shift
from tests.horizon.measure import Counts, Found, measure
from tests.horizon.stack import PARAMETERS, written
from tests.local_cloud.support import Cloud, probe_config, start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.horizon")
    parser.add_argument(
        "--looks", type=int, default=1_000, help="woken and answered looks of each wait; a tenth time out"
    )
    looks = parser.parse_args().looks
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cloud is ended in any case
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        config = probe_config(Path(folder) / "cloud")
        child = start(config)
        try:
            cloud = Cloud(config)
            cloud.outputs = deploy(config, written(Path(folder)), PARAMETERS)
            found = measure(cloud, Counts(timed_out=max(1, looks // 10), woken=looks // 2, answered=looks // 2))
        finally:
            child.stop()
    show(found, time.monotonic() - begun)


def show(found: Found, seconds: float) -> None:
    print(f"{'wait':<9}{'kind':<12}{'events':>7}{'looks':>8}")
    for wait, counted in found.looks.items():
        for (kind, events), times in sorted(counted.items()):
            print(f"{wait:<9}{kind:<12}{events:>7}{times:>8}")
    m = found.measured
    print(
        f"a shift's own frame {m.shift_frame}; in the parent: a shift {m.parent_shift}, a recovery {m.parent_recovery} events"
    )
    print(f"and {m.recovery_turns} turns, the beginning {m.parent_begin}, the end {m.parent_end}")
    print(f"longest shift, every look woken: {longest_shift(m, BOUNDS)}; with every retry used: {BOUNDS.shift_at_most}")
    plans = {
        "365 days, 50 recoveries a month, a week queued": Plan(365 * DAY, 600, 7 * DAY),
        "30 days in the queue": Plan(30 * DAY, 0, 30 * DAY),
        "30 days with a signal a second": Plan(30 * DAY, 0, 30 * DAY, interval=1.0),
    }
    print(f"{'run':<50}{'executions':>11}{'longest':>9}{'events':>9}")
    for name, plan in plans.items():
        h = horizon(m, BOUNDS, plan)
        print(f"{name:<50}{h.executions:>11}{h.longest_parent:>9}{h.events_in_all:>9}")
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
