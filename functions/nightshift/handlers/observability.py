"""One Logger, Tracer and Metrics for all functions; every log line of an invocation carries its run_id.

Powertools names its logger after the service, which is also the package: what adapters log through the standard library
reaches the same handler, and takes the same format and keys.
"""

from __future__ import annotations

import os

from aws_lambda_powertools import Logger, Metrics, Tracer, single_metric
from aws_lambda_powertools.metrics import MetricUnit

from nightshift.core.measures import Measure

SERVICE, NAMESPACE = "nightshift", "Nightshift"
DEPLOYMENT = os.environ.get("POWERTOOLS_SERVICE_NAME", SERVICE)
"""Dimension ``service`` of every metric: the stack's name, so that two stacks of one account have alarms of their own."""

logger = Logger(service=SERVICE)
tracer = Tracer(service=SERVICE)
metrics = Metrics(service=DEPLOYMENT, namespace=NAMESPACE)


def take(name: str, value: float = 1.0, by: tuple[str, str] | None = None) -> None:
    """One value of a metric, written at once: what a process did is counted also where it dies right after. With ``by``
    it is written twice, with that dimension and without: alarms watch the sum, dashboards the parts."""
    for parts in (None, by) if by is not None else (None,):
        with single_metric(
            name=name,
            unit=MetricUnit.Seconds if name.endswith("Seconds") else MetricUnit.Count,
            value=value,
            namespace=NAMESPACE,
            default_dimensions={"service": DEPLOYMENT},
        ) as metric:
            if parts is not None:
                metric.add_dimension(name=parts[0], value=parts[1])


def measure(one: Measure) -> None:
    """``Ports.measure``."""
    take(one.metric.value, one.value, one.by)
