"""SkyRL's tracker, replaced: its console output as it is, and everything else to the run's own tracker. SkyRL's would make a
new tracker run for each attempt."""

from __future__ import annotations

from typing import Any

from skyrl.train.utils.tracking import Tracking

from training_job.trackers import Tracked


class JobTracker(Tracking):  # type: ignore[misc]  # its base is untyped
    """SkyRL's for the console, with one ear more. ``finish`` leaves the run's tracker open: the job ends it."""

    def __init__(self, tracked: Tracked, cfg: Any) -> None:
        super().__init__(cfg.trainer.project_name, cfg.trainer.run_name, "console", cfg)
        self._tracked = tracked

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        super().log(data, step, commit)
        self._tracked.log(data, step)
