"""One DynamoDB table as plain values: fast enough to be tried in every state that a run's record can be in.

A table's items are a dict that is never changed: a write makes a new one. ``test_table.py`` plays the whole contract of the
run store on it and on moto. Gaps: indexes are consistent at once, nothing is throttled, a query is one page."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from tests.interleavings.expressions import Item, WrongType, condition, update

Items = dict[tuple[str, str], Item]
INDEXES = {
    None: ("pk", "sk"),
    "by_cluster": ("cluster_pk", "cluster_sk"),
    "by_created": ("list_pk", "list_sk"),
    "by_next_look": ("look_pk", "look_sk"),
    "by_pool": ("pool_pk", "pool_sk"),
}
REFUSED = "ConditionalCheckFailedException"


def refusal(code: str, operation: str, reasons: list[str] | None = None) -> ClientError:
    answer: dict[str, Any] = {"Error": {"Code": code, "Message": "refused"}}
    if reasons is not None:
        answer["CancellationReasons"] = [{"Code": reason} for reason in reasons]
    return ClientError(answer, operation)  # type: ignore[arg-type]


class SmallTable:
    """What the run store uses of a boto3 Table."""

    name = "runs"

    def __init__(self, items: Items | None = None) -> None:
        self.items: Items = items or {}
        self.meta = SimpleNamespace(client=SimpleNamespace(transact_write_items=self.transact_write_items))

    def get_item(self, Key: Item, ConsistentRead: bool) -> Item:
        found = self.items.get(_key(Key))
        return {} if found is None else {"Item": found}

    def put_item(self, **request: Any) -> Item:
        self._change("PutItem", request, lambda _: request["Item"], _key(request["Item"]))
        return {}

    def delete_item(self, **request: Any) -> Item:
        self._change("DeleteItem", request, lambda _: None, _key(request["Key"]))
        return {}

    def update_item(self, ReturnValues: str = "NONE", **request: Any) -> Item:
        key = _key(request["Key"])
        self._change("UpdateItem", request, lambda there: _updated(there, request), key)
        return {"Attributes": self.items[key]} if ReturnValues == "ALL_NEW" else {}

    def query(self, KeyConditionExpression: Any, IndexName: str | None = None, **how: Any) -> Item:
        partition, sort = INDEXES[IndexName]
        there = [i for i in self.items.values() if partition in i and sort in i]
        found = [i for i in there if _matches(KeyConditionExpression, i)]
        found.sort(key=lambda i: (i[sort], i["pk"], i["sk"]), reverse=not how.get("ScanIndexForward", True))
        return {"Items": found[: how.get("Limit")]}

    def transact_write_items(self, TransactItems: list[Item]) -> None:
        before, reasons = self.items, list[str]()
        for entry in TransactItems:
            ((kind, request),) = entry.items()
            request = {n: v for n, v in request.items() if n != "TableName"}
            try:
                {"Put": self.put_item, "Update": self.update_item, "Delete": self.delete_item}[kind](**request)
                reasons.append("None")
            except ClientError:
                reasons.append("ConditionalCheckFailed")
        if set(reasons) != {"None"}:
            self.items = before
            raise refusal("TransactionCanceledException", "TransactWriteItems", reasons)

    def _change(self, operation: str, request: Item, made: Callable[[Item], Item | None], key: tuple[str, str]) -> None:
        there = self.items.get(key, {})
        names, values = request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {})
        if "ConditionExpression" in request and not condition(request["ConditionExpression"])(there, names, values):
            raise refusal(REFUSED, operation)
        try:
            item = made(there)
        except WrongType as error:
            raise refusal("ValidationException", operation) from error
        kept = {k: v for k, v in self.items.items() if k != key}
        self.items = kept if item is None else {**kept, key: item}


def _updated(there: Item, request: Item) -> Item:
    names, values = request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {})
    return {**request["Key"], **update(request["UpdateExpression"])(there, names, values)}


def _key(item: Item) -> tuple[str, str]:
    return item["pk"], item["sk"]


def _matches(asked: Any, item: Item) -> bool:
    """A boto3 key condition."""
    told = asked.get_expression()
    first, *more = told["values"]
    match told["operator"]:
        case "AND":
            return _matches(first, item) and _matches(more[0], item)
        case "=":
            return bool(item[first.name] == more[0])
        case "begins_with":
            return bool(item[first.name].startswith(more[0]))
        case "BETWEEN":
            return bool(more[0] <= item[first.name] <= more[1])
        case other:
            raise NotImplementedError(other)
