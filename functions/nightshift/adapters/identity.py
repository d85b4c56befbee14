"""One role, one fixed session name: the Ray endpoint's owner is the whole identity, session name included."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.session
from botocore.signers import RequestSigner

TOKEN_SECONDS = 60
"""EKS accepts a presigned URL of at most 15 minutes; this one is used at once."""

SESSION_SECONDS = 900


@dataclass(frozen=True)
class AssumedRole:
    """Credentials of the controller role for one invocation."""

    access_key: str
    secret_key: str
    session_token: str
    region: str

    def session(self) -> boto3.Session:
        return boto3.Session(self.access_key, self.secret_key, self.session_token, region_name=self.region)


def assume_controller_role(role_arn: str, session_name: str, region: str) -> AssumedRole:
    """Raises botocore's ClientError where the trust policy refuses."""
    answer = boto3.client("sts", region_name=region).assume_role(
        RoleArn=role_arn, RoleSessionName=session_name, DurationSeconds=SESSION_SECONDS
    )["Credentials"]
    return AssumedRole(answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"], region)


def eks_token(role: AssumedRole, cluster: str) -> str:
    """A bearer token for the EKS API: a presigned GetCallerIdentity URL with the cluster's name in a signed header.

    Signing is local. Mint one for each invocation: EKS refuses one that is older than 15 minutes.
    """
    session: Any = botocore.session.get_session()
    session.set_credentials(role.access_key, role.secret_key, role.session_token)
    service_id = session.get_service_model("sts").service_id
    signer = RequestSigner(
        service_id, role.region, "sts", "v4", session.get_credentials(), session.get_component("event_emitter")
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"https://sts.{role.region}.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster},
            "context": {},
        },
        operation_name="",
        expires_in=TOKEN_SECONDS,
        region_name=role.region,
    )
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
