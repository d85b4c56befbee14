"""A run's objects onto this computer: each is written whole or not at all, and checked against what the manifest promises."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

import urllib3

from cli.exits import CliError, Exit
from nightshift.contract.api import Artifact

CHUNK = 1 << 20
TIMEOUT = urllib3.Timeout(connect=5.0, read=60.0)


def target(folder: Path, key: str) -> Path:
    """Where an object goes. Raises CliError (70) for a key that would lead out of the folder."""
    parts = PurePosixPath(key).parts
    if not parts or key.startswith("/") or any(part in ("..", ".") or "\\" in part for part in parts):
        raise CliError(Exit.SOFTWARE, f"{key!r} is no name of a file below {folder}")
    return folder.joinpath(*parts)


def download(artifact: Artifact, folder: Path, pool: urllib3.PoolManager) -> bool:
    """False where the same bytes are there already. Raises CliError: 69 where the store does not give them, 65 where they are
    not what was promised, 66 where they cannot be written."""
    path = target(folder, artifact.key)
    if artifact.sha256 is not None and path.is_file() and path.stat().st_size == artifact.size:
        with path.open("rb") as there:
            if hashlib.file_digest(there, "sha256").hexdigest() == artifact.sha256:
                return False
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = _fetched(artifact, part, pool)
        if artifact.sha256 not in (None, digest):
            raise CliError(Exit.BAD_DATA, f"{artifact.key} has other bytes than the manifest promises")
        part.replace(path)
    except OSError as error:
        raise CliError(Exit.NO_INPUT, f"{path} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return True


def fetch_small(artifact: Artifact, pool: urllib3.PoolManager, limit: int) -> bytes | None:
    """An object's bytes; None for one that is larger than ``limit``. Raises CliError: 69 where the store does not give them, 65
    where they are not what was promised."""
    if artifact.size > limit:
        return None
    try:
        answer = pool.request("GET", artifact.url, timeout=TIMEOUT, redirect=False, retries=2)
    except urllib3.exceptions.HTTPError as error:
        raise CliError(
            Exit.UNAVAILABLE, f"{artifact.key}: the store does not answer ({type(error).__name__})"
        ) from error
    if answer.status != 200:
        raise CliError(Exit.UNAVAILABLE, f"{artifact.key}: the store answered {answer.status}; ask for the list again")
    if artifact.sha256 not in (None, hashlib.sha256(answer.data).hexdigest()):
        raise CliError(Exit.BAD_DATA, f"{artifact.key} has other bytes than the manifest promises")
    return answer.data


def _fetched(artifact: Artifact, part: Path, pool: urllib3.PoolManager) -> str:
    """SHA-256 of what was written. The address is in no error: whoever has it may read the object."""
    sha, size = hashlib.sha256(), 0
    try:
        answer = pool.request("GET", artifact.url, preload_content=False, timeout=TIMEOUT, redirect=False, retries=2)
        if answer.status != 200:
            raise CliError(
                Exit.UNAVAILABLE, f"{artifact.key}: the store answered {answer.status}; ask for the list again"
            )
        with part.open("wb") as file:
            for chunk in answer.stream(CHUNK):
                sha.update(chunk)
                size += len(chunk)
                file.write(chunk)
        answer.release_conn()
    except urllib3.exceptions.HTTPError as error:
        raise CliError(
            Exit.UNAVAILABLE, f"{artifact.key}: the store does not answer ({type(error).__name__})"
        ) from error
    if size != artifact.size:
        raise CliError(Exit.BAD_DATA, f"{artifact.key} has {size} bytes and not {artifact.size}: it changed meanwhile")
    return sha.hexdigest()
