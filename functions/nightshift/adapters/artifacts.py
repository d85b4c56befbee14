"""The bucket: documents of the contract, and published objects."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from botocore.exceptions import ClientError
from pydantic import ValidationError

from nightshift.contract.base import Document
from nightshift.contract.control import Control
from nightshift.contract.evals import EvalSummary
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, Progress
from nightshift.contract.layout import RunKeys
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import PermanentError, bounded

logger = logging.getLogger(__name__)

MAX_DOCUMENT = 1_000_000
MAX_MANIFEST = 64_000_000
MAX_OBJECTS = 100_000
CHUNK = 1 << 20
PARALLEL = 8
JSON = "application/json"
D = TypeVar("D", bound=Document)


class S3Artifacts:
    """Implements ``steps.ports.Artifacts``. ``client`` is a boto3 S3 client (thread-safe)."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._s3, self._bucket = client, bucket

    def spec(self, run_id: str) -> RunSpec:
        key = RunKeys(run_id).spec
        body = self.read_small(key)
        if body is None:
            raise PermanentError(
                run_id, f"s3://{self._bucket}/{key} is missing", "Start the run again under another id."
            )
        try:
            return RunSpec.model_validate_json(body)
        except ValidationError as error:
            raise PermanentError(
                run_id, f"{key} is no run spec: {error}", "Start the run again under another id."
            ) from error

    def put_spec(self, spec: RunSpec) -> None:
        self._put(RunKeys(spec.run_id).spec, spec.model_dump_json(indent=1).encode(), JSON)

    def progress(self, run_id: str, attempt: int) -> Progress | None:
        found = self._document(Progress, RunKeys(run_id).progress(attempt))
        return found if found is not None and (found.run_id, found.attempt) == (run_id, attempt) else None

    def outcome(self, run_id: str, attempt: int) -> Outcome | None:
        found = self._document(Outcome, RunKeys(run_id).outcome(attempt))
        return found if found is not None and (found.run_id, found.attempt) == (run_id, attempt) else None

    def summaries(self, run_id: str) -> Sequence[EvalSummary]:
        keys = [k for k in self._keys(RunKeys(run_id).evals) if k.endswith(".json")]
        return self._documents(EvalSummary, keys)

    def exports(self, run_id: str) -> Sequence[ExportRecord]:
        keys = [k for k in self._keys(RunKeys(run_id).exports) if k.endswith("/export.json")]
        return self._documents(ExportRecord, keys)

    def control(self, control: Control) -> None:
        self._put(RunKeys(control.run_id).control, control.to_json().encode(), JSON)

    def put(self, run_id: str, key: str, body: bytes, content_type: str) -> FileDigest:
        self._put(key, body, content_type)
        return FileDigest(sha256=hashlib.sha256(body).hexdigest(), size=len(body))

    def copy_export(self, record: ExportRecord, folder: str) -> dict[str, FileDigest]:
        source = RunKeys(record.run_id).export(record.attempt, record.step)
        for name in record.files:
            # boto3's managed copy: multipart where the object is too large for one call.
            self._s3.copy({"Bucket": self._bucket, "Key": f"{source}{name}"}, self._bucket, f"{folder}{name}")
        return {f"{folder}{name}": digest for name, digest in record.files.items()}

    def digests(self, run_id: str) -> dict[str, FileDigest]:
        names, prefix = RunKeys(run_id), RunKeys(run_id).prefix
        sizes = self._sizes(prefix)
        declared = {
            f"{names.export(e.attempt, e.step)}{name}": digest
            for e in self.exports(run_id)
            for name, digest in e.files.items()
        }
        known = {k: d for k, d in declared.items() if sizes.get(k) == d.size}
        keys = [k for k in sizes if k not in known]
        with ThreadPoolExecutor(PARALLEL) as pool:
            known |= zip(keys, pool.map(self._digest, keys), strict=True)
        return {k.removeprefix(prefix): known[k] for k in sizes}

    def manifest(self, run_id: str) -> bytes | None:
        return self.read_small(RunKeys(run_id).manifest, MAX_MANIFEST)

    def read_small(self, key: str, limit: int = MAX_DOCUMENT) -> bytes | None:
        try:
            answer = self._s3.get_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        body: bytes = answer["Body"].read(limit + 1)
        if len(body) > limit:
            logger.error("%s is larger than %d bytes and was not read", key, limit)
            return None
        return body

    def links(self, run_id: str) -> dict[str, str]:
        keys, root = RunKeys(run_id), f"s3://{self._bucket}/"
        return {
            "Report": f"{root}{keys.report}",
            "Best adapter": f"{root}{keys.adapter('best')}",
            "Manifest": f"{root}{keys.manifest}",
        }

    def _put(self, key: str, body: bytes, content_type: str) -> None:
        self._s3.put_object(
            Bucket=self._bucket, Key=key, Body=body, ContentType=content_type, ChecksumAlgorithm="SHA256"
        )

    def _document(self, kind: type[D], key: str) -> D | None:
        body = self.read_small(key)
        if body is None:
            return None
        try:
            return kind.from_json(body)
        except ValidationError as error:
            logger.error("%s is not a %s and is not believed: %s", key, kind.__name__, bounded(error, 500))
            return None

    def _documents(self, kind: type[D], keys: Sequence[str]) -> list[D]:
        with ThreadPoolExecutor(PARALLEL) as pool:
            return [d for d in pool.map(lambda key: self._document(kind, key), keys) if d is not None]

    def _digest(self, key: str) -> FileDigest:
        body, sha, size = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"], hashlib.sha256(), 0
        for chunk in body.iter_chunks(CHUNK):
            sha.update(chunk)
            size += len(chunk)
        return FileDigest(sha256=sha.hexdigest(), size=size)

    def _keys(self, prefix: str) -> list[str]:
        return list(self._sizes(prefix))

    def _sizes(self, prefix: str) -> dict[str, int]:
        """Every object below the prefix, with its size in bytes. Raises PermanentError where there are too many."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        found: dict[str, int] = {}
        for page in pages:
            found |= {item["Key"]: item["Size"] for item in page.get("Contents", [])}
            if len(found) > MAX_OBJECTS:
                raise PermanentError(
                    prefix, f"more than {MAX_OBJECTS} objects", "Raise training.eval_interval or hf_save_interval."
                )
        return found
