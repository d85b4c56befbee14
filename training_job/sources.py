"""Where a base model comes from: the image, the task's wheel, the shared mount, S3 or the Hugging Face hub."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from nightshift.contract import SharedPaths
from training_job.errors import BadConfiguration, StorageUnreachable
from training_job.plug import OpenStore, put_in_place, shared_path
from training_job.store import split_uri

_FIELD: Final = "model.source"


def find_model(source: str, paths: SharedPaths, open_store: OpenStore) -> Path:
    """The folder of a base model, staged under ``/shared/models/<digest>`` where it must be fetched.

    Raises BadConfiguration (``model.source``) where it does not exist.
    """
    scheme, _, rest = source.partition("://")
    if source.startswith("/shared/"):
        folder = shared_path(source, paths)
    elif scheme == "package":
        folder = _package_folder(rest)
    elif scheme == "s3":
        folder = _stage_s3(source, paths, open_store)
    elif scheme == "hf":
        folder = _stage_hub(source, rest, paths)
    else:
        raise BadConfiguration(_FIELD, f"{source} is no known kind of address")
    if not (folder / "config.json").is_file():
        raise BadConfiguration(_FIELD, f"{source} has no config.json")
    return folder


def _package_folder(rest: str) -> Path:
    module, _, folder = rest.partition("/")
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise BadConfiguration(_FIELD, f"the package {module} is neither in the image nor in the task's wheel")
    return Path(next(iter(found.submodule_search_locations))) / folder


def _stage_s3(source: str, paths: SharedPaths, open_store: OpenStore) -> Path:
    bucket, prefix = split_uri(source)
    prefix = prefix.rstrip("/") + "/"
    store = open_store(bucket)
    listing = store.listing(prefix)
    if not listing:
        raise BadConfiguration(_FIELD, f"there is nothing below {source}")
    folder = paths.models / hashlib.sha256(repr((source, sorted(listing.items()))).encode()).hexdigest()

    def fill(fresh: Path) -> None:
        for key in listing:
            name = Path(key.removeprefix(prefix))
            if ".." in name.parts:
                raise BadConfiguration(_FIELD, f"{key} leads out of its folder")
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(store.get(key) or b"")

    if not folder.is_dir():
        put_in_place(folder, fill)
    return folder


def _stage_hub(source: str, rest: str, paths: SharedPaths) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError as error:
        raise BadConfiguration(_FIELD, f"{source} needs huggingface_hub, which this image does not have") from error
    name, _, revision = rest.rpartition("@")
    folder = paths.models / hashlib.sha256(source.encode()).hexdigest()
    if folder.is_dir():
        return folder
    try:
        put_in_place(folder, lambda fresh: snapshot_download(name, revision=revision, local_dir=fresh))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise BadConfiguration(_FIELD, f"{source} does not exist on the hub, or needs a token") from error
    except (HfHubHTTPError, ConnectionError) as error:
        raise StorageUnreachable(f"the hub does not give {source}: {error}") from error
    return folder
