"""The controller's own publication of a proof's run: ``python bench/gpu/publish.py BUCKET RUN_ID --begun T...``.

There is no state machine on the GPU machine: the run record that ``steps.publish`` reads is made here from what the attempts
left, in the store of the fake world. Everything else is the deployed code, against the endpoint in AWS_ENDPOINT_URL."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from time import sleep
from typing import Any, cast

import boto3

from nightshift.adapters.artifacts import S3Artifacts
from nightshift.contract import RunKeys
from nightshift.contract.spec import spec_digest
from nightshift.core.causes import EndCause
from nightshift.core.run import Attempt, Run, RunState
from nightshift.steps.ports import Ports
from nightshift.steps.publish import publish, verify
from nightshift.steps.requests import StepRequest
from tests.fakeworld.store import MemoryRunStore


def attempts_of(artifacts: S3Artifacts, run_id: str, begun: list[datetime], gpus: int) -> list[Attempt]:
    """The last one ended by itself; those before it were killed when the next began."""
    made = []
    for n, at in enumerate(begun, 1):
        outcome, progress = artifacts.outcome(run_id, n), artifacts.progress(run_id, n)
        said = outcome or progress
        made.append(
            Attempt(
                n=n, submission_id=f"{run_id}-a{n}", started_at=at, gpus=gpus,
                ended_at=outcome.at if outcome else begun[n] if n < len(begun) else None,
                end_cause=EndCause.FINISHED if outcome else EndCause.WORKER_FAILED,
                resumed_step=said.resumed_step if said else None,
                last_saved_step=said.saved_step if said else 0,
                guard=said.guard if said else None,
            )
        )  # fmt: skip
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bucket")
    parser.add_argument("run_id")
    parser.add_argument(
        "--begun", type=float, nargs="+", required=True, help="when each attempt began, seconds since 1970"
    )
    given = parser.parse_args()
    artifacts, store = S3Artifacts(boto3.client("s3"), given.bucket), MemoryRunStore()
    spec = artifacts.spec(given.run_id)
    begun = [datetime.fromtimestamp(one, UTC) for one in given.begun]
    run, _ = store.create(
        Run(
            run_id=given.run_id, k=1, state=RunState.PUBLISHING, verdict=RunState.SUCCEEDED, owner="bench/gpu", pool=spec.pool,
            spec_sha256=spec_digest(spec), image=spec.image, hyperpod_cluster="none", namespace="none", raycluster=given.run_id,
            created_at=begun[0], total_steps=spec.training.total_steps, attempt=len(begun),
        )
    )  # fmt: skip
    for attempt in attempts_of(artifacts, given.run_id, begun, spec.topology.gpus):
        store.items[run.run_id].attempts[attempt.n] = attempt
    nothing = cast(Any, None)
    ports = Ports(
        runs=store, clusters=nothing, jobs=nothing, hyperpod=nothing, artifacts=artifacts, stages=nothing, executions=nothing,
        now=lambda: datetime.now(UTC), sleep=sleep, remaining=lambda: 600.0,
    )  # fmt: skip
    request = StepRequest(run_id=run.run_id, k=1, step="publish")
    publish(ports, request)
    verify(ports, request)
    for line in store.audit_trail(run.run_id, 10):
        print(f"{line.what}: {line.detail}")
    print(f"manifest: s3://{given.bucket}/{RunKeys(run.run_id).manifest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
