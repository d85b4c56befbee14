"""Several waits at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from nightshift.core.errors import bounded


def at_once(calls: Mapping[str, Callable[[], None]], seconds: float) -> Mapping[str, str]:
    """Implements ``steps.ports.Together`` with a thread for each call. A call that is late is left to itself: it ends with
    its own deadlines, and what it still writes is welcome."""
    if not calls:
        return {}
    pool = ThreadPoolExecutor(max_workers=len(calls))
    futures = {name: pool.submit(call) for name, call in calls.items()}
    wait(futures.values(), timeout=seconds)
    pool.shutdown(wait=False)
    said = {name: _why(future, seconds) for name, future in futures.items()}
    return {name: why for name, why in said.items() if why is not None}


def _why(future: Future[None], seconds: float) -> str | None:
    if not future.done():
        return f"it took longer than {seconds:.1f} s"
    error = future.exception()
    return None if error is None else f"{type(error).__name__}: {bounded(error, 300)}"
