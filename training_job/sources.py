"""Where a base model comes from: the image, the task's wheel, the shared mount, S3 or the Hugging Face hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from nightshift.contract import Phase, SharedPaths
from nightshift.contract.job import Download
from training_job.clock import now
from training_job.errors import BadConfiguration, StorageUnreachable
from training_job.pins import Pin, Pins
from training_job.plug import OpenStore, shared_path
from training_job.staging import Origin, Owner, Tell, Wanted, digest_of_origin, stage, take_staged
from training_job.store import ObjectStore, Stored, reading_s3, split_uri

if TYPE_CHECKING:
    from training_job.job import Job

_FIELD: Final = "model.source"
_CONFIG: Final = "config.json"
_NOT_NEEDED: Final = ("*.msgpack", "*.h5", "*.ot", "*.gguf", "*.onnx", "*.tflite", "original/*", ".git*", "onnx/*")
"""Of a repository on the hub: the same weights for other libraries."""
_NETWORK: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
"""Libraries under the hub's; which of them it is depends on its version."""
_TORCH: Final = ("*.bin", "*.pt", "*.pth")
"""Not needed where there are safetensors."""


@dataclass(frozen=True)
class FoundModel:
    """``address`` is the spec's, with a commit in place of a symbolic revision."""

    folder: Path
    address: str


def base_model(
    source: str,
    paths: SharedPaths,
    open_store: OpenStore,
    owner: Owner | None = None,
    tell: Tell = lambda done, total: None,
) -> FoundModel:
    """The folder of a base model, staged once for all runs under ``/shared/models/<digest>`` where it must be fetched.

    A run keeps to what its first attempt found: a branch of the hub that has moved on does not change its base model, and a
    prefix in S3 with other files is refused. Without an owner nothing is remembered.

    Raises BadConfiguration (``model.source``) where it does not exist or is no model, StorageFull where it does not fit, and
    StorageUnreachable where it cannot be fetched.
    """
    scheme = source.partition("://")[0]
    if scheme in ("s3", "hf"):
        return _staged(source, paths, open_store, owner, tell)
    return FoundModel(local_model(source, paths), source)


def local_model(source: str, paths: SharedPaths) -> Path:
    """The folder of a base model that is on this computer already: of a package, or of the shared mount. Asks no network.
    Raises BadConfiguration where it is not."""
    scheme, _, rest = source.partition("://")
    if source.startswith("/shared/"):
        folder = shared_path(source, paths)
    elif scheme == "package":
        folder = _package_folder(rest)
    else:
        raise BadConfiguration(_FIELD, f"{source} is not on this computer")
    if not (folder / _CONFIG).is_file():
        raise BadConfiguration(_FIELD, f"{source} has no {_CONFIG}")
    return folder


def find_model(source: str, paths: SharedPaths, open_store: OpenStore) -> Path:
    """The folder alone, for who is no attempt of a run."""
    return base_model(source, paths, open_store).folder


def model_of(job: Job) -> Path:
    """The folder of an attempt's base model. A download is a phase of its own, with its own deadline
    (``budgets.download_minutes``), which the controller holds: it is told of bytes as they arrive."""
    since = now()

    def tell(done: int, total: int) -> None:
        job.reporter.report(phase=Phase.DOWNLOAD, download=Download(done=done, total=total, since=since))

    owner = Owner(job.spec.run_id, job.attempt)
    found = base_model(job.spec.model.source, job.paths, job.open_store, owner, tell)
    if job.reporter.current.phase is Phase.DOWNLOAD:
        job.reporter.report(phase=Phase.SETUP, download=None)
    job.record.model = found.address
    job.say(f"base model: {found.address} in {found.folder}")
    return found.folder


def _package_folder(rest: str) -> Path:
    module, _, folder = rest.partition("/")
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise BadConfiguration(_FIELD, f"the package {module} is neither in the image nor in the task's wheel")
    return Path(next(iter(found.submodule_search_locations))) / folder


def _staged(source: str, paths: SharedPaths, open_store: OpenStore, owner: Owner | None, tell: Tell) -> FoundModel:
    pins = Pins(paths)
    pin = pins.read(_FIELD, source) if owner is not None else None
    inner = _inner_folder(source)
    if pin is not None and take_staged(paths.models / pin.content):
        return FoundModel(paths.models / pin.content / inner, pin.address)
    origin: Origin
    if source.startswith("hf://"):
        origin = HubOrigin.of(pin.address if pin is not None else source)
    else:
        origin = S3Origin.of(source, open_store)
    if _CONFIG not in {one.name.removeprefix(f"{inner}/") for one in origin.files}:
        raise BadConfiguration(_FIELD, f"{source} has no {_CONFIG}: it is no model")
    content = digest_of_origin(origin)
    if pin is not None and pin.content != content:
        raise BadConfiguration(
            _FIELD,
            f"{source} holds other files than when the run began, and what it began with is no longer on /shared: bring those "
            "files back, or start a new run",
        )
    folder = stage(origin, paths.models, owner or Owner(f"nobody-{uuid4().hex[:8]}", 0), tell)
    if owner is not None:
        pins.write(Pin(field=_FIELD, source=source, address=origin.address, content=content))
    return FoundModel(folder / inner, origin.address)


def _inner_folder(source: str) -> str:
    """``folder`` of ``hf://owner/name@revision/folder``; empty for any other."""
    return "/".join(source.split("/")[4:]).strip("/") if source.startswith("hf://") else ""


@dataclass(frozen=True)
class S3Origin:
    """All objects below a prefix."""

    address: str
    store: ObjectStore
    prefix: str
    objects: dict[str, Stored]

    @classmethod
    def of(cls, source: str, open_store: OpenStore) -> S3Origin:
        """Raises BadConfiguration where there is nothing, or a name that leads out of its folder."""
        bucket, prefix = split_uri(source)
        prefix = prefix.rstrip("/") + "/"
        store = open_store(bucket)
        with reading_s3(_FIELD, source):
            listing = store.stored(prefix)
        found = {
            key.removeprefix(prefix): one for key, one in listing.items() if key != prefix and not key.endswith("/")
        }
        if not found:
            raise BadConfiguration(_FIELD, f"there is nothing below {source}")
        for name in found:
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise BadConfiguration(_FIELD, f"{prefix}{name} leads out of its folder")
        return cls(source.rstrip("/"), store, prefix, found)

    @property
    def files(self) -> Sequence[Wanted]:
        return [Wanted(name, one.size, one.tag) for name, one in self.objects.items()]

    def fetch(self, file: Wanted, folder: Path) -> None:
        path = folder / file.name
        part = path.with_name(f"{path.name}.part")
        self.store.download(self.prefix + file.name, part, file.content)
        part.rename(path)


@dataclass(frozen=True)
class HubOrigin:
    """A repository on the Hugging Face hub at a commit, or a folder of it."""

    address: str
    repository: str
    commit: str
    files: Sequence[Wanted]

    @classmethod
    def of(cls, source: str) -> HubOrigin:
        """Resolves the revision. Raises BadConfiguration where it does not exist or may not be read, and
        StorageUnreachable where the hub does not answer."""
        name, _, revision = "/".join(source.removeprefix("hf://").split("/")[:2]).partition("@")
        inner = _inner_folder(source)
        with _asking_the_hub(source) as hub:
            info = hub.HfApi().model_info(name, revision=revision, files_metadata=True, timeout=30)
            found = [_wanted(one) for one in info.siblings or []]
            commit = str(info.sha)
        if inner:
            found = [one for one in found if one.name.startswith(f"{inner}/")]
        tail = f"/{inner}" if inner else ""
        return cls(f"hf://{name}@{commit}{tail}", name, commit, _needed(found, inner))

    def fetch(self, file: Wanted, folder: Path) -> None:
        """``hf_hub_download`` goes on where it was broken off, and renames the file when it is complete."""
        with _asking_the_hub(self.address) as hub:
            path = Path(hub.hf_hub_download(self.repository, file.name, revision=self.commit, local_dir=folder))
        if len(file.content) != 64:  # a small file, by its git blob
            return
        with path.open("rb") as read:
            digest = hashlib.file_digest(read, "sha256").hexdigest()
        if digest != file.content:
            path.unlink()
            raise StorageUnreachable(f"{self.address}: {file.name} arrived with SHA-256 {digest}, not {file.content}")


def _wanted(sibling: Any) -> Wanted:
    content = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
    return Wanted(str(sibling.rfilename), int(sibling.size or 0), str(content))


def _needed(files: Sequence[Wanted], inner: str) -> Sequence[Wanted]:
    def matches(one: Wanted, patterns: Sequence[str]) -> bool:
        return any(fnmatch(one.name.removeprefix(f"{inner}/"), pattern) for pattern in patterns)

    kept = [one for one in files if not matches(one, _NOT_NEEDED)]
    if any(one.name.endswith(".safetensors") for one in kept):
        kept = [one for one in kept if not matches(one, _TORCH)]
    return kept


@contextmanager
def _asking_the_hub(source: str) -> Iterator[Any]:
    """The hub's library; its errors become the job's. Whatever of them is not about this repository is about the network."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import (
            EntryNotFoundError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise BadConfiguration(_FIELD, f"{source} needs huggingface_hub, which this image does not have") from error
    missing: tuple[type[Exception], ...] = (
        RepositoryNotFoundError,
        RevisionNotFoundError,
        EntryNotFoundError,
        HFValidationError,
    )
    try:
        yield hub
    except Exception as error:
        # A LocalEntryNotFoundError is the library's word for "no connection, and nothing kept from before".
        local = isinstance(error, LocalEntryNotFoundError)
        if isinstance(error, missing) and (not local or _refused(error.__cause__)):
            raise BadConfiguration(
                _FIELD, f"{source} does not exist on the hub, or needs a token: name it under secrets as HF_TOKEN"
            ) from error
        if not isinstance(error, HfHubHTTPError | OSError) and type(error).__module__.partition(".")[0] not in _NETWORK:
            raise
        raise StorageUnreachable(
            f"the hub does not give {source}: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def _refused(cause: BaseException | None) -> bool:
    """Whether the hub did answer, and that it will not give this."""
    return getattr(getattr(cause, "response", None), "status_code", None) in (401, 403, 404)
