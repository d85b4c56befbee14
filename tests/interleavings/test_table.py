"""The small table's own rules. That it answers as DynamoDB (moto) does, for everything that the run store asks of it, is
part of the store's contract: ``tests/fakeworld/test_store.py``."""

from __future__ import annotations

import pytest

from tests.interleavings.expressions import UnknownExpression, condition, update
from tests.interleavings.table import SmallTable


def test_a_write_never_changes_an_item_that_somebody_holds() -> None:
    table = SmallTable()
    table.put_item(Item={"pk": "a", "sk": "b", "n": 1})
    before = table.items
    table.update_item(Key={"pk": "a", "sk": "b"}, UpdateExpression="ADD n :n", ExpressionAttributeValues={":n": 2})
    assert before["a", "b"]["n"] == 1 and table.items["a", "b"]["n"] == 3


def test_a_set_reads_the_item_from_before_every_change() -> None:
    made = update("SET a = b, b = a REMOVE c ADD d :one")({"a": 1, "b": 2, "c": 3}, {}, {":one": 1})
    assert made == {"a": 2, "b": 1, "d": 1}


def test_a_comparison_with_what_is_not_there_holds_for_unequal_only() -> None:
    assert not condition("a = :v OR a < :v OR a >= :v")({}, {}, {":v": 1})
    assert condition("a <> :v AND NOT (a = :v)")({}, {}, {":v": 1})


@pytest.mark.parametrize("text", ["a.b = :v", "size(a) > :v", "a BETWEEN :v AND :w", "a =", "a = :v :w"])
def test_what_it_does_not_know_is_an_error(text: str) -> None:
    with pytest.raises(UnknownExpression):
        condition(text)({}, {}, {":v": 1, ":w": 2})
