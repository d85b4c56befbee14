"""Pages of a list: an opaque token says after which item the next page begins.

A token holds a position and a digest of that and of what was listed. It is no capability: whoever makes one up only begins
the same list somewhere else. What is not a token of this very list is refused, so that no page of another one is taken for it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

MAX_TOKEN = 1_600
_SCOPE = 8


class BadToken(ValueError):
    """The text is no token, or one of another list."""


def make_token(scope: str, position: str) -> str:
    """``scope`` names the list with all its filters."""
    return base64.urlsafe_b64encode(_digest(scope, position) + position.encode()).decode().rstrip("=")


def read_token(scope: str, token: str, pattern: str) -> str:
    """The position, which matches ``pattern`` as a whole. Raises BadToken."""
    try:
        if len(token) > MAX_TOKEN or not token.isascii():
            raise BadToken("it is no token")
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        position = raw[_SCOPE:].decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadToken("it is no token") from error
    if raw[:_SCOPE] != _digest(scope, position):
        raise BadToken("it is none of this list with these filters")
    if re.fullmatch(pattern, position) is None:
        raise BadToken("it is no token")
    return position


def _digest(scope: str, position: str) -> bytes:
    return hashlib.sha256(f"{len(scope)}:{scope}{position}".encode()).digest()[:_SCOPE]
