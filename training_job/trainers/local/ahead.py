"""Slow imports and the making of the learner, on a thread of their own while workers start and play the baseline."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from nightshift.contract.spec import LoraSettings, Training
from training_job.clock import Stopwatch

if TYPE_CHECKING:
    from training_job.trainers.local.learner import Learner


class Ahead:
    """Two steps in order: torch, then transformers and PEFT. Main thread code waits for what it needs."""

    def __init__(self, watch: Stopwatch, use_hub: bool) -> None:
        """``use_hub``: the base model comes from the Hugging Face hub; otherwise nothing may ask it."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if not use_hub:
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        self._watch = watch
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="imports")
        self._torch = self._threads.submit(self._import_torch)
        self._rest = self._threads.submit(self._import_rest)

    def torch(self) -> None:
        """Wait until torch can be used."""
        self._torch.result()

    def learner(self, base: Path, lora: LoraSettings, training: Training) -> Callable[[], Learner]:
        """Begin to make the learner; calling the result waits for it."""
        future: Future[Learner] = self._threads.submit(self._make, base, lora, training)
        return future.result

    def _import_torch(self) -> None:
        with self._watch.measure("setup: import torch"):
            import torch

            torch.set_num_threads(1)

    def _import_rest(self) -> None:
        with self._watch.measure("setup: import transformers"):
            import training_job.trainers.local.learner  # noqa: F401 - for what importing it does

    def _make(self, base: Path, lora: LoraSettings, training: Training) -> Learner:
        from training_job.trainers.local.learner import Learner

        with self._watch.measure("setup: make the policy"):
            return Learner(base, lora, training)
