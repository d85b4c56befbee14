"""JSONata: values are bound, not written into the expression, and an expression is parsed once."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.cloud.patches.jsonata import UndefinedError, evaluate
from local.cloud.patches.parsing import missing_targets

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
def test_any_value_comes_back_as_it_went_in(value: Any) -> None:
    assert evaluate("$kept", {"kept": value}) == value
    assert evaluate('{"in": $kept}', {"kept": value}) == {"in": value}


@given(text=st.text(max_size=30))
def test_text_is_never_taken_for_a_part_of_the_expression(text: str) -> None:
    assert evaluate("$states.input.text & '!'", {"states": {"input": {"text": text}}}) == text + "!"


def test_null_is_a_value_and_a_missing_field_is_none() -> None:
    assert evaluate("$x.a", {"x": {"a": None}}) is None
    assert evaluate("$exists($x.a)", {"x": {"a": None}}) is True
    with pytest.raises(UndefinedError, match="returned nothing"):
        evaluate("$x.b", {"x": {"a": None}})


def test_the_functions_of_step_functions_are_there_and_eval_is_not() -> None:
    assert evaluate("$partition([1,2,3], 2)", {}) == [[1, 2], [3]]
    assert evaluate("$range(0, 6, 2)", {}) == [0, 2, 4, 6]
    assert len(evaluate("$uuid()", {})) == 36
    assert evaluate("$hash('x')", {}) == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert evaluate("$parse('{\"a\": 1}').a", {}) == 1
    with pytest.raises(Exception, match=r"\$eval is not supported"):
        evaluate("$eval('1')", {})


def test_threads_that_share_an_expression_keep_their_own_values() -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        for _ in range(50):
            found = evaluate("$map($items, function($i) { $i * $n })", {"items": [1, 2], "n": number})
            if found != [number, 2 * number]:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_an_expression_that_was_seen_before_costs_little() -> None:
    expression = "$states.context.Execution.Name & '-s' & $shift & '-' & $states.context.State.RetryCount"
    states = {"context": {"Execution": {"Name": "r-r1"}, "State": {"RetryCount": 0}}}
    evaluate(expression, {"states": states, "shift": "3"})
    begun = time.perf_counter()
    for _ in range(100):
        assert evaluate(expression, {"states": states, "shift": "3"}) == "r-r1-s3-0"
    assert (time.perf_counter() - begun) / 100 < 0.002


def test_missing_targets_are_found_in_their_own_scope() -> None:
    inner = {"StartAt": "X", "States": {"X": {"Type": "Pass", "Next": "A"}}}
    machine = {
        "StartAt": "A",
        "States": {
            "A": {"Type": "Choice", "Choices": [{"Next": "B"}], "Default": "Gone"},
            "B": {"Type": "Map", "ItemProcessor": inner, "Catch": [{"Next": "A"}], "End": True},
        },
    }
    problems = list(missing_targets(json.loads(json.dumps(machine))))
    assert len(problems) == 2
    assert "'Gone'" in problems[0] and "/B/X leads to 'A'" in problems[1]
