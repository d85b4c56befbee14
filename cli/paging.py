"""Lists that the API gives in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

PAGE = 100
"""Items that one page may have at most."""

MAX_PAGES = 100
"""Of one list: filters may leave pages nearly empty."""

T = TypeVar("T")


def paged(page: Callable[[str | None], tuple[list[T], str | None]], limit: int = MAX_PAGES * PAGE) -> Iterator[T]:
    """Items of a list, page by page, at most ``limit``. ``page`` gives one, and where the next begins."""
    after, left = None, limit
    for _ in range(MAX_PAGES):
        items, after = page(after)
        yield from items[:left]
        left -= len(items)
        if after is None or left <= 0:
            return
