"""Errors of the Kubernetes API, in the shape that clients parse: a ``Status`` object."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class KubeError(Exception):
    """An answer other than success. ``reason`` is Kubernetes' own word for ``code``."""

    code = 500
    reason = "InternalError"

    def __init__(self, message: str, causes: list[tuple[str, str]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.causes = causes or []

    def status(self) -> Json:
        details: Json = {"causes": [{"field": f, "message": m, "reason": "FieldValueInvalid"} for f, m in self.causes]}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
            **({"details": details} if self.causes else {}),
        }


class BadRequest(KubeError):
    code, reason = 400, "BadRequest"


class Unauthorized(KubeError):
    """EKS tells nobody why; the reason is for this process's own log only."""

    code, reason = 401, "Unauthorized"

    def __init__(self, why: str) -> None:
        super().__init__("Unauthorized")
        self.why = why


class Forbidden(KubeError):
    code, reason = 403, "Forbidden"


class NotFound(KubeError):
    code, reason = 404, "NotFound"


class MethodNotAllowed(KubeError):
    code, reason = 405, "MethodNotAllowed"


class AlreadyExists(KubeError):
    code, reason = 409, "AlreadyExists"


class Conflict(KubeError):
    code, reason = 409, "Conflict"


class UnsupportedMediaType(KubeError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(KubeError):
    code, reason = 422, "Invalid"
