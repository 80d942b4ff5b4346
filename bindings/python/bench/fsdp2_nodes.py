# SPDX-License-Identifier: Apache-2.0
"""FSDP2 between two hosts of two ranks on this machine, whose link is slowed to a rate (Linux's token bucket filter;
needs root):

    bindings/python/bench/fsdp2_nodes.sh [RATE, such as 1gbit]

The same minibatches in turns: FSDP2 over gloo, over ODC without a node cache, over ODC with it and with partial sums,
and an unsharded copy, which only computes. The losses are equal. Bytes into a host are those that its interface counts,
beside libodc's own count. Hidden: the share of the network's time, bytes by rate, that does not add to the compute.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from links import RATE, hidden, received
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from libodc.torch import fsdp2

BLOCKS, WIDTH, TOKENS, MICROBATCHES, TURNS = 6, 512, 512, 4, 5


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS))
    )


class Arm:
    def __init__(self, name: str, module: nn.Module, microbatches: Callable[[range], Iterator[int]] = iter) -> None:
        self.name = name
        self.module = module
        self.microbatches = microbatches
        self.job: fsdp2.Job | None = None
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        self.seconds: list[float] = []
        self.bytes_in: list[int] = []
        self.losses: list[float] = []

    def attach(self, node_cache: str) -> Arm:
        os.environ["ODC_NODE_CACHE"] = node_cache
        self.job = fsdp2.attach(self.module, self.optimizer)
        self.microbatches = self.job.microbatches
        return self

    def counted(self) -> float:
        """What this rank has read of other hosts, and sent to them."""
        stats = self.job.context.stats() if self.job is not None else None
        return float(stats.fetched_bytes + stats.sent_bytes) if stats is not None else 0.0

    def minibatch(self, tokens: torch.Tensor) -> None:
        dist.barrier()
        begin, before = time.perf_counter(), received()
        loss = 0.0
        for number in self.microbatches(range(MICROBATCHES)):
            one = self.module(tokens + number).square().mean() / MICROBATCHES
            one.backward()
            loss += float(one.detach())
        if self.job is not None:
            self.job.sync_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.barrier()
        self.seconds.append(time.perf_counter() - begin)
        self.bytes_in.append(received() - before)
        self.losses.append(loss)


def sharded(mesh: Any) -> nn.Module:
    made = model()
    blocks: list[Any] = [fully_shard(block, mesh=mesh) for block in made]
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 2])
    fully_shard(made, mesh=mesh)
    return made


def report(arms: list[Arm], size: int, counted: dict[str, float]) -> None:
    print(f"2 hosts of {size // 2} ranks, a link of {RATE}; {MICROBATCHES} microbatches of {TOKENS} tokens a rank")
    print(f"{'':24}s a minibatch  tokens/s  MB into a host  as libodc counts  hidden")
    compute = statistics.median(arms[0].seconds)
    for arm in arms:
        seconds = statistics.median(arm.seconds)
        moved = statistics.median(arm.bytes_in)
        is_odc = arm.job is not None
        share = f"{hidden(seconds, compute, moved):7.1%}" if arm is not arms[0] else ""
        by_odc = f"{counted[arm.name] / 1e6:.1f}" if is_odc else ""
        print(
            f"{arm.name:24}{seconds:13.3f}{MICROBATCHES * TOKENS * size / seconds:10.0f}{moved / 1e6:16.1f}"
            f"{by_odc:>18}  {share}"
        )
    plain, cached = (statistics.median(arms[number].seconds) for number in (1, 3))
    print(f"odc, node cache, over fsdp2 over gloo: {plain / cached:.2f}x")


def main() -> None:
    with process_group() as (rank, size):
        torch.set_num_threads(1)
        tokens = torch.linspace(-1, 1, TOKENS * WIDTH).reshape(TOKENS, WIDTH)
        mesh = init_device_mesh("cpu", (size,))
        arms = [
            Arm("compute alone", model()),
            Arm("fsdp2 over gloo", sharded(mesh)),
            Arm("odc", sharded(mesh)).attach("off"),
            Arm("odc, node cache", sharded(mesh)).attach("auto"),
        ]
        begin = {}
        for turn in range(1 + TURNS):
            for arm in arms:
                arm.minibatch(tokens)
                if turn == 0:  # warms up
                    arm.seconds.clear()
                    arm.bytes_in.clear()
                    begin[arm.name] = arm.counted()
        for arm in arms[1:]:
            for mine, others in zip(arm.losses, arms[0].losses, strict=True):
                if abs(mine - others) > 1e-5 * abs(others):
                    raise SystemExit(f"{arm.name}: a loss is {mine}, and {others} where nothing is sharded")
        counted = {}
        for arm in arms:  # of all ranks: what comes into one host is half
            total = torch.tensor((arm.counted() - begin[arm.name]) / TURNS / 2, dtype=torch.float64)
            dist.all_reduce(total)
            counted[arm.name] = float(total)
        if rank == 0:
            report(arms, size, counted)
        for arm in arms:
            if arm.job is not None:
                arm.job.close()


if __name__ == "__main__":
    main()
