"""Every rank adds its number to a vector; the sum is known, and so is the time of it."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import distributed

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, required=True, help="length of the vector, float32")
    parser.add_argument("--local_rank", type=int, default=0)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", options.local_rank)))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda") if on_gpu else torch.device("cpu")
    seconds = []
    for _ in range(REPEATS):
        vector = torch.full((options.elements,), float(rank + 1), device=device)
        distributed.barrier()
        began = time.perf_counter()
        distributed.all_reduce(vector)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    right = bool((vector == world_size * (world_size + 1) / 2).all())
    everywhere = torch.tensor([int(right)], device=device)
    distributed.all_reduce(everywhere)
    if rank == 0:
        result = {
            "sum": float(vector[0]),
            "right_on": int(everywhere),
            "ranks": world_size,
            "seconds": min(seconds),
            "bytes": options.elements * 4,
        }
        output = Path(os.environ["TRACKSIDE_OUTPUT"])
        output.mkdir(parents=True, exist_ok=True)
        (output / "result.json").write_text(json.dumps(result))
    distributed.destroy_process_group()
    if not right:
        raise SystemExit(f"rank {rank}: the sum is {float(vector[0])}, not {world_size * (world_size + 1) / 2}")


if __name__ == "__main__":
    main()
