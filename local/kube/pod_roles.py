"""EKS Pod Identity: the credentials of the role that a pod's service account is associated with."""

from __future__ import annotations

import json
from typing import Any

import boto3

from local.config import StackConfig
from local.kube.errors import Json

SESSION = "eks-local-pod"
SECONDS = 12 * 3_600
"""EKS renews a pod's credentials in time; here they outlive every run."""


class PodRoles:
    """``environment`` asks STS once for each role."""

    def __init__(self, config: StackConfig) -> None:
        self._config = config
        self._known: dict[str, dict[str, str]] = {}

    def environment(self, pod: Json) -> dict[str, str]:
        """Variables of the AWS SDK for a pod. As the account's root where nobody's permissions are judged; none where the
        service account has no association."""
        if not self._config.enforces_iam:
            return self._config.aws_env
        keyless = {name: value for name, value in self._config.aws_env.items() if "KEY" not in name}
        role = self._role(pod["metadata"]["namespace"], pod["spec"].get("serviceAccountName", "default"))
        return keyless if role is None else keyless | self._credentials(role)

    def _role(self, namespace: str, account: str) -> str | None:
        associations = json.loads((self._config.state_dir / "pod_identities.json").read_text())
        return next((str(role) for *whose, role in associations if whose == [namespace, account]), None)

    def _credentials(self, role: str) -> dict[str, str]:
        if role not in self._known:
            config = self._config
            sts: Any = boto3.client(
                "sts",
                endpoint_url=config.cloud_url,
                region_name=config.region,
                aws_access_key_id=config.aws_env["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=config.aws_env["AWS_SECRET_ACCESS_KEY"],
            )
            given = sts.assume_role(RoleArn=role, RoleSessionName=SESSION, DurationSeconds=SECONDS)["Credentials"]
            self._known[role] = {
                "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
                "AWS_SESSION_TOKEN": given["SessionToken"],
            }
        return self._known[role]
