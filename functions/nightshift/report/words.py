"""Causes, numbers and times as a person reads them, and the cleaning of text that comes from outside."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from nightshift.contract.publication import Spend

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "finished": "trained to its end",
        "target_reached": "reached the target",
        "plateau": "stopped getting better",
        "node_replaced": "a node was replaced",
        "node_lost": "a node was lost",
        "worker_lost": "a worker was lost",
        "worker_failed": "a worker process died",
        "head_lost": "the head node was lost",
        "start_deadline": "did not start in time",
        "hung": "stood still",
        "progress_unwritable": "could not write its progress",
        "evidence_missing": "ended without its final results",
        "capacity_missing": "the cluster has too few nodes",
        "gpu_out_of_memory": "ran out of GPU memory",
        "host_out_of_memory": "ran out of main memory",
        "gpu_failed": "a GPU reported a fault",
        "nccl_failure": "the GPUs' communication failed",
        "preempted": "was preempted or evicted",
        "quota_missing": "its queue had no quota",
        "engine_failure": "an inference engine failed",
        "credentials_expired": "its credentials expired",
        "storage_full": "the shared storage was full",
        "storage_unreachable": "the shared storage could not be reached",
        "bad_image": "the image could not be pulled",
        "bad_configuration": "the configuration was refused",
        "checkpoint_unusable": "no usable checkpoint was left",
        "code_error": "the task's code failed",
        "stopped": "was stopped from outside",
        "stopped_on_request": "stopped on request",
        "cancelled": "cancelled on request",
        "budget_spent": "used up a budget",
        "controller_fault": "the controller failed",
    }
)
"""End causes in words, as the end of "attempt 1: ...". Others are shown with spaces for underscores."""

ELLIPSIS = "…"


def clean(text: str) -> str:
    """One line of printable characters: line breaks, control and direction characters become single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def bounded(text: str, limit: int) -> str:
    """At most ``limit`` characters; a cut is marked by an ellipsis."""
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + ELLIPSIS


def cause_words(cause: str | None, default: str = "still running") -> str:
    """An end cause in words, at most 200 characters."""
    if not cause:
        return default
    return CAUSES.get(cause) or bounded(clean(cause.replace("_", " ")), 200)


def percent(share: float) -> str:
    """``0.4375`` -> ``43.8%``. Never rounded to 0% or 100% unless it is exactly that."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(99.9, max(0.1, share * 100)):.1f}%"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign."""
    return f"{difference * 100:+.1f} points".replace("-", "\N{MINUS SIGN}")


def hours(value: float) -> str:
    """GPU-hours: three decimals below one, one from ten on."""
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:,.{digits}f}"


def dollars(value: float) -> str:
    """``$1,234.50``; whole dollars from ten thousand on."""
    return f"${value:,.0f}" if value >= 10_000 else f"${value:,.2f}"


def spend_words(spend: Spend) -> str:
    """What a run is said to cost, with what that figure is and how old its prices are."""
    old = ", which are older than 90 days" if spend.prices_old else ""
    return (
        f"{dollars(spend.dollars)} attributed: its nodes at list prices of {spend.prices_as_of:%Y-%m-%d}{old}, "
        "for as long as it held them"
    )


def duration(seconds: float) -> str:
    """``4000`` -> ``1 h 7 min``; the two largest units that say something."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hour, minutes = divmod(round(whole / 60), 60)
    if hour < 48:
        return f"{hour} h {minutes} min" if minutes else f"{hour} h"
    day, hour = divmod(round(whole / 3600), 24)
    return f"{day} days {hour} h" if hour else f"{day} days"


def utc(at: datetime) -> datetime:
    """Aware in UTC; a time without a zone is taken as UTC, as the contract says."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def moment(at: datetime) -> str:
    """``2026-11-30 22:15:04 UTC``."""
    return utc(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def between(start: datetime, end: datetime) -> timedelta:
    """``end - start`` in UTC."""
    return utc(end) - utc(start)


def size(count: int) -> str:
    """Bytes in binary units: ``68.2 KiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def plural(count: int, one: str) -> str:
    """``1 attempt``, ``2 attempts``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"
