# SPDX-License-Identifier: Apache-2.0
"""How much of the network's time FSDP2 over ODC hides behind compute, between two hosts on this machine whose link is
slowed to a rate (Linux's token bucket filter; needs root):

    bindings/python/bench/fsdp2_hosts.sh [RATE, such as 1gbit]

One model trains in turns: with gathers and additions that block, with started ones, which FSDP2's prefetching in
backward starts ahead, and with set_modules_to_forward_prefetch as well; beside an unsharded copy, which only computes.
Hidden: the share of what blocking communication adds to that compute. One rank and one thread a host.
"""

from __future__ import annotations

import os
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from libodc.torch import fsdp2

BLOCKS, WIDTH, TOKENS, MICROBATCHES, TURNS = 6, 512, 1024, 2, 9


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS))
    )


def seconds(run: Any) -> float:
    dist.barrier()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    with process_group() as (rank, size):
        tokens = torch.ones(TOKENS, WIDTH)
        alone, sharded = model(), model()
        mesh = init_device_mesh("cpu", (size,))
        for block in sharded:
            fully_shard(block, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.0)
        with fsdp2.attach(sharded, optimizer) as job:
            overlap = job.overlap
            if overlap is None:
                raise SystemExit("the ranks are on one host: run fsdp2_hosts.sh")

            def compute() -> None:
                for _ in range(MICROBATCHES):
                    alone(tokens).sum().backward()
                alone.zero_grad()

            def train(started: bool, prefetched: bool) -> None:
                for group in job._groups:
                    group._overlap = overlap if started else None
                for block, following in pairwise(sharded):
                    block.set_modules_to_forward_prefetch([following] if prefetched else [])  # type: ignore[operator]
                for _ in range(MICROBATCHES):
                    sharded(tokens).sum().backward()
                job.sync_gradients()
                optimizer.step()
                optimizer.zero_grad()

            arms = {
                "compute alone": compute,
                "blocking": lambda: train(False, False),
                "started": lambda: train(True, False),
                "started, forward prefetch": lambda: train(True, True),
            }
            took: dict[str, list[float]] = {name: [] for name in arms}
            for turn in range(1 + TURNS):
                for name, run in arms.items():
                    one = seconds(run)
                    if turn > 0:  # the first warms up
                        took[name].append(one)
            bytes_in = job.context.stats().gather_bytes / (3 * (1 + TURNS)) / 1e6
        if rank == 0:
            link = os.environ.get("ODC_BENCH_RATE", "an unknown rate")
            print(
                f"{size} hosts, a link of {link}; {bytes_in:.0f} MB gathered a minibatch of {MICROBATCHES} microbatches"
            )
            for name, times in took.items():
                middle = statistics.median(times)
                shares = [
                    (b - one) / (b - c)
                    for one, b, c in zip(times, took["blocking"], took["compute alone"], strict=True)
                ]
                hidden = (
                    ""
                    if name in ("compute alone", "blocking")
                    else f"   hidden {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
                )
                print(f"{name:26} {middle:6.3f} s a minibatch{hidden}")


if __name__ == "__main__":
    main()
