"""``python -m local.cloud STACK_JSON``: serve until SIGTERM or SIGINT; prints READY once it does."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from local import tls
from local.config import StackConfig


def main(stack_json: str, before: Callable[[], None] | None = None) -> None:
    """Serve until a signal; ``before`` runs when moto may be imported, and before it is changed."""
    logging.basicConfig(
        level=os.environ.get("NIGHTSHIFT_LOG_LEVEL", "WARNING"),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    config = StackConfig.load(Path(stack_json))
    tls.ensure(config)
    # moto reads these when it is imported.
    os.environ |= {**config.aws_env, "MOTO_PORT": str(config.cloud_port), "MOTO_ACCOUNT_ID": config.account}
    del os.environ["AWS_ENDPOINT_URL"]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from local.cloud.cloud import LocalCloud

    if before is not None:
        before()
    cloud = LocalCloud(config)
    try:
        cloud.start()
        print("READY", flush=True)
        stop.wait()
    finally:
        cloud.close()
    sys.stdout.flush()
    # Threads that wait inside moto would keep the interpreter: everything that must end has ended.
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m local.cloud STACK_JSON")
    main(sys.argv[1])
