# SPDX-License-Identifier: Apache-2.0
"""How much of the network's time FSDP2 over ODC hides behind compute, between two hosts on this machine (needs root):

    bindings/python/bench/fsdp2_hosts.sh [RATE, such as 1gbit]

One model trains in turns: with gathers and additions that block, with started ones, which FSDP2's prefetching in
backward starts ahead, and with set_modules_to_forward_prefetch as well; each over a link slowed to RATE and over one
that is not; beside an unsharded copy, which only computes. Hidden: the share of the network's time (bytes by rate) that
the slow link does not add to the minibatch over the fast one. Of all work: the same beside compute alone, so FSDP2's
own copies, the sync and the step count as network, too. One rank and one thread a host.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from links import RATE, hidden, let_run, slow_down
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from traffic import received

from libodc.torch import fsdp2
from libodc.torch.fsdp2.overlap import Overlap

BLOCKS, WIDTH, TOKENS, MICROBATCHES, TURNS = 6, 512, 2048, 2, 5


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS))
    )


def measured(run: Any) -> tuple[float, int]:
    """Seconds, and bytes into this host."""
    dist.barrier()
    begin, before = time.perf_counter(), received()
    run()
    return time.perf_counter() - begin, received() - before


def main() -> None:
    with process_group() as (rank, size):
        tokens = torch.ones(TOKENS, WIDTH)
        alone, sharded = model(), model()
        mesh = init_device_mesh("cpu", (size,))
        blocks: list[Any] = [fully_shard(block, mesh=mesh) for block in sharded]
        fully_shard(sharded, mesh=mesh)
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.0)
        with fsdp2.attach(sharded, optimizer) as job:
            overlap = job._hooks.overlap
            if overlap is None:
                raise SystemExit("the ranks are on one host: run fsdp2_hosts.sh")

            def compute() -> None:
                for _ in range(MICROBATCHES):
                    alone(tokens).sum().backward()
                alone.zero_grad()

            def train(by: Overlap | None, ahead: int) -> None:
                """`ahead`: how many blocks forward prefetches."""
                job._hooks.overlap = by
                for number, block in enumerate(blocks):
                    block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
                for _ in range(MICROBATCHES):
                    sharded(tokens).sum().backward()
                job.sync_gradients()
                optimizer.step()
                optimizer.zero_grad()

            arms = {
                "compute alone": compute,
                "blocking": lambda: train(None, 0),
                "started": lambda: train(overlap, 0),
                "started, forward prefetch": lambda: train(overlap, 1),
            }
            fast: dict[str, list[float]] = {name: [] for name in arms}
            slow: dict[str, list[tuple[float, int]]] = {name: [] for name in arms}
            for turn in range(1 + TURNS):
                for name, run in arms.items():
                    let_run()
                    at_once, _ = measured(run)
                    slow_down()
                    one = measured(run)
                    if turn > 0:  # the first warms up
                        fast[name].append(at_once)
                        slow[name].append(one)
        if rank == 0:
            report(fast, slow, size)


def report(fast: dict[str, list[float]], slow: dict[str, list[tuple[float, int]]], size: int) -> None:
    print(f"{size} hosts; {MICROBATCHES} microbatches of {TOKENS} tokens a rank; seconds a minibatch, medians")
    print(f"{'':26}{'fast link':>10}{RATE:>10}  MB into a host{'hidden':>24}{'of all work':>24}")
    compute = fast["compute alone"]
    for name, runs in slow.items():
        seconds, moved = (statistics.median(column) for column in zip(*runs, strict=True))
        line = f"{name:26}{statistics.median(fast[name]):10.3f}{seconds:10.3f}{moved / 1e6:16.1f}"
        if name != "compute alone":
            for without in (fast[name], compute):
                shares = [hidden(one, other, moved) for (one, moved), other in zip(runs, without, strict=True)]
                line += f"{f'{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})':>24}"
        print(line)


if __name__ == "__main__":
    main()
