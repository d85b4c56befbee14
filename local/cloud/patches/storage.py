"""Fault: S3's events reach EventBridge with ``eTag`` for ``etag``, a version id on buckets without versions, a fixed
sequencer, reasons that AWS does not use, on every event bus, and with every error swallowed.

Fault: a multipart upload is announced three times: as a put, as a change of tags, and as what it is.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from typing import Any, cast

from moto.events.models import events_backends
from moto.s3 import notifications
from moto.s3.models import S3Backend

from local.cloud.patches.swap import swap

REASONS = {
    "s3:ObjectCreated:Put": "PutObject",
    "s3:ObjectCreated:Post": "POST Object",
    "s3:ObjectCreated:Copy": "CopyObject",
    "s3:ObjectCreated:CompleteMultipartUpload": "CompleteMultipartUpload",
    "s3:ObjectRemoved:Delete": "DeleteObject",
    "s3:ObjectRemoved:DeleteMarkerCreated": "DeleteObject",
}
_SEQUENCE = itertools.count()
_ANNOUNCED = threading.local()


def install() -> None:
    _filter_announcements()
    _announce_once("copy_object", "s3:ObjectCreated:Copy")
    _announce_once("complete_multipart_upload", "s3:ObjectCreated:CompleteMultipartUpload")
    swap(notifications, "_send_event_bridge_message", _send)


def _announce_once(name: str, event: str) -> None:
    """While this method of S3's backend runs, only its own event goes out."""
    original = getattr(S3Backend, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _ANNOUNCED.only = event
        try:
            return original(self, *args, **kwargs)
        finally:
            _ANNOUNCED.only = None

    swap(S3Backend, name, method)


def _filter_announcements() -> None:
    original = notifications.send_event

    def send_event(account_id: str, event_name: Any, bucket: Any, key: Any) -> None:
        if getattr(_ANNOUNCED, "only", None) in (None, event_name.value):
            original(account_id, event_name, bucket, key)

    swap(notifications, "send_event", send_event)


def _send(account_id: str, bucket: Any, event_name: Any, key: Any) -> None:
    event = _event(account_id, bucket, str(getattr(event_name, "value", event_name)), key)
    for rule in list(events_backends[account_id][bucket.region_name].event_buses["default"].rules.values()):
        rule.send_to_targets(cast(Any, event), transform_input=False)


def _event(account_id: str, bucket: Any, event_name: str, key: Any) -> dict[str, Any]:
    item: dict[str, Any] = {"key": key.name, "sequencer": f"{time.time_ns():016X}{next(_SEQUENCE) % 256:02X}"}
    if "ObjectRemoved" not in event_name:
        item |= {"size": key.size, "etag": key.etag.replace('"', "")}
    if bucket.is_versioned:
        item["version-id"] = key.version_id
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": notifications._detail_type(event_name),
        "source": "aws.s3",
        "account": account_id,
        "time": time.time(),
        "region": bucket.region_name,
        "resources": [bucket.arn],
        "detail": {
            "version": "0",
            "bucket": {"name": bucket.name},
            "object": item,
            "request-id": uuid.uuid4().hex[:16].upper(),
            "requester": account_id,
            "source-ip-address": "127.0.0.1",
            "reason": REASONS.get(event_name, event_name.split(":")[1]),
        },
    }
