"""The progress as Ray metrics: from the driver's process to the text that Prometheus reads from the node."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.builders import progress
from tests.job.support import REPOSITORY, Runs
from training_job.metrics import METRICS, RayMetrics

DRIVER = """
import json, sys, time, urllib.request
import ray
from nightshift.contract import Progress
from training_job.metrics import RayMetrics

ray.init(address="auto", log_to_driver=False)
node = ray.nodes()[0]
address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
metrics = RayMetrics("metrics-run", warn=lambda line: sys.exit(line))
lines, deadline = [], time.monotonic() + 60
while time.monotonic() < deadline and not any(one.startswith("ray_nightshift_eta_seconds") for one in lines):
    metrics.show(Progress.from_json(sys.argv[1]))
    time.sleep(0.5)
    try:
        text = urllib.request.urlopen(address, timeout=5).read().decode()
    except OSError:
        continue
    lines = [one for one in text.splitlines() if one.startswith("ray_nightshift_") and 'run_id="metrics-run"' in one]
print(json.dumps(lines))
"""


def test_the_nodes_metrics_have_the_progress_with_the_runs_id(runs: Runs) -> None:
    given = progress(reward=0.5, success=0.75, step_seconds=20.0, eta_seconds=3_600.0, rollouts_per_second=9.6)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, given.to_json()],
        env={**runs.environment, "RAY_metrics_report_interval_ms": "500"},
        cwd=REPOSITORY, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout.splitlines()[-1])
    values = {line.split("{")[0].removeprefix("ray_"): float(line.split()[-1]) for line in lines}
    assert values == {
        "nightshift_step": 25, "nightshift_saved_step": 20, "nightshift_attempt": 1, "nightshift_reward": 0.5,
        "nightshift_success": 0.75, "nightshift_step_seconds": 20, "nightshift_eta_seconds": 3_600,
        "nightshift_rollouts_per_second": 9.6,
    }  # fmt: skip


def test_every_metric_is_a_field_of_the_progress_and_what_breaks_is_told_once_and_never_raised() -> None:
    assert all(hasattr(progress(), field) for field, _ in METRICS.values())
    told: list[str] = []
    metrics = RayMetrics("r", told.append)
    metrics._make = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    for _ in range(3):
        metrics.show(progress())
    assert len(told) == 1 and "ZeroDivisionError" in told[0]
