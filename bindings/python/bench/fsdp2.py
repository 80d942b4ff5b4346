# SPDX-License-Identifier: Apache-2.0
"""The cost of libodc.torch.fsdp2 compared with FSDP2 itself, each figure a ratio within one run:

    odc run -n 2 build/python/bin/python bindings/python/bench/fsdp2.py

- publishing, and filling .grad, compared with one copy of this rank's part of the model: pairs in random order, the
  median and its 95 % interval;
- 100 steps over ODC with uneven microbatch counts compared with plain FSDP2 over gloo, which runs the same samples in
  equal counts with empty ones added: the largest relative difference of the losses.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from libodc.torch import fsdp2

PAIRS = 60
STEPS = 100


def wide(layers: int, width: int, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for _ in range(layers)
    ]
    model = nn.Sequential(*blocks)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def timed(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def report(rank: int, what: str, call: Callable[[], None], copy: Callable[[], None]) -> None:
    ratios, times, order = [], [], random.Random(0)
    for _ in range(PAIRS):
        dist.barrier()
        pair = [call, copy]
        first = order.random() < 0.5
        took = [timed(one) for one in (pair if first else pair[::-1])]
        mine, theirs = took if first else took[::-1]
        ratios.append(mine / theirs)
        times.append(mine)
    if rank == 0:
        ratios.sort()
        low, high = ratios[round(PAIRS / 2 - 0.98 * PAIRS**0.5)], ratios[round(PAIRS / 2 + 0.98 * PAIRS**0.5)]
        middle = statistics.median(ratios)
        print(f"{what:48} {middle:5.2f} x one copy ({low:.2f}-{high:.2f}), {1e3 * statistics.median(times):.1f} ms")


def copies(rank: int, dtype: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = wide(6, 1024, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job = fsdp2.attach(model, optimizer, parameters="copy", gradients="copy")
    model(torch.ones(2, 1024)).sum().backward()
    job.sync_gradients()
    with torch.no_grad():
        mine = torch.cat([parameter.to_local().reshape(-1) for parameter in model.parameters()])
    published, copied = torch.empty_like(mine, dtype=dtype), torch.empty_like(mine)
    name = str(dtype).removeprefix("torch.")
    took_part = [True] * len(list(model.parameters()))

    @torch.no_grad()
    def publish() -> None:
        job._shards.publish()

    @torch.no_grad()
    def fill() -> None:
        job._gradients.fill(took_part, 2.0)

    report(rank, f"publish {mine.numel() / 1e6:.0f} M parameters as {name}", publish, lambda: published.copy_(mine))
    report(rank, f"fill .grad of {mine.numel() / 1e6:.0f} M parameters", fill, lambda: copied.copy_(mine))
    dist.barrier()
    job.remove()


def samples(step: int, rank: int) -> list[torch.Tensor]:
    """A different number on each rank, possibly 0."""
    order = random.Random(100 * step + rank)
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(order.randint(1, 12), 64, generator=generator) for _ in range((step + rank) % 4)]


def loss_sum(model: nn.Module, sample: torch.Tensor) -> torch.Tensor:
    return (model(sample) - sample.roll(1, 1)).square().sum()


def agreement(rank: int, size: int) -> None:
    def over_odc() -> list[float]:
        model = wide(3, 64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        reached = []
        with fsdp2.attach(model, optimizer) as job:
            for step in range(STEPS):
                total, tokens = 0.0, 0
                for sample in samples(step, rank):
                    loss = loss_sum(model, sample)
                    loss.backward()
                    total, tokens = total + loss.item(), tokens + len(sample)
                both = job.sync_gradients(weight=tokens, sums={"loss": total, "tokens": tokens}).sums
                reached.append(both["loss"] / max(both["tokens"], 1))
                optimizer.step()
                optimizer.zero_grad()
        return reached

    def plain() -> list[float]:
        model = wide(3, 64)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        reached = []
        for step in range(STEPS):
            mine = samples(step, rank)
            counts: list[Any] = [None] * size
            dist.all_gather_object(counts, len(mine))
            both = torch.zeros(2, dtype=torch.float64)
            for sample in mine + [torch.zeros(1, 64)] * (max(counts) - len(mine)):
                loss = loss_sum(model, sample)
                real = float(sample.any())
                (loss * real).backward()
                both += torch.tensor([loss.item() * real, len(sample) * real], dtype=torch.float64)
            dist.all_reduce(both)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(max(both[1].item(), 1))
            reached.append(both[0].item() / max(both[1].item(), 1))
            optimizer.step()
            optimizer.zero_grad()
        return reached

    ours, theirs = over_odc(), plain()
    if rank == 0:
        worst = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(ours, theirs, strict=True))
        print(
            f"losses of {STEPS} steps against plain FSDP2: {worst:.1e} apart at most, {ours[0]:.3f} to {ours[-1]:.3f}"
        )


def main() -> None:
    with process_group() as (rank, size):
        for dtype in (torch.float32, torch.bfloat16):
            copies(rank, dtype)
        agreement(rank, size)


main()
