"""One Logger, Tracer and Metrics for all functions; every log line of an invocation carries its run_id.

Powertools names its logger after the service, which is also the package: what adapters log through the standard library
reaches the same handler, and takes the same format and keys.
"""

from __future__ import annotations

from aws_lambda_powertools import Logger, Metrics, Tracer

SERVICE, NAMESPACE = "nightshift", "Nightshift"

logger = Logger(service=SERVICE)
tracer = Tracer(service=SERVICE)
metrics = Metrics(service=SERVICE, namespace=NAMESPACE)
