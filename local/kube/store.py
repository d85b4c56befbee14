"""Objects of the Kubernetes API in memory, with the resource versions that clients rely on."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from local.kube.errors import AlreadyExists, Json, NotFound

MAX_EVENTS = 1_000


@dataclass(frozen=True)
class Kind:
    """One resource type. ``namespaced`` objects live in a namespace, others have the namespace ``""``."""

    name: str
    plural: str
    group: str
    version: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """``rayclusters.ray.io``, as error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RAY_CLUSTER = Kind("RayCluster", "rayclusters", "ray.io", "v1")
POD = Kind("Pod", "pods", "", "v1")
NODE = Kind("Node", "nodes", "", "v1", namespaced=False)
EVENT = Kind("Event", "events", "", "v1")
CONNECTION = Kind(
    "RayDashboardConnection", "raydashboardconnections", "connection.access.sagemaker.amazonaws.com", "v1alpha1"
)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in seconds, as Kubernetes writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Objects by kind, namespace and name. Every write gives the object a new resource version and calls ``changed``.

    One event loop owns it: no locking. Readers must not change what they get except through the methods here.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._objects: dict[tuple[str, str, str], Json] = {}
        self._version = 0
        self._clock = clock
        self.changed: Callable[[], None] = lambda: None

    @property
    def version(self) -> str:
        return str(self._version)

    def now(self) -> str:
        return timestamp(self._clock())

    def add(self, kind: Kind, item: Json) -> Json:
        """Store a new object; fills in what the server fills in. Raises :class:`AlreadyExists`."""
        metadata = item["metadata"]
        key = self._key(kind, metadata.get("namespace", ""), metadata["name"])
        if key in self._objects:
            being = "object is being deleted: " if "deletionTimestamp" in self._objects[key]["metadata"] else ""
            raise AlreadyExists(f'{being}{kind.resource} "{metadata["name"]}" already exists')
        item.update(apiVersion=kind.api_version, kind=kind.name)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=self.now(), generation=1)
        self._objects[key] = item
        self._touch(item)
        return item

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Raises :class:`NotFound`."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise NotFound(f'{kind.resource} "{name}" not found')
        return found

    def find(self, kind: Kind, namespace: str, name: str) -> Json | None:
        return self._objects.get(self._key(kind, namespace, name))

    def all(self, kind: Kind, namespace: str | None = None) -> Iterator[Json]:
        """In the order of creation; of all namespaces where ``namespace`` is None."""
        for (plural, place, _), item in list(self._objects.items()):
            if plural == kind.plural and namespace in (None, place):
                yield item

    def touch(self, item: Json) -> None:
        """Say that ``item`` was changed in place."""
        self._touch(item)

    def remove(self, kind: Kind, item: Json) -> None:
        metadata = item["metadata"]
        if self._objects.pop(self._key(kind, metadata.get("namespace", ""), metadata["name"]), None):
            self._version += 1
            self.changed()

    def record(self, about: Json, reason: str, message: str, warning: bool = False, source: str = "local") -> None:
        """A Kubernetes Event about an object. The oldest are dropped beyond ``MAX_EVENTS``."""
        metadata, now = about["metadata"], self.now()
        namespace = metadata.get("namespace", "default")
        self.add(
            EVENT,
            {
                "metadata": {"name": f"{metadata['name'][:200]}.{secrets.token_hex(8)}", "namespace": namespace},
                "involvedObject": {
                    "apiVersion": about["apiVersion"],
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "namespace": metadata.get("namespace", ""),
                    "uid": metadata["uid"],
                },
                "reason": reason,
                "message": message[:1_024],
                "type": "Warning" if warning else "Normal",
                "source": {"component": source},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )
        events = list(self.all(EVENT))
        for old in events[: max(0, len(events) - MAX_EVENTS)]:
            self.remove(EVENT, old)

    def _key(self, kind: Kind, namespace: str, name: str) -> tuple[str, str, str]:
        return kind.plural, namespace if kind.namespaced else "", name

    def _touch(self, item: Json) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.changed()
