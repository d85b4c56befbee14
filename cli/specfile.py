"""Reading a run spec from YAML or JSON, and naming what is wrong with it by field."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cli.exits import CliError, Exit
from nightshift.contract.spec import RunSpec, batch_size_problems

MAX_BYTES = 256 * 1024


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """JSON is YAML. Unlike YAML's own rule, a key that is given twice is an error: the second would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def read_mapping(path: Path) -> dict[str, Any]:
    """The file's mapping. Raises CliError: 66 where it cannot be read, 65 where it is not a YAML or JSON mapping."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CliError(Exit.NO_INPUT, f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise CliError(Exit.BAD_DATA, f"{path} is larger than {MAX_BYTES // 1024} KiB: not a run spec")
    try:
        # _Loader is a SafeLoader: it makes plain values only.
        data = yaml.load(raw, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CliError(Exit.BAD_DATA, f"{path} is neither YAML nor JSON", (" ".join(str(error).split()),)) from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise CliError(Exit.BAD_DATA, f"{path} is not a run spec: its top must be a mapping with names as keys")
    return data


def read_spec(path: Path) -> RunSpec:
    """A valid spec. Raises CliError (65) with one line ``field: problem`` for each thing to correct."""
    data = read_mapping(path)
    try:
        spec = RunSpec.model_validate(data)
    except ValidationError as error:
        raise _refusal(path, [(field_path(data, one["loc"]), one["msg"]) for one in error.errors()]) from error
    problems = batch_size_problems(spec.training, spec.topology.gpus)
    if problems:
        raise _refusal(path, list(problems))
    return spec


def _refusal(path: Path, problems: list[tuple[str, str]]) -> CliError:
    number = f"{len(problems)} thing{'s' if len(problems) != 1 else ''} to correct"
    return CliError(Exit.BAD_DATA, f"{path}: {number}", tuple(f"{field}: {problem}" for field, problem in problems))


def field_path(data: object, location: tuple[int | str, ...]) -> str:
    """A pydantic location as a dotted path into ``data``, without the tags of unions, which are no fields.

    ``("task", "code", "git", "sha")`` -> ``task.code.sha``.
    """
    names: list[str] = []
    here = data
    for part in location:
        if isinstance(here, Mapping) and part not in here and part == here.get("kind"):
            continue
        names.append(str(part))
        if isinstance(here, Mapping):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            here = None
    return ".".join(names) or "(the whole spec)"
