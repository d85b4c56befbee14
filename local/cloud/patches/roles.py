"""Fault: AssumeRole gives out credentials of a role that does not exist; AWS answers AccessDenied.

Fault: a caller whose key moto does not know is ``user/moto``; here the account's root, as which the demo signs.
"""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import ServiceException
from moto.iam.exceptions import NotFoundException
from moto.iam.models import iam_backends
from moto.sts.models import STSBackend

from local.cloud.patches.swap import swap


class AccessDeniedError(ServiceException):
    code = "AccessDenied"
    status_code = 403


def install() -> None:
    original_assume = STSBackend.assume_role

    def assume_role(self: Any, region_name: str, role_session_name: str, role_arn: str, *args: Any, **kw: Any) -> Any:
        try:
            iam_backends[self.account_id][self.partition].get_role_by_arn(role_arn)
        except NotFoundException:
            raise AccessDeniedError(
                f"User is not authorized to perform: sts:AssumeRole on resource: {role_arn}"
            ) from None
        return original_assume(self, region_name, role_session_name, role_arn, *args, **kw)

    swap(STSBackend, "assume_role", assume_role)

    original_identity = STSBackend.get_caller_identity

    def identity(self: Any, access_key_id: str, region: str) -> tuple[str, str, str]:
        user_id, arn, account = original_identity(self, access_key_id, region)
        if arn.endswith(":user/moto"):
            return account, f"arn:{self.partition}:iam::{account}:root", account
        return user_id, arn, account

    swap(STSBackend, "get_caller_identity", identity)
