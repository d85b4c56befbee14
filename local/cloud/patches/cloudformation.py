"""Fault: state machines that CloudFormation creates go to the backend that does not execute anything.

Fault: CloudFormation drops a bucket's NotificationConfiguration, so that EventBridge stays off.
"""

from __future__ import annotations

from typing import Any

import moto.stepfunctions.models as machines
from moto.s3.models import FakeBucket
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from local.cloud.patches.swap import swap


def install() -> None:
    swap(machines, "stepfunctions_backends", stepfunctions_parser_backends)
    _keep_event_bridge("create_from_cloudformation_json", 1)
    _keep_event_bridge("update_from_cloudformation_json", 2)


def _keep_event_bridge(name: str, template_position: int) -> None:
    original = getattr(FakeBucket, name).__func__

    def build(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bucket = original(cls, *args, **kwargs)
        template = kwargs.get("cloudformation_json") or args[template_position]
        if _wants_event_bridge(template.get("Properties", {})):
            bucket.set_notification_configuration({"EventBridgeConfiguration": {}})
        return bucket

    setattr(FakeBucket, name, classmethod(build))


def _wants_event_bridge(properties: dict[str, Any]) -> bool:
    wanted = properties.get("NotificationConfiguration", {}).get("EventBridgeConfiguration")
    return wanted is not None and str(wanted.get("EventBridgeEnabled", True)).lower() == "true"
