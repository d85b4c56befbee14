"""What a node costs an hour, for attributed spend and the money budget.

These are list prices on demand, copied by hand, and no bill: discounts, savings plans, training plans and other regions differ.
Each carries the day of its source, and is shown as old from 90 days on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from nightshift.contract.spec import RunSpec, Topology

OLD: Final = timedelta(days=90)

LIST_2026: Final = "SageMaker on-demand list price, us-west-2, from the AWS price list"
EC2_BASED: Final = (
    "estimate: 1.2 times the EC2 on-demand list price in us-east-1, as for other ml.r5 sizes; day not known"
)


@dataclass(frozen=True)
class Price:
    """Dollars an hour for one node; ``as_of`` is the day for which ``source`` gives it."""

    dollars: float
    as_of: date
    source: str


def _listed(dollars: float) -> Price:
    return Price(dollars, date(2026, 9, 1), LIST_2026)


PRICES: Final[dict[str, Price]] = {
    "ml.g5.12xlarge": _listed(7.09),
    "ml.g5.24xlarge": _listed(10.18),
    "ml.g5.48xlarge": _listed(20.36),
    "ml.g6.12xlarge": _listed(5.752),
    "ml.g6.24xlarge": _listed(8.344),
    "ml.g6.48xlarge": _listed(16.688),
    "ml.g7e.2xlarge": _listed(4.2039),
    "ml.g7e.4xlarge": _listed(4.9977),
    "ml.g7e.8xlarge": _listed(6.5853),
    "ml.g7e.12xlarge": _listed(10.3576),
    "ml.g7e.24xlarge": _listed(20.7152),
    "ml.g7e.48xlarge": _listed(41.4304),
    "ml.m5.4xlarge": _listed(0.922),
    "ml.p4d.24xlarge": _listed(25.2513),
    "ml.p5.48xlarge": _listed(63.296),
    # 4.608 on EC2; an early day makes the estimate show as old wherever it is used.
    "ml.r5d.16xlarge": Price(5.5296, date(2025, 1, 1), EC2_BASED),
}


@dataclass(frozen=True)
class Hourly:
    """All nodes of a topology; ``as_of`` is the day of the oldest price in it."""

    dollars: float
    as_of: date


def without_price(topology: Topology) -> tuple[str, ...]:
    """Instance types of the topology that the table does not have."""
    return tuple(sorted({g.instance_type for g in (topology.head, topology.workers)} - PRICES.keys()))


def hourly(topology: Topology) -> Hourly | None:
    """The head and the workers for an hour; None where a price is missing."""
    if without_price(topology):
        return None
    groups = (topology.head, topology.workers)
    prices = [PRICES[g.instance_type] for g in groups]
    dollars = sum(p.dollars * g.count for p, g in zip(prices, groups, strict=True))
    return Hourly(round(dollars, 4), min(p.as_of for p in prices))


def price_problems(spec: RunSpec) -> Sequence[tuple[str, str]]:
    """(field, problem) pairs: a limit in dollars for nodes whose price is not known could never be held."""
    missing = without_price(spec.topology)
    if spec.budgets.dollars is None or not missing:
        return []
    known = "leave budgets.dollars out, use budgets.gpu_hours, or add the price to the table of core/prices.py"
    return [("budgets.dollars", f"no price is known for {', '.join(missing)}: {known}")]


def is_old(as_of: date, today: date) -> bool:
    """Whether a price has to be shown as old."""
    return today - as_of > OLD
