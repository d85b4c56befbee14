"""From the bytes of a file, or a schedule's clock, to a start request's raw JSON. No I/O, no clock.

YAML and JSON are read by one loader: JSON is YAML. What it makes is plain JSON of bounded size, whatever the file holds: an
alias repeats a part, so a file of some hundred bytes may stand for billions of values; those are counted before any is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import yaml

from nightshift.contract.events import FieldError
from nightshift.contract.redaction import without_secrets
from nightshift.core.errors import bounded

MAX_SPEC_BYTES: Final = 100_000
"""Of a file. Reading YAML of this size takes seconds on a small function."""

MAX_VALUES: Final = 20_000
"""Of a file, with everything that its aliases repeat."""

MAX_PLAIN: Final = 100
"""Characters of a number or a date: parsing a longer one costs more than its size says."""

REQUESTS: Final = "requests/"
"""Where people drop specs. Nothing is ever written there by Nightshift."""

SCHEDULES: Final = "schedules/"
"""Where specs of scheduled starts lie: with ``requests/`` all in which the intake looks for specs."""

ANSWERS: Final = "answers/"
"""What became of a dropped spec, under the same name with ``.json`` at its end."""

ENDINGS: Final = (".yaml", ".yml", ".json")
MAX_START_AGE: Final = timedelta(hours=1)
"""How late a scheduled start may come; after that nobody waits for it any more."""

_PLACEHOLDERS: Final = {"{date}": "%Y%m%d", "{time}": "%H%M"}
_QUOTED = re.compile(r"""('(?:.|<[a-z ]+>)')|'[^']*'|"[^"]*\"""", re.DOTALL)
"""Its first group is what a parser itself puts into quotes: a character, or the name of a token."""
_STRING, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def read_request(body: bytes) -> dict[str, Any] | list[FieldError]:
    """The mapping that a YAML or JSON file holds, or why it holds none. Raises nothing, whatever the bytes are."""
    if len(body) > MAX_SPEC_BYTES:
        return [_wrong(f"its {len(body):,} bytes are more than {MAX_SPEC_BYTES:,}")]
    loader = None
    try:
        loader = yaml.SafeLoader(body)  # makes plain values only
        node = loader.get_single_node()
        if node is None:
            return [_wrong("it is empty")]
        _measure(node, {}, set())
        data = loader.construct_document(node)
        return _plain(data) if isinstance(data, dict) else [_wrong("its top must be a mapping with names as keys")]
    except yaml.YAMLError as error:
        return [_wrong(f"it is neither YAML nor JSON: {_without_content(error)}")]
    except RecursionError:
        return [_wrong("it is nested too deeply")]
    except _Unfit as error:
        return [_wrong(f"it holds a value that cannot be read: {error}")]
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # What SafeLoader's constructors say to a date without a day, a number without digits, a key that is a list.
        return [_wrong(f"it holds a value that cannot be read: {_without_content(error)}")]
    finally:
        if loader is not None:
            loader.dispose()


class _Unfit(ValueError):
    """What this module itself says to a value."""


def _without_content(error: Exception) -> str:
    """What a parser says, and where, but nothing of what the file holds: somebody may have put a password into it."""
    said, where = str(error), ""
    if isinstance(error, yaml.MarkedYAMLError):
        said, mark = error.problem or error.context or "it cannot be read", error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    shown = _QUOTED.sub(lambda found: found[1] or "[...]", said)
    return " ".join(f"{shown}{where}".split())


def _wrong(problem: str) -> FieldError:
    return FieldError(field="file", problem=bounded(without_secrets(problem), 300))


def _measure(node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """How many values a node stands for, aliases counted as often as they are used. Raises _Unfit past the bound."""
    here = id(node)
    if here in known:
        return known[here]
    if here in above:
        raise _Unfit("a part of it contains itself")
    count = 1
    if isinstance(node, yaml.ScalarNode):
        if node.tag != _STRING and len(node.value) > MAX_PLAIN:
            raise _Unfit(f"a number or date of {len(node.value):,} characters")
    else:
        above.add(here)
        parts = node.value
        if isinstance(node, yaml.MappingNode):
            _given_once(node)
            parts = [part for pair in node.value for part in pair]
        for part in parts:
            count += _measure(part, known, above)
            if count > MAX_VALUES:
                raise _Unfit(f"with its aliases it holds more than {MAX_VALUES:,} values")
        above.discard(here)
    known[here] = count
    return count


def _given_once(node: yaml.MappingNode) -> None:
    """A key that is given twice is an error, since the second would win silently. So is ``<<``: of two mappings that are merged
    one into the other PyYAML 6.0.4 may take the wrong value."""
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.tag == _MERGE:
            raise _Unfit(f"<< is not read: write the fields out (line {key.start_mark.line + 1})")
        if (key.tag, key.value) in seen:
            raise _Unfit(f"{key.value[:100]!r} is given twice (line {key.start_mark.line + 1})")
        seen.add((key.tag, key.value))


def _plain(value: Any) -> Any:
    """The same as JSON would hold it: YAML also makes dates, bytes, sets, and keys that are no names."""
    match value:
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(v) for v in value]
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else str(value)
    return str(value)


def request_name(key: str) -> str | None:
    """The name of a dropped file without ``requests/``; None for what is no file there, such as a folder's marker."""
    name = key.removeprefix(REQUESTS)
    return name if name != key and name and not name.endswith("/") else None


def ending_problem(name: str) -> FieldError | None:
    """A file is read only if its name says what it is."""
    return None if name.lower().endswith(ENDINGS) else _wrong(f"its name must end in {', '.join(ENDINGS)}")


def answer_key(name: str) -> str | None:
    """Where the answer to a dropped file goes; None where S3 takes no key of that length."""
    key = f"{ANSWERS}{name}.json"
    return key if len(key.encode()) <= 1_024 else None


def stem(name: str) -> str:
    """What a file is called without its folders and its ending: how a file that cannot be read is shown."""
    last = name.rsplit("/", 1)[-1]
    return next((last[: -len(end)] for end in ENDINGS if last.lower().endswith(end)), last) or "unnamed"


def scheduled_request(raw: Mapping[str, Any], at: datetime) -> dict[str, Any] | list[FieldError]:
    """The request of one scheduled time: ``{date}`` and ``{time}`` of its run_id filled, in UTC. A repeat of the same time is
    the same id, and so the same run; an id without either would be one run for ever, and is refused."""
    template = raw.get("run_id")
    if not isinstance(template, str) or not any(one in template for one in _PLACEHOLDERS):
        return [
            FieldError(
                field="run_id",
                problem="of a scheduled spec it must hold {date} or {time}, as in nightly-{date}: each start is a run of its own",
            )
        ]
    filled = re.sub(r"\{(?:date|time)\}", lambda found: at.astimezone(UTC).strftime(_PLACEHOLDERS[found[0]]), template)
    return {**raw, "run_id": filled}


def too_late(at: datetime, now: datetime) -> FieldError | None:
    """Why a scheduled start is dropped; None where it is in time."""
    if now - at <= MAX_START_AGE:
        return None
    minutes = int((now - at).total_seconds() // 60)
    allowed = int(MAX_START_AGE.total_seconds() // 60)
    problem = (
        f"of {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC, came {minutes:,} minutes late: after {allowed} it is dropped"
    )
    return FieldError(field="scheduled_time", problem=problem)
