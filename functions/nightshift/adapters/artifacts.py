"""The bucket: documents of the contract, and published objects."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from nightshift.contract.base import Document
from nightshift.contract.control import Control
from nightshift.contract.evals import EvalSet, EvalSummary
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, Progress
from nightshift.contract.layout import RunKeys
from nightshift.contract.reading import MAX_DOCUMENT, Unreadable, read_document
from nightshift.contract.spec import RunSpec
from nightshift.contract.upgrades import spec_file
from nightshift.core.errors import PermanentError, bounded
from nightshift.steps.ports import NotBelieved

logger = logging.getLogger(__name__)

MAX_MANIFEST = 64_000_000
"""Bytes; a manifest lists every object of its run."""
MAX_HASHED = 5_000_000_000
"""Bytes of an object that no record declares and that is read for its digest; a larger one is no part of a publication."""
MAX_OBJECTS = 100_000
MAX_NOTED = 20
CHUNK = 1 << 20
PARALLEL = 8
JSON = "application/json"
FIXED_SUMMARY = re.compile(rf"/a(\d{{1,9}})/{EvalSet.FIXED}-step-(\d{{1,9}})\.json$")
D = TypeVar("D", bound=Document)


class S3Artifacts:
    """Implements ``steps.ports.Artifacts``. ``client`` is a boto3 S3 client (thread-safe).

    An object is believed if it is small enough, is the document that its key promises, and says of itself what its key says:
    its run, attempt, step and set. Any other is as good as missing, and is noted by its name (``not_believed``)."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._s3, self._bucket = client, bucket
        self._noted: dict[str, str] = {}

    def spec(self, run_id: str) -> RunSpec:
        key = RunKeys(run_id).spec
        body = self.read_small(key)
        if body is None:
            raise self._no_spec(run_id, self._noted.get(key, "it is missing"))
        try:
            spec = read_document(RunSpec, body).document
        except Unreadable as problem:
            raise self._no_spec(run_id, str(problem)) from problem
        if spec.run_id != run_id:
            raise self._no_spec(run_id, f"it is the spec of run {spec.run_id}")
        return spec

    def _no_spec(self, run_id: str, why: str) -> PermanentError:
        """Without its spec a run cannot go on, and reading it again cannot help."""
        where = f"s3://{self._bucket}/{RunKeys(run_id).spec}"
        return PermanentError(
            run_id,
            f"{where} cannot be used: {why}",
            "Start the run again under another id; nothing writes there twice.",
        )

    def put_spec(self, spec: RunSpec) -> None:
        self._put(RunKeys(spec.run_id).spec, spec_file(spec), JSON)

    def progress(self, run_id: str, attempt: int) -> Progress | None:
        key = RunKeys(run_id).progress(attempt)
        found = self._document(Progress, key)
        return found if found is not None and self._is_of(found, key, run_id, attempt) else None

    def outcome(self, run_id: str, attempt: int) -> Outcome | None:
        key = RunKeys(run_id).outcome(attempt)
        found = self._document(Outcome, key)
        return found if found is not None and self._is_of(found, key, run_id, attempt) else None

    def _is_of(self, found: Progress | Outcome, key: str, run_id: str, attempt: int) -> bool:
        if (found.run_id, found.attempt) == (run_id, attempt):
            return True
        self._note(key, f"it is of run {found.run_id[:40]}, attempt {found.attempt}")
        return False

    def summaries(self, run_id: str) -> Sequence[EvalSummary]:
        names, sizes = RunKeys(run_id), self._listed(RunKeys(run_id).evals)
        found = self._documents(EvalSummary, [k for k in sizes if k.endswith(".json")])
        return [
            d for k, d in found if self._says_its_key(k, names.eval_summary(d.attempt, d.step, d.eval_set), d, run_id)
        ]

    def curve(self, run_id: str, limit: int) -> Sequence[EvalSummary]:
        names = RunKeys(run_id)
        found = [(k, m) for k in self._listed(names.evals) if (m := FIXED_SUMMARY.search(k)) is not None]
        keys = [k for k, _ in sorted(found, key=lambda f: (int(f[1][1]), int(f[1][2])))]
        every = max(1, -(-len(keys) // limit))
        read = self._documents(EvalSummary, keys[::-1][::every][::-1])
        return [
            d for k, d in read if self._says_its_key(k, names.eval_summary(d.attempt, d.step, d.eval_set), d, run_id)
        ]

    def exports(self, run_id: str) -> Sequence[ExportRecord]:
        """Only those whose files lie beside them, each as large as its record says."""
        names, sizes = RunKeys(run_id), self._listed(RunKeys(run_id).exports)
        found = self._documents(ExportRecord, [k for k in sizes if k.endswith("/export.json")])
        believed = [
            (k, d) for k, d in found if self._says_its_key(k, names.export_record(d.attempt, d.step), d, run_id)
        ]
        return [d for k, d in believed if self._has_its_files(k, d, names.export(d.attempt, d.step), sizes)]

    def _says_its_key(self, key: str, wanted: str, found: EvalSummary | ExportRecord, run_id: str) -> bool:
        if key == wanted and found.run_id == run_id:
            return True
        self._note(key, f"it is of run {found.run_id[:40]}, attempt {found.attempt}, step {found.step}")
        return False

    def _has_its_files(self, key: str, record: ExportRecord, folder: str, sizes: Mapping[str, int]) -> bool:
        wrong = [n for n, d in record.files.items() if not n or sizes.get(f"{folder}{n}") != d.size]
        if record.files and not wrong:
            return True
        self._note(
            key, f"not beside it as it says: {', '.join(n[:60] for n in wrong[:3])}" if wrong else "it has no files"
        )
        return False

    def doubt(self, key: str, why: str) -> None:
        self._note(key, why)

    def not_believed(self) -> Sequence[NotBelieved]:
        return [NotBelieved(key, why) for key, why in sorted(self._noted.items())]

    def _note(self, key: str, why: str) -> None:
        """Logged once in an invocation: a held look reads again every half second."""
        why = bounded(why, 400)
        if self._noted.get(key) == why:
            return
        logger.error("%s is not believed: %s", key, why)
        if len(self._noted) < MAX_NOTED:
            self._noted[key] = why

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
        for key in [k for k, size in sizes.items() if k not in known and size > MAX_HASHED]:
            self._note(key, f"its {sizes.pop(key)} bytes are more than {MAX_HASHED}, and no record declares it")
        keys = [k for k in sizes if k not in known]
        with ThreadPoolExecutor(PARALLEL) as pool:
            known |= zip(keys, pool.map(self._digest, keys), strict=True)
        return {k.removeprefix(prefix): known[k] for k in sizes}

    def manifest(self, run_id: str) -> bytes | None:
        return self.read_small(RunKeys(run_id).manifest, MAX_MANIFEST)

    def read_small(self, key: str, limit: int = MAX_DOCUMENT, version: str = "") -> bytes | None:
        which = {"VersionId": version} if version else {}
        try:
            answer = self._s3.get_object(Bucket=self._bucket, Key=key, **which)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "NoSuchVersion", "404"):
                return None
            raise
        with closing(answer["Body"]) as stream:
            size = int(answer["ContentLength"])
            body: bytes = stream.read(limit + 1) if size <= limit else b""
        if size > limit or len(body) > limit:
            self._note(key, f"its {size} bytes are more than {limit}: it was not read")
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
            reading = read_document(kind, body)
        except Unreadable as problem:
            self._note(key, str(problem))
            return None
        if reading.unknown:
            logger.warning("%s has fields of a newer contract, which are ignored: %s", key, ", ".join(reading.unknown))
        return reading.document

    def _documents(self, kind: type[D], keys: Sequence[str]) -> list[tuple[str, D]]:
        with ThreadPoolExecutor(PARALLEL) as pool:
            found = zip(keys, pool.map(lambda key: self._document(kind, key), keys), strict=True)
            return [(key, d) for key, d in found if d is not None]

    def _digest(self, key: str) -> FileDigest:
        body, sha, size = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"], hashlib.sha256(), 0
        for chunk in body.iter_chunks(CHUNK):
            sha.update(chunk)
            size += len(chunk)
        return FileDigest(sha256=sha.hexdigest(), size=size)

    def _sizes(self, prefix: str) -> dict[str, int]:
        """Every object below the prefix, with its size in bytes. Raises PermanentError where there are too many."""
        found = self._listed(prefix)
        if len(found) > MAX_OBJECTS:
            raise PermanentError(
                prefix, f"more than {MAX_OBJECTS} objects", "Raise training.eval_interval or hf_save_interval."
            )
        return found

    def _listed(self, prefix: str) -> dict[str, int]:
        """The same, and where there are too many only the first ones."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        found: dict[str, int] = {}
        for page in pages:
            found |= {item["Key"]: item["Size"] for item in page.get("Contents", [])}
            if len(found) > MAX_OBJECTS:
                self._note(prefix, f"more than {MAX_OBJECTS} objects: the rest was not looked at")
                break
        return found
