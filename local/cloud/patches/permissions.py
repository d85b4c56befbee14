"""Faults of moto's evaluator of IAM policies: a condition that is not met makes of an Allow a refusal of the whole
request; of the operators it knows StringEquals alone, and takes every other, and every key that the request does not
have, as met; a principal that is another makes of an Allow a refusal, and a service as principal a TypeError.

Fault: in a pattern ``?`` and a full stop mean what they mean in regular expressions, and a line break ends ``*``.

Fault: actions are compared with their case; IAM does not.

Here a statement whose condition or principal does not fit says nothing, and an operator that nothing here knows is an
error: what cannot be judged is never taken as met.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from moto.iam.access_control import IAMPolicyStatement, PermissionResult

from local.cloud.patches.swap import swap

Context = Mapping[str, str | list[str]]
"""Condition keys of a request (``sts:RoleSessionName``) with their values."""


Permit = Callable[[str, str, str], None]
"""Takes a role's ARN, an action and a resource; raises where the role may not."""


class UnjudgedError(Exception):
    """A condition has an operator that is not judged here."""


def matches(pattern: str, text: str) -> bool:
    """IAM's ``*`` and ``?``."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda expected, actual: expected == actual,
    "StringLike": matches,
    "ArnEquals": matches,
    "ArnLike": matches,
    "Bool": lambda expected, actual: str(expected).lower() == actual.lower(),
}


def met(conditions: Mapping[str, Mapping[str, Any]], context: Context) -> bool:
    """Whether every condition holds. Raises UnjudgedError."""
    return all(
        _holds(operator, expected, context.get(key))
        for operator, keys in conditions.items()
        for key, expected in keys.items()
    )


def _holds(operator: str, expected: Any, actual: str | list[str] | None) -> bool:
    quantifier, _, name = operator.rpartition(":")
    if name.endswith("IfExists") and actual is None:
        return True
    name = name.removesuffix("IfExists")
    if name not in OPERATORS or quantifier not in ("", "ForAllValues", "ForAnyValue"):
        raise UnjudgedError(f"the local cloud does not judge the condition operator {operator}")
    wanted = [expected] if isinstance(expected, str) else list(expected)
    found = [actual] if isinstance(actual, str) else list(actual or [])
    fits = [any(OPERATORS[name](one, value) for one in wanted) for value in found]
    return all(fits) if quantifier == "ForAllValues" else any(fits)


def install() -> None:
    original = IAMPolicyStatement.is_action_permitted

    def judged(
        self: Any, action: str, resource: str = "*", principal: str | None = None, context: Context | None = None
    ) -> PermissionResult:
        if principal is not None and not self._check_principal(principal):
            return PermissionResult.NEUTRAL
        said = original(self, action, resource, principal, None)
        if said is PermissionResult.NEUTRAL or met(self._statement.get("Condition", {}), context or {}):
            return said
        return PermissionResult.NEUTRAL

    def principal_fits(self: Any, principal: str) -> bool:
        named = self._statement.get("Principal", "*")
        accounts = named if isinstance(named, str) else named.get("AWS", [])
        return bool({"*", principal} & {*([accounts] if isinstance(accounts, str) else accounts)})

    def element_matches(self: Any, element: str, value: str) -> bool:
        listed = self._statement[element]
        patterns = [listed] if isinstance(listed, str) else listed
        if element in ("Action", "NotAction"):
            return any(matches(one.lower(), value.lower()) for one in patterns)
        return any(matches(one, value) for one in patterns)

    swap(IAMPolicyStatement, "is_action_permitted", judged)
    swap(IAMPolicyStatement, "_check_conditions", lambda self, _: True)
    swap(IAMPolicyStatement, "_check_principal", principal_fits)
    swap(IAMPolicyStatement, "_check_element_matches", element_matches)
