"""Fault: S3's events reach EventBridge with ``eTag`` for ``etag``, a version id on buckets without versions, a fixed
sequencer, reasons that AWS does not use, on every event bus, and with every error swallowed.
"""

from __future__ import annotations

import itertools
import time
import uuid
from typing import Any, cast

from moto.events.models import events_backends
from moto.s3 import notifications

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


def install() -> None:
    swap(notifications, "_send_event_bridge_message", _send)


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
