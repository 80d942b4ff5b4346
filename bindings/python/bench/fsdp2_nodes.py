# SPDX-License-Identifier: Apache-2.0
"""FSDP2 between two hosts of two ranks on this machine (needs root):

    bindings/python/bench/fsdp2_nodes.sh [RATE, such as 1gbit]

The same minibatches in turns: FSDP2 over gloo, over ODC without a node cache, over ODC with it and with partial sums,
with and without prefetching in forward, and an unsharded copy, whose time is compute alone; each over a link slowed to
RATE and over one that is not. Each rank learns from its own tokens, and its losses are those of an unsharded model with
averaged gradients, minibatch by minibatch. Bytes into a host are those that its interface counts, beside libodc's own
count. Hidden: the share of the network's time, bytes by rate, that the slow link does not add to the minibatch over the
fast one.
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
from links import RATE, hidden, let_run, slow_down
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from traffic import crossed, received

from libodc.torch import fsdp2

BLOCKS, WIDTH, TOKENS, MICROBATCHES, TURNS = 6, 512, 512, 4, 5
LEARNING_RATE = 1.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.feed_forward(x)
        return x + out


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def tokens_of(rank: int) -> torch.Tensor:
    """Returns a rank's microbatches, along the first dimension."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(MICROBATCHES, TOKENS, WIDTH, generator=generator)


class Arm:
    def __init__(self, name: str, module: nn.Module, microbatches: Callable[[range], Iterator[int]] = iter) -> None:
        self.name = name
        self.module = module
        self.microbatches = microbatches
        self.job: fsdp2.Job | None = None
        self.optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self.fast: list[float] = []  # seconds over each link
        self.slow: list[float] = []
        self.bytes_in: list[int] = []
        self.losses: list[float] = []

    def attach(self, node_cache: str) -> Arm:
        os.environ["ODC_NODE_CACHE"] = node_cache
        self.job = fsdp2.attach(self.module, self.optimizer)
        self.microbatches = self.job.microbatches
        return self

    def counted(self) -> float:
        return float(crossed(self.job.context)) if self.job is not None else 0.0

    def turn(self, tokens: torch.Tensor) -> None:
        let_run()
        self.fast.append(self.minibatch(tokens))
        slow_down()
        before = received()
        self.slow.append(self.minibatch(tokens))
        self.bytes_in.append(received() - before)

    def minibatch(self, tokens: torch.Tensor) -> float:
        """Returns seconds, from the step by the gradients of the minibatch before, whose parameters cross over the link
        of this one. `tokens` has this rank's microbatches along its first dimension."""
        dist.barrier()
        begin = time.perf_counter()
        if self.losses:
            self.optimizer.step()
            self.optimizer.zero_grad()
        loss = 0.0
        for number in self.microbatches(range(MICROBATCHES)):
            one = (self.module(tokens[number]) - tokens[number].roll(1, -1)).square().mean() / MICROBATCHES
            one.backward()
            loss += float(one.detach())
        self.reduce_gradients()
        dist.barrier()
        self.losses.append(loss)
        return time.perf_counter() - begin

    def reduce_gradients(self) -> None:
        if self.job is not None:
            self.job.sync_gradients()


class Reference(Arm):
    """Is not sharded, and averages its gradients over the ranks."""

    def reduce_gradients(self) -> None:
        for parameter in self.module.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def sharded(mesh: Any, ahead: int) -> nn.Module:
    """A block's forward begins the gathers of so many blocks after it."""
    made = model()
    blocks: list[Any] = [fully_shard(block, mesh=mesh) for block in made]
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
    fully_shard(made, mesh=mesh)
    return made


def report(arms: list[Arm], size: int, counted: dict[str, float]) -> None:
    print(f"2 hosts of {size // 2} ranks; {MICROBATCHES} microbatches of {TOKENS} tokens a rank; seconds, medians")
    print(f"{'':22}{'fast link':>10}{RATE:>10}  tokens/s  MB into a host  as libodc counts  hidden")
    for arm in arms:
        fast, slow, moved = (statistics.median(one) for one in (arm.fast, arm.slow, arm.bytes_in))
        share = f"{hidden(slow, fast, moved):8.1%}" if arm is not arms[0] else ""
        by_odc = f"{counted[arm.name] / 1e6:.1f}" if arm.job is not None else ""
        print(
            f"{arm.name:22}{fast:10.3f}{slow:10.3f}{MICROBATCHES * TOKENS * size / slow:10.0f}{moved / 1e6:16.1f}"
            f"{by_odc:>17}{share}"
        )
    plain, cached = (statistics.median(arms[number].slow) for number in (1, 3))
    print(f"odc, node cache, over fsdp2 over gloo: {plain / cached:.2f}x")
    losses = arms[-1].losses
    print(f"rank 0's loss, an unsharded model's to 1e-5: {losses[0]:.4f} -> {losses[-1]:.4f}")


def main() -> None:
    with process_group() as (rank, size):
        tokens = tokens_of(rank)
        mesh = init_device_mesh("cpu", (size,))
        arms = [
            Arm("compute alone", model()),
            Arm("fsdp2 over gloo", sharded(mesh, 1)),
            Arm("odc", sharded(mesh, 1)).attach("off"),
            Arm("odc, node cache", sharded(mesh, 1)).attach("auto"),
            Arm("the same, no prefetch", sharded(mesh, 0)).attach("auto"),
        ]
        begin = {}
        for turn in range(1 + TURNS):
            for arm in arms:
                arm.turn(tokens)
                if turn == 0:  # warms up
                    arm.fast.clear()
                    arm.slow.clear()
                    arm.bytes_in.clear()
                    begin[arm.name] = arm.counted()
        let_run()
        reference = Reference("reference", model())
        for _ in arms[0].losses:
            reference.minibatch(tokens)
        for arm in arms[1:]:
            for mine, others in zip(arm.losses, reference.losses, strict=True):
                if abs(mine - others) > 1e-5 * abs(others):
                    raise SystemExit(f"{arm.name}: a loss is {mine}, and {others} where nothing is sharded")
        counted = {}
        for arm in arms:  # a minibatch's, of all ranks: what comes into one host is half
            total = torch.tensor((arm.counted() - begin[arm.name]) / (2 * TURNS) / 2, dtype=torch.float64)
            dist.all_reduce(total)
            counted[arm.name] = float(total)
        if rank == 0:
            report(arms, size, counted)
        for arm in arms:
            if arm.job is not None:
                arm.job.close()


if __name__ == "__main__":
    main()
