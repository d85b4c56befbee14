"""SkyRL's configuration as a table: every key with the type of its value and its default.

``python -m tests.skyrl.keys`` writes ``functions/nightshift/contract/skyrl_keys.py`` from the installed package.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[2] / "functions/nightshift/contract/skyrl_keys.py"
SCALARS = {bool: "bool", int: "int", float: "float", str: "str"}


def leaves(section: type[Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(key, type in one word, default) of each value below a configuration dataclass, in alphabetical order."""
    hints = typing.get_type_hints(section)
    for field in sorted(dataclasses.fields(section), key=lambda one: one.name):
        kind = _less_none(hints[field.name])
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from leaves(kind, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", _word(kind), _default(field)


def _less_none(hint: Any) -> Any:
    """``Optional[X]`` and ``Annotated[X, ...]`` as X."""
    if typing.get_origin(hint) is typing.Annotated:
        return _less_none(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        given = [one for one in typing.get_args(hint) if one is not type(None)]
        return _less_none(given[0]) if len(given) == 1 else Any
    return hint


def _word(kind: Any) -> str:
    plain = typing.get_origin(kind) or kind
    if isinstance(plain, type) and issubclass(plain, Enum):
        return "str"
    return SCALARS.get(plain) or {list: "list", tuple: "list", dict: "dict"}.get(plain, "any")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory()).replace(str(Path.home()), "~")
    return "none: it must be set"


def table_text(version: str, section: type[Any]) -> str:
    """The module that the contract imports."""
    rows = "".join(f'    "{key}": "{kind}",\n' for key, kind, _ in leaves(section))
    return (
        f'"""Every key of SkyRL {version}\'s configuration and the type of its value: what an override may name.\n\n'
        "Written by ``python -m tests.skyrl.keys`` from the package; ``make test-skyrl`` compares.\n"
        f'"""\n\nfrom __future__ import annotations\n\nfrom typing import Final\n\nSKYRL_VERSION: Final = "{version}"\n\n'
        f"KEYS: Final[dict[str, str]] = {{\n{rows}}}\n"
        '"""Dotted key -> bool, int, float, str, list, dict (free below it), or any."""\n'
    )


if __name__ == "__main__":
    from importlib.metadata import version

    from skyrl.train.config import SkyRLTrainConfig

    import tests.skyrl.older_python  # noqa: F401

    TABLE.write_text(table_text(version("skyrl"), SkyRLTrainConfig))
    print(f"written: {TABLE.name}")
