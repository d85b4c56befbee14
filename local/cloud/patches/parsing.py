"""Fault: the preprocessor of state machine definitions keeps its stack of query languages in a list of the CLASS.

A definition that is rejected half way leaves its language on that list, and every later definition in the process is
then read in it. AWS parses each definition on its own.

Fault: a ``Next``, ``Default`` or ``StartAt`` that names no state is accepted at create, and fails only when reached.
AWS refuses it with InvalidDefinition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from moto.stepfunctions.parser.api import InvalidDefinition
from moto.stepfunctions.parser.asl.parse.preprocessor import Preprocessor
from moto.stepfunctions.parser.models import StepFunctionsParserBackend

from local.cloud.patches.swap import swap


def install() -> None:
    original_init = Preprocessor.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self._query_language_per_scope = []

    swap(Preprocessor, "__init__", init)

    original_validate = StepFunctionsParserBackend._validate_definition

    def validate(definition: str) -> None:
        original_validate(definition)
        problems = list(missing_targets(json.loads(definition)))
        if problems:
            raise InvalidDefinition(message=f"Invalid State Machine Definition: {'; '.join(problems)}")

    swap(StepFunctionsParserBackend, "_validate_definition", staticmethod(validate))


def missing_targets(machine: dict[str, Any], where: str = "") -> Iterator[str]:
    """A sentence for each transition that leads to a state that does not exist in its own scope."""
    states = machine.get("States", {})
    if machine.get("StartAt") not in states:
        yield f"StartAt of {where or '/'} names '{machine.get('StartAt')}', which is no state"
    for name, state in states.items():
        here = f"{where}/{name}"
        for target in _targets(state):
            if target not in states:
                yield f"{here} leads to '{target}', which is no state"
        for inner in _inner_machines(state):
            yield from missing_targets(inner, here)


def _targets(state: dict[str, Any]) -> Iterator[str]:
    for key in ("Next", "Default"):
        if key in state:
            yield state[key]
    for rule in [*state.get("Choices", []), *state.get("Catch", [])]:
        if "Next" in rule:
            yield rule["Next"]


def _inner_machines(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from state.get("Branches", [])
    for key in ("ItemProcessor", "Iterator"):
        if key in state:
            yield state[key]
