# SPDX-License-Identifier: Apache-2.0
"""How much longer an FSDP2 step takes over ODC than with hooks that do equal copies and additions in this rank's own
memory: two ranks, of which only rank 0 has microbatches.

    odc run -n 2 python bindings/python/bench/fsdp2_gpu.py --device cuda

Ranks share a GPU, or have one each. Samples of several steps are taken in pairs of random order; rank 0 prints JSON:
the median of the ratios, with its 95 % interval, and the medians of both."""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import libodc
from libodc.torch import fsdp2
from libodc.torch.fsdp2.torch_state import AllGather, Buffers, ReduceScatter

SAMPLE_SECONDS = 0.1  # at least
WARM_UP = 4  # steps


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Net(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in self.blocks:
            x = x + one(x)
        return x


def sharded(options: argparse.Namespace, device: torch.device) -> Any:
    with torch.device(device):
        model = Net(options.layers, options.width)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for one in model.blocks:
        fully_shard(one, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


# ---- hooks that stay in this rank's memory ----


class LocalGroup:
    """A block's buffers: for each rank a slice in the gathered dtype, and sums in f32. This rank's own are published
    and filled into .grad as in ODC; the others have as many elements."""

    def __init__(self, module: Any) -> None:
        self._parameters = list(module.parameters())
        mine = torch.cat([parameter.to_local().detach().reshape(-1) for parameter in self._parameters])
        ranks = range(dist.get_world_size())
        self.slices = [mine.to(torch.bfloat16) for _ in ranks]
        self.sums = [torch.zeros_like(mine, dtype=torch.float32) for _ in ranks]
        module.set_custom_all_gather(LocalGather(self.slices))
        module.set_custom_reduce_scatter(LocalAdd(self.sums))
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def fill_gradients(self, divisor: float) -> None:
        begin = 0
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            gradient = parameter.grad.to_local()
            sums = self.sums[dist.get_rank()][begin : begin + gradient.numel()]
            torch.div(sums.view(gradient.shape), divisor, out=gradient)
            begin += gradient.numel()

    def publish(self) -> None:
        begin = 0
        for parameter in self._parameters:
            local = parameter.to_local().reshape(-1)
            self.slices[dist.get_rank()][begin : begin + local.numel()].copy_(local)
            begin += local.numel()
        self.sums[dist.get_rank()].zero_()


class LocalGather(Buffers, AllGather):
    def __init__(self, slices: list[torch.Tensor]) -> None:
        self._slices = slices

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> None:
        for part, mine in zip(output_tensor.view(len(self._slices), -1), self._slices, strict=True):
            part.copy_(mine)


class LocalAdd(Buffers, ReduceScatter):
    def __init__(self, sums: list[torch.Tensor]) -> None:
        self._sums = sums

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
        for part, sums in zip(input_tensor.view(len(self._sums), -1), self._sums, strict=True):
            sums.add_(part)
        output_tensor.zero_()


class LocalJob:
    """Waits for nobody."""

    def __init__(self, model: Net) -> None:
        self._groups = [LocalGroup(module) for module in model.blocks]

    @torch.no_grad()
    def sync_gradients(self, divisor: float) -> None:
        for group in self._groups:
            group.fill_gradients(divisor)

    @torch.no_grad()
    def publish(self) -> None:
        for group in self._groups:
            group.publish()


# ---- contestants ----


class Arm:
    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self._options = options
        self.model = sharded(options, device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._x = torch.randn(options.tokens, options.width, generator=generator).to(device, torch.bfloat16)

    def run(self, microbatches: int, sync: Callable[[], Any], publish: Callable[[], None]) -> None:
        for _ in range(microbatches):
            self.model(self._x).float().square().mean().backward()
        sync()
        self.optimizer.step()
        self.optimizer.zero_grad()
        publish()


def finish_of(device: torch.device) -> Callable[[], None]:
    """Waits for the device."""
    if device.type == "cuda":
        return torch.cuda.synchronize
    return lambda: None


def timed(step: Callable[[], None], steps: int, finish: Callable[[], None]) -> float:
    """Seconds of a step made by all ranks at this time."""
    finish()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    return (time.perf_counter() - begin) / steps


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median; the extremes if there are few."""
    ratios, n = sorted(ratios), len(ratios)
    reach = 0.98 * math.sqrt(n)
    return ratios[max(0, round(n / 2 - reach))], ratios[min(n - 1, round(n / 2 + reach))]


def race(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    finish = finish_of(device)
    microbatches = options.microbatches if dist.get_rank() == 0 else 0
    over_odc, local = Arm(options, device), Arm(options, device)
    local_job = LocalJob(local.model)
    with fsdp2.attach(over_odc.model, over_odc.optimizer) as job:
        arms = {
            "odc": partial(over_odc.run, microbatches, lambda: job.sync_gradients(divisor=1.0), lambda: None),
            "local": partial(local.run, microbatches, lambda: local_job.sync_gradients(1.0), local_job.publish),
        }
        for step in arms.values():
            timed(step, WARM_UP, finish)
        longest = torch.tensor([max(timed(step, 2, finish) for step in arms.values())])
        dist.broadcast(longest, 0)
        steps = max(1, math.ceil(SAMPLE_SECONDS / longest.item()))
        taken: dict[str, list[float]] = {name: [] for name in arms}
        order = random.Random(options.seed)
        for _ in range(options.pairs):
            for name in order.sample(list(arms), 2):
                taken[name].append(timed(arms[name], steps, finish))
        route = str(job.context.route(1, libodc.Memory.GPU if device.type == "cuda" else libodc.Memory.HOST))
    ratios = [mine / theirs for mine, theirs in zip(taken["odc"], taken["local"], strict=True)]
    low, high = interval(ratios)
    return {
        "op": "fsdp2 step",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "route": route,
        "parameters": sum(parameter.numel() for parameter in local.model.parameters()),
        "tokens": options.tokens,
        "microbatches": options.microbatches,
        "pairs": options.pairs,
        "steps": steps,
        "seed": options.seed,
        "step_ms": 1e3 * statistics.median(taken["odc"]),
        "limit_step_ms": 1e3 * statistics.median(taken["local"]),
        "slower": statistics.median(ratios) - 1,
        "slower_low": low - 1,
        "slower_high": high - 1,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048, help="a multiple of the ranks")
    parser.add_argument("--tokens", type=int, default=8192, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=8, help="of rank 0")
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--seed", type=int, default=1, help="of the pairs' order")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.device == "cuda" and torch.cuda.device_count() == 0:
        raise SystemExit("fsdp2_gpu.py: torch finds no GPU here; --device cpu tries the script without one")
    with process_group() as (rank, _):
        device = torch.device("cpu")
        if options.device == "cuda":
            device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(device)
            torch.cuda.init()  # otherwise a mesh would choose a device by the rank
        figures = race(options, device)
        if rank == 0:
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
