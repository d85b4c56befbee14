"""Answers of Ray's state API, read. Pure; anything that is not of the expected shape raises ValueError.

Endpoints as of Ray 2.56 (dashboard, ``/api/v0/...``). Ray's client has no public call for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from nightshift.core.errors import bounded
from nightshift.core.observation import JobState, JobView, RayView

Row = Mapping[str, Any]
INTERNAL_ACTOR = "_ray_internal_job_actor"
"""Begins the name of the actor that supervises a job; it holds no GPUs and outlives the job by moments."""

MAX_ROWS = 10_000
"""The most that the state API gives at once."""

MAX_FIELD = 500


@contextmanager
def _shape(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{what} has another shape than expected: {error!r}") from error


def listing(kind: str, limit: int = MAX_ROWS, detail: bool = False, **only: str) -> str:
    """Path of a listing; ``only`` are filters: ``state="!DEAD"`` or ``is_alive="true"``."""
    query: list[tuple[str, str | int]] = [("limit", limit)]
    if detail:
        query.append(("detail", 1))
    for key, value in only.items():
        sign = "!=" if value.startswith("!") else "="
        query += [("filter_keys", key), ("filter_predicates", sign), ("filter_values", value.lstrip("!"))]
    return f"/api/v0/{kind}?{urlencode(query)}"


NODES = listing("nodes", limit=1_000)
LIVE_ACTORS = listing("actors", state="!DEAD")
DEAD_ACTORS = listing("actors", state="DEAD")
PLACEMENT_GROUPS = listing("placement_groups", state="!REMOVED")
LIVE_WORKERS = listing("workers", detail=True, is_alive="true")


def rows(answer: Any) -> Sequence[Row]:
    """The rows of a listing."""
    with _shape("the listing"):
        found = answer["data"]["result"]["result"]
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise TypeError("no list of objects")
        return found


def is_alive(node: Row) -> bool:
    return bool(node.get("state") == "ALIVE")


def is_internal(actor: Row) -> bool:
    return str(actor.get("name") or "").startswith(INTERNAL_ACTOR)


def living(kind: str, workers: Sequence[Row], nodes: Sequence[Row]) -> list[Row]:
    """Processes of that kind (WORKER, DRIVER) on nodes that live: of a dead node's processes Ray says for ever that they
    do."""
    alive = {n.get("node_id") for n in nodes if is_alive(n)}
    return [w for w in workers if w.get("worker_type") == kind and w.get("node_id") in alive]


def is_doubtful(nodes: Sequence[Row], live: Sequence[Row], groups: Sequence[Row], workers: Sequence[Row]) -> bool:
    """Whether only a living process may still hold a GPU. A cluster's dead actors, thousands after weeks, are looked at
    only then."""
    busy = groups or any(not is_internal(a) for a in live)
    return not busy and bool(living("WORKER", workers, nodes))


def ray_view(
    nodes: Sequence[Row], live: Sequence[Row], groups: Sequence[Row], workers: Sequence[Row], dead: Sequence[Row]
) -> RayView:
    """What Ray lists; ``dead`` are actors that Ray calls dead."""
    with _shape("Ray's state"):
        address = {n["node_id"]: n["node_ip"] for n in nodes if is_alive(n)}
        gone = {(a["node_id"], a["pid"]) for a in dead if not is_internal(a)}
        dying = [w for w in living("WORKER", workers, nodes) if (w["node_id"], w["pid"]) in gone]
        return RayView(
            gpus_by_ip={n["node_ip"]: int(n["resources_total"].get("GPU", 0)) for n in nodes if is_alive(n)},
            live_actors=sum(not is_internal(a) for a in live),
            placement_groups=len(groups),
            dying_by_ip=Counter(address[w["node_id"]] for w in dying),
            drivers=frozenset((w["ip"], int(w["pid"])) for w in living("DRIVER", workers, nodes)),
        )


def job_view(details: Any) -> JobView:
    """Of Ray's JobDetails as JSON; the message is as Ray has it, with the log's end that Ray appends."""
    with _shape("the job's details"):
        driver = details.get("driver_info") or {}
        address, pid = driver.get("node_ip_address"), str(driver.get("pid") or "")
        known = (str(address), int(pid)) if address and pid.isdigit() else None
        message = details.get("message") or ""
        return JobView(JobState(str(details["status"]).lower()), str(message), known)


def record(row: Row) -> dict[str, Any]:
    """A row for a person: without runtime environments, which may hold secrets, and with every text bounded."""
    return {k: bounded(v, MAX_FIELD) if isinstance(v, str) else v for k, v in row.items() if "runtime_env" not in k}


def head_node(nodes: Iterable[Row]) -> str:
    """Id of the living head node."""
    with _shape("the list of nodes"):
        heads = [str(n["node_id"]) for n in nodes if n.get("is_head_node") and is_alive(n)]
    if not heads:
        raise ValueError("Ray lists no living head node")
    return heads[0]


def log_file(node_id: str, name: str, lines: int, seconds: int) -> str:
    """Path of the last lines of one file of a node's log folder."""
    return "/api/v0/logs/file?" + urlencode(
        {"node_id": node_id, "filename": name, "lines": lines, "timeout": max(1, seconds)}
    )


def log_names(answer: Any) -> Sequence[str]:
    """Names of a node's log files."""
    with _shape("the list of log files"):
        return [str(name) for names in answer["data"]["result"].values() for name in names]


def telling_logs(names: Sequence[str], limit: int) -> list[str]:
    """Of a node's log files those that tell of faults, the most telling first: the raylet's and the GCS's own, then what
    workers wrote to stderr."""
    own = ("raylet.err", "raylet.out", "gcs_server.err", "gcs_server.out", "ray_process_exit.log")
    workers = sorted(n for n in names if n.startswith("worker-") and n.endswith(".err"))
    return [*(n for n in own if n in names), *workers][:limit]
