"""One of two processes that add up a tensor over NCCL (or Gloo, on a CPU): ``allreduce BACKEND MEETING_FILE RANK``."""

from __future__ import annotations

import sys
import time
from datetime import timedelta


def main(backend: str, meeting: str, rank: int) -> int:
    """0 where every element of 64 MiB is the sum of both ranks'; prints how fast it went."""
    import torch
    from torch import distributed

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    distributed.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    ours = torch.full((16 << 20,), float(rank + 1), device=device)
    begun = time.monotonic()
    distributed.all_reduce(ours)
    right = bool((ours == 3.0).all())
    took = time.monotonic() - begun
    distributed.destroy_process_group()
    print(f"64 MiB in {took * 1_000:.0f} ms" if right else "the sum is wrong")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
