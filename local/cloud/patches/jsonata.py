"""Fault: moto has no JSONata evaluator wired in (the hook is ``None``), and binds variables by writing them as text in
front of the expression, where a string with a quote, a backslash or a line break breaks the expression.

Here an expression is parsed once by jsonata-python and kept; variables are bound as values. One lock guards the kept
expressions, because an expression object of jsonata-python belongs to one evaluation at a time.

Step Functions' own functions ($partition, $range, $hash, $random, $uuid, $parse) are supplied; ``$eval`` is refused as
AWS does. Whatever goes wrong is States.QueryEvaluationError, also a result that is undefined.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import jsonata as engine
from jsonata.utils import Utils
from moto.stepfunctions.parser.api import EvaluationFailedEventDetails, HistoryEventType
from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import FailureEvent, FailureEventException
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import StatesErrorName
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import StatesErrorNameType
from moto.stepfunctions.parser.asl.component.common.string import string_expression
from moto.stepfunctions.parser.asl.eval import states, variable_store
from moto.stepfunctions.parser.asl.eval.event.event_detail import EventDetails
from moto.stepfunctions.parser.asl.jsonata import jsonata as hook
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str

from local.cloud.patches.swap import swap

KEPT_EXPRESSIONS = 2_048


class UndefinedError(Exception):
    """The expression gave nothing."""


def evaluate(expression: str, bindings: Mapping[str, Any]) -> Any:
    """JSON value of an expression with the named variables (no ``$`` in their names) bound to JSON values.

    Raises ``UndefinedError`` when it gives nothing, and the engine's own exceptions otherwise.
    """
    with _LOCK:
        compiled = _compiled(expression)
        engine.Jsonata.CURRENT.jsonata = compiled
        result = compiled.evaluate(None, {name: _bound(value) for name, value in bindings.items()})
    if result is None:
        raise UndefinedError(f"The JSONata expression '{expression}' returned nothing (undefined).")
    return json.loads(json.dumps(result, default=_plain))


_LOCK = threading.RLock()


@lru_cache(maxsize=KEPT_EXPRESSIONS)
def _compiled(expression: str) -> Any:
    compiled = engine.Jsonata(expression)
    compiled.set_output_convert_nulls(False)
    for name, function in _FUNCTIONS.items():
        compiled.register_lambda(name, function)
    return compiled


def _bound(value: Any) -> Any:
    return Utils.NULL_VALUE if value is None else value


def _plain(value: Any) -> Any:
    if value is Utils.NULL_VALUE:
        return None
    raise TypeError(f"returned an unsupported result type ({type(value).__name__}).")


def _refuse_eval(*_: Any) -> Any:
    raise ValueError("$eval is not supported in a state machine")


def _partition(items: list[Any], size: int) -> list[list[Any]]:
    return [items[i : i + int(size)] for i in range(0, len(items), int(size))]


def _range(first: int, last: int, step: int) -> list[int]:
    return list(range(int(first), int(last) + (1 if step > 0 else -1), int(step)))


def _hash(value: Any, algorithm: str = "SHA-256") -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return hashlib.new(algorithm.replace("-", "").lower(), text.encode()).hexdigest()


def _random(seed: int | None = None) -> float:
    return random.Random(seed).random()


_FUNCTIONS = {
    "uuid": lambda: str(uuid.uuid4()),
    "hash": _hash,
    "partition": _partition,
    "range": _range,
    "random": _random,
    "parse": json.loads,
    "eval": _refuse_eval,
}


def _json(value: Any) -> Any:
    """A copy that is JSON only; times are written as AWS writes them in the context object."""
    return json.loads(json.dumps(value, default=_time_text))


def _time_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)


def _eval_string(self: Any, env: Any) -> None:
    variables = {**env.variable_store._outer_scope, **env.variable_store._inner_scope}
    try:
        hook.extract_jsonata_variable_references(self.expression)
        result = evaluate(self.expression, {**_json(variables), "states": _json(env.states._states_data)})
    except Exception as problem:
        raise _failure(env, self.expression, problem) from problem
    env.stack.append(result)


def _failure(env: Any, expression: str, problem: Exception) -> FailureEventException:
    text = str(problem)
    cause = text if expression in text else f"The JSONata expression '{expression}' failed: {text}"
    name = StatesErrorName(typ=StatesErrorNameType.StatesQueryEvaluationError)
    details = EventDetails(  # type: ignore[typeddict-item]
        evaluationFailedEventDetails=EvaluationFailedEventDetails(error=name.error_name, cause=cause[:32_000])
    )
    kind = HistoryEventType.EvaluationFailed
    env.event_manager.add_event(context=env.event_history_context, event_type=kind, event_details=details)
    return FailureEventException(
        failure_event=FailureEvent(env=env, error_name=name, event_type=kind, event_details=details)
    )


def _eval_text(expression: str) -> Any:
    """For the remaining callers of moto's own hook, which test ``$exists`` and ``$type`` of a whole text."""
    try:
        return evaluate(expression, {})
    except UndefinedError:
        return None
    except Exception as problem:
        raise hook.JSONataException("UNKNOWN", str(problem)) from problem


def _declare(bindings: Mapping[str, Any]) -> str:
    return "".join(f"{name}:={to_json_str(value, separators=(',', ':'))};" for name, value in bindings.items())


def install() -> None:
    swap(string_expression.StringJSONata, "_eval_body", _eval_string)
    swap(hook, "_eval_jsonata", _eval_text)
    for module in (hook, states, variable_store):
        swap(module, "encode_jsonata_variable_declarations", _declare)
