"""Where things live in S3 and on /shared. The only place where these names are put together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nightshift.contract.evals import EvalSet

SHARED_MOUNT = "/shared"
SHARED_ENV = "NIGHTSHIFT_SHARED"
"""Environment variable of the job that names the shared mount; ``/shared`` where it is not set."""

OUTCOME_SUFFIX = "/outcome.json"


def submission_id(run_id: str, attempt: int) -> str:
    """The Ray submission id of an attempt; never reused."""
    return f"{run_id}-a{attempt}"


@dataclass(frozen=True)
class RunKeys:
    """S3 keys of one run. Keys of an eval or export carry the attempt that made them."""

    run_id: str

    @property
    def prefix(self) -> str:
        return f"runs/{self.run_id}/"

    @property
    def spec(self) -> str:
        return f"{self.prefix}spec.json"

    @property
    def parent(self) -> str:
        """Which weights of which run it begins with; only of a run whose spec names a parent."""
        return f"{self.prefix}parent.json"

    @property
    def control(self) -> str:
        return f"{self.prefix}control.json"

    @property
    def manifest(self) -> str:
        return f"{self.prefix}manifest.json"

    @property
    def report(self) -> str:
        return f"{self.prefix}report.html"

    @property
    def curve_png(self) -> str:
        return f"{self.prefix}curve.png"

    @property
    def provenance(self) -> str:
        return f"{self.prefix}provenance.json"

    def attempt(self, attempt: int) -> str:
        return f"{self.prefix}attempts/{attempt}/"

    def progress(self, attempt: int) -> str:
        return f"{self.attempt(attempt)}progress.json"

    def outcome(self, attempt: int) -> str:
        return f"{self.attempt(attempt)}outcome.json"

    def diagnostics(self, attempt: int) -> str:
        return f"{self.attempt(attempt)}diagnostics/"

    @property
    def evals(self) -> str:
        return f"{self.prefix}eval/"

    def eval_rows(self, attempt: int, step: int, eval_set: EvalSet) -> str:
        return f"{self.evals}a{attempt}/{eval_set}-step-{step}.jsonl"

    def eval_summary(self, attempt: int, step: int, eval_set: EvalSet) -> str:
        return f"{self.evals}a{attempt}/{eval_set}-step-{step}.json"

    def eval_flips(self, attempt: int, step: int, eval_set: EvalSet) -> str:
        """What flipped since the eval before, one JSON line an item."""
        return f"{self.evals}a{attempt}/{eval_set}-step-{step}-flips.jsonl"

    @property
    def exports(self) -> str:
        return f"{self.prefix}exports/"

    def export(self, attempt: int, step: int) -> str:
        """Folder of one export as the job uploaded it; its ``export.json`` comes last."""
        return f"{self.exports}a{attempt}/step-{step}/"

    def export_record(self, attempt: int, step: int) -> str:
        return f"{self.export(attempt, step)}export.json"

    def adapter(self, name: str) -> str:
        """Folder of a published adapter (``best``, ``final``), loadable by PEFT and by Ray Serve."""
        return f"{self.prefix}adapters/{name}/"


@dataclass(frozen=True)
class SharedPaths:
    """Folders of one run on the shared filesystem, in SkyRL's layout."""

    run_id: str
    mount: Path = Path(SHARED_MOUNT)

    @property
    def root(self) -> Path:
        return self.mount / "runs" / self.run_id

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def ckpts(self) -> Path:
        return self.root / "ckpts"

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    @property
    def parent(self) -> Path:
        """The parent's adapter, as the run's first attempt found it."""
        return self.root / "parent"

    @property
    def lora_sync(self) -> Path:
        return self.root / "lora_sync"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def tracking(self) -> Path:
        """What trackers keep on disk, and the last step that one of them took."""
        return self.root / "tracking"

    @property
    def models(self) -> Path:
        return self.mount / "models"

    def checkpoint(self, step: int) -> Path:
        return self.ckpts / f"global_step_{step}"

    @property
    def pointer(self) -> Path:
        """``latest_ckpt_global_step.txt``: a bare integer, written last."""
        return self.ckpts / "latest_ckpt_global_step.txt"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    def export(self, step: int) -> Path:
        return self.exports / f"global_step_{step}" / "policy"

    def eval_dump(self, step: int) -> Path:
        return self.exports / "dumped_evals" / f"global_step_{step}_evals"
