"""Addresses of a run's objects for people: presigned, each for one object and a short time."""

from __future__ import annotations

from typing import Any

from nightshift.contract.layout import RunKeys
from nightshift.steps.ports import Page


class S3Downloads:
    """Implements ``steps.ports.Downloads``. ``client`` is a boto3 S3 client that signs with version 4. An address also ends
    with the credentials that signed it, which may be sooner."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._s3, self._bucket = client, bucket

    def page(self, run_id: str, after: str | None, limit: int) -> Page[tuple[str, int]]:
        prefix = RunKeys(run_id).prefix
        begin = {} if after is None else {"StartAfter": f"{prefix}{after}"}
        answer = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=limit, **begin)
        found = tuple((str(o["Key"]).removeprefix(prefix), int(o["Size"])) for o in answer.get("Contents", []))
        return Page(found, found[-1][0] if found and answer.get("IsTruncated") else None)

    def address(self, run_id: str, key: str, seconds: int) -> str:
        """The prefix is put before the key here: no key leads to another run's objects."""
        where = {"Bucket": self._bucket, "Key": f"{RunKeys(run_id).prefix}{key}"}
        return str(self._s3.generate_presigned_url("get_object", Params=where, ExpiresIn=seconds))
