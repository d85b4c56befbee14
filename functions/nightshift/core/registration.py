"""What a finished run is in a model registry: one model package of its best adapter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from nightshift.contract.evals import EvalSummary
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest, Provenance
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import bounded
from nightshift.core.run import Run, RunState
from nightshift.core.versions import CONTROLLER_VERSION

ADAPTER = "best"
MAX_VALUE = 256
"""Characters of a metadata value that SageMaker takes."""

_FOREIGN = re.compile(r"[^\w .:/=+\-@]")
"""What a metadata value must not have (letters of any script count as letters)."""


@dataclass(frozen=True)
class Registration:
    """One model package. ``description`` begins with words that name the run: by them it is found again."""

    run_id: str
    group: str
    description: str
    model_prefix: str
    """Keys of the adapter's files begin with it: nothing is packed."""
    statistics_key: str
    """The fixed set's summary, JSON."""
    metadata: dict[str, str]
    asked_at: datetime
    """No package of the run is older."""


def mark_of(run_id: str) -> str:
    """How the description of the run's package begins."""
    return f"Nightshift run {run_id}: "


def registration(run: Run, manifest: Manifest, provenance: Provenance, spec: RunSpec) -> Registration | None:
    """None where the spec names no group, or the run did not succeed: only a verified success is offered to anybody."""
    if spec.publish is None or run.verdict is not RunState.SUCCEEDED or manifest.best is None:
        return None
    keys, best = RunKeys(run.run_id), manifest.best
    holdout = manifest.holdout_best or manifest.holdout_final
    facts = {
        "run_id": run.run_id,
        "step": str(best.step),
        **_result("fixed", best),
        **(_result("holdout", holdout) if holdout is not None and holdout.step == best.step else {}),
        "base_model": provenance.model,
        "task": provenance.task_environment,
        "task_code": provenance.task_code,
        "image": provenance.image,
        "spec_sha256": provenance.spec_sha256,
        "manifest": keys.manifest,
        "nightshift": CONTROLLER_VERSION,
    }
    told = f"{best.solved} of {best.of} solved on the fixed set after step {best.step}"
    return Registration(
        run_id=run.run_id,
        group=spec.publish.model_package_group,
        description=bounded(f"{mark_of(run.run_id)}{told}", 1_000),
        model_prefix=keys.adapter(ADAPTER),
        statistics_key=keys.eval_summary(best.attempt, best.step, best.eval_set),
        metadata={f"nightshift:{name}": value_of(text) for name, text in facts.items()},
        asked_at=run.created_at,
    )


def _result(name: str, found: EvalSummary) -> dict[str, str]:
    """Share and 95% interval, 0 to 1, and the number of items."""
    return {
        f"{name}_success": f"{found.success:.4f}",
        f"{name}_low": f"{found.low:.4f}",
        f"{name}_high": f"{found.high:.4f}",
        f"{name}_items": str(found.of),
    }


def value_of(text: str) -> str:
    """A metadata value that SageMaker takes: 1 to 256 of its characters, a dash for any other."""
    return _FOREIGN.sub("-", text)[:MAX_VALUE] or "-"
