"""``python tests/local_cloud/serve.py STACK_JSON``: the local cloud, less the change to moto that
NIGHTSHIFT_WITHOUT_PATCH names. With it the probes of that change must fail; without it this is ``local.cloud``."""

from __future__ import annotations

import os
import sys

from local.cloud.__main__ import main

left_out = os.environ.get("NIGHTSHIFT_WITHOUT_PATCH")


def leave_out() -> None:
    from local.cloud import patches

    kept = tuple(one for one in patches.ALL if one.__name__.rsplit(".", 1)[1] != left_out)
    if len(kept) == len(patches.ALL):
        sys.exit(f"there is no change named {left_out}")
    patches.ALL = kept


if __name__ == "__main__":
    main(sys.argv[1], before=leave_out if left_out else None)
