"""One Logger, Tracer and Metrics for all functions; every log line of an invocation carries its run_id."""

from __future__ import annotations

import logging

from aws_lambda_powertools import Logger, Metrics, Tracer

logger = Logger(child=False)
tracer = Tracer()
metrics = Metrics()


def _share_with_standard_logging() -> None:
    """Adapters log through the standard library: their lines take the same format and keys."""
    root = logging.getLogger("nightshift")
    root.setLevel(logger.log_level)
    root.propagate = False
    root.handlers = list(logger.handlers)


_share_with_standard_logging()
