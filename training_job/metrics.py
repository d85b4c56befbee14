"""The progress as Ray metrics, from the driver's process: Grafana shows them beside Ray's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nightshift.contract import Progress

METRICS: Final[dict[str, tuple[str, str]]] = {
    "nightshift_step": ("step", "Last finished training step"),
    "nightshift_saved_step": ("saved_step", "Last step verified after its save"),
    "nightshift_attempt": ("attempt", "Number of the attempt"),
    "nightshift_reward": ("reward", "Mean reward of the last step's rollouts"),
    "nightshift_success": ("success", "Share of the fixed set solved in the last eval"),
    "nightshift_step_seconds": ("step_seconds", "Seconds of the last step"),
    "nightshift_rollouts_per_second": ("rollouts_per_second", "Rollouts a second of generation in the last step"),
    "nightshift_tokens_per_second": ("tokens_per_second", "Generated tokens a second of generation in the last step"),
    "nightshift_eta_seconds": ("eta_seconds", "Seconds to the end of the run, as far as one can tell"),
}
"""Name -> field of the progress, description. Ray puts ``ray_`` before a name."""


class RayMetrics:
    """``show`` never raises; what fails is told once, and then nothing is shown any more."""

    def __init__(self, run_id: str, warn: Callable[[str], None] = print) -> None:
        self._run_id, self._warn = run_id, warn
        self._gauges: dict[str, Any] | None = None
        self._off = False

    def show(self, progress: Progress) -> None:
        """Ray must be connected by the first call."""
        if self._off:
            return
        try:
            self._gauges = self._gauges or self._make()
            for name, gauge in self._gauges.items():
                value = getattr(progress, METRICS[name][0])
                if value is not None:
                    gauge.set(float(value))
        except Exception as error:  # noqa: BLE001 - a picture in Grafana is not worth a step
            self._off = True
            self._warn(f"Ray takes no metrics: {type(error).__name__}: {str(error)[:200]}")

    def _make(self) -> dict[str, Any]:
        from ray.util.metrics import Gauge

        gauges = {name: Gauge(name, description=text, tag_keys=("run_id",)) for name, (_, text) in METRICS.items()}
        for gauge in gauges.values():
            gauge.set_default_tags({"run_id": self._run_id})
        return gauges
