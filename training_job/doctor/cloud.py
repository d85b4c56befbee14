"""AWS as a run's pod sees it: the clock, who it is, and the bucket."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from training_job.doctor.finding import Finding, Place, no, not_here, ok
from training_job.errors import CredentialsExpired, StorageUnreachable, classify

PROBES: Final = "runs/_doctor/attempts/"
"""No run can have this name, and the job's role may write there."""

SKEW: Final = 240.0
"""Seconds. AWS refuses a signature that is 300 s off; a minute is left for what the clock does next."""

POD_IDENTITY: Final = "container-role"
"""botocore's name of the source of credentials that the EKS Pod Identity Agent serves."""

NO_BUCKET: Final = "name the bucket with --bucket"


def _client(service: str, **more: Any) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=4, read_timeout=8, retries={"mode": "standard", "total_max_attempts": 2}, **more)
    return boto3.client(service, config=config)


def identity(place: Place, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Whose credentials these are, and where they come from. The account is told, nothing of the credentials is."""
    import boto3

    credentials = boto3.Session().get_credentials()
    if credentials is None:
        fix = "Deploy the stack: it binds the service account to the job's role (EKS Pod Identity Agent needed)."
        yield no("credentials", "none", fix) if place.pod else not_here("credentials", "none, and this is no pod")
        return
    source = credentials.method
    if source == POD_IDENTITY:
        yield ok("credentials", "by Pod Identity")
    elif place.pod:
        fix = "Remove keys from image and pod, and start the pod with the service account ServiceAccountName."
        yield no("credentials", f"from {source}, not by Pod Identity", fix)
    else:
        yield not_here("credentials", f"from {source}; in a pod they come by Pod Identity")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        yield no("region", "neither AWS_REGION nor AWS_DEFAULT_REGION is set", "Set AWS_REGION in the pod.")
        return
    try:
        yield ok("identity", f"{_client('sts').get_caller_identity()['Arn']} in {region}")
    except Exception as error:  # noqa: BLE001 - classified below
        yield _failed("identity", error, "Let the role's trust policy name pods.eks.amazonaws.com.")


def clock(bucket: str | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Iterator[Finding]:
    """This computer's clock against the ``Date`` of an unsigned answer of S3, which comes whatever the clock says."""
    if bucket is None:
        yield not_here("clock", NO_BUCKET)
        return
    from botocore import UNSIGNED
    from botocore.exceptions import ClientError

    client = _client("s3", signature_version=UNSIGNED)
    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:  # refused, but answered
        answer = error.response
    headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
    if "date" not in headers:
        yield not_here("clock", "the answer of S3 has no date")
        return
    skew = (now() - parsedate_to_datetime(headers["date"])).total_seconds()
    told = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} S3"
    if abs(skew) > SKEW:
        yield no(
            "clock", f"{told}: AWS refuses signatures that are 300 s off", "Let the node's chrony use 169.254.169.123."
        )
    else:
        yield ok("clock", told)


def bucket_use(bucket: str | None) -> Iterator[Finding]:
    """An object is written where the job writes its own, read back, and removed."""
    if bucket is None:
        yield not_here("S3", NO_BUCKET)
        return
    client, key = _client("s3"), f"{PROBES}{secrets.token_hex(16)}.txt"
    content = secrets.token_bytes(1_024)
    where = f"s3://{bucket}/{key}"
    region = _region(client, bucket)
    try:
        client.put_object(Bucket=bucket, Key=key, Body=content)
    except Exception as error:  # noqa: BLE001 - classified
        yield _failed("S3 write", error, f"Let the job's role put objects below s3://{bucket}/runs/*/attempts/.")
        return
    yield ok("S3 write", f"{where}{region}")
    try:
        read = client.get_object(Bucket=bucket, Key=key)["Body"].read(len(content) + 1)
    except Exception as error:  # noqa: BLE001 - classified
        yield _failed("S3 read", error, f"Let the job's role get objects of s3://{bucket}/.")
    else:
        same = read == content
        yield ok("S3 read", "the same bytes") if same else no("S3 read", "other bytes", "Find out who writes there.")
    try:
        client.delete_object(Bucket=bucket, Key=key)
        yield ok("S3 delete", "the probe is removed")
    except Exception as error:  # noqa: BLE001 - a run deletes nothing: the probe merely stays
        yield not_here("S3 delete", f"the probe stays, at {where}: {type(error).__name__}")


def _region(client: Any, bucket: str) -> str:
    """`` (eu-west-1)``, as far as S3 tells."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = client.head_bucket(Bucket=bucket)
    except (BotoCoreError, ClientError):
        return ""
    headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
    region = answer.get("BucketRegion") or headers.get("x-amz-bucket-region")
    return f" ({region})" if region else ""


def _failed(check: str, error: Exception, fix: str) -> Finding:
    """By what the job itself would call it: silence and expired credentials may pass, a refusal does not."""
    cause = classify(error)
    temporary = isinstance(cause, StorageUnreachable | CredentialsExpired)
    return no(check, f"{type(error).__name__}: {error}", "Try again." if temporary else fix, temporary)
