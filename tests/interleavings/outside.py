"""The outside of a step, where every call to the table and to Step Functions, and every look at the job, is a point at which
the actor can be stopped. What never changes here answers at once: cluster, bucket, messages, clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from nightshift.adapters.run_store import DynamoRunStore
from nightshift.core.observation import ClusterView, JobState, JobView, RayView
from nightshift.steps.ports import Ports
from tests.builders import NOW, cluster, ray, spec
from tests.interleavings.replay import Ask

SPEC = spec()
CLUSTER, RAY = cluster(), ray("i-w1", "i-w2", "i-w3", actors=0)


class AskedTable:
    """A boto3 Table of which each call is asked. Audit lines are for people, and nothing is decided by them."""

    name = "runs"

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.meta = SimpleNamespace(client=SimpleNamespace(transact_write_items=self._transact))

    def _transact(self, **request: Any) -> Any:
        return self._ask("table", "transact_write_items", request)

    def put_item(self, **request: Any) -> Any:
        if request["Item"]["sk"].startswith("AUDIT#"):
            return {}
        return self._ask("table", "put_item", request)

    def __getattr__(self, method: str) -> Any:
        if method not in ("get_item", "update_item", "delete_item", "query"):
            raise AttributeError(method)
        return lambda **request: self._ask("table", method, request)


class Jobs:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def view(self, submission_id: str) -> JobView:
        return JobView(JobState(self._ask("job", submission_id)), "it is gone")

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        self._ask("submit", submission_id)

    def ray(self) -> RayView:
        return RAY

    def __getattr__(self, name: str) -> Any:
        """Stopping the job, and what diagnostics read: nothing is decided by it."""
        return lambda *_, **__: ""


@dataclass(frozen=True)
class Executions:
    ask: Ask

    def answer(self, token: str, payload: dict[str, Any]) -> bool:
        return bool(self.ask("answer", token, payload["decision"], payload["shift"]))

    def start(self, name: str, payload: dict[str, Any]) -> None:
        self.ask("start", name)


class Still:
    """Answers every call in the same way: what a healthy run's bucket, cluster and messages say."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self._answers.get(name)


def ports(ask: Ask) -> Ports:
    jobs: Any = Jobs(ask)
    empty: Sequence[Any] = ()
    artifacts: Any = Still(spec=SPEC, summaries=empty, exports=empty, not_believed=empty)
    clusters: Any = Still(view=CLUSTER, create=False)
    stages: Any = Still(emit=True)
    return Ports(
        runs=DynamoRunStore(AskedTable(ask)),
        clusters=clusters,
        jobs=lambda _: jobs,
        hyperpod=Still(),  # type: ignore[arg-type]
        artifacts=artifacts,
        stages=stages,
        executions=Executions(ask),  # type: ignore[arg-type]
        now=lambda: NOW,
        sleep=lambda _: None,
        remaining=lambda: 5.0,
    )


__all__ = ["AskedTable", "ClusterView", "ports"]
