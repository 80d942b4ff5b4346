# SPDX-License-Identifier: Apache-2.0
"""The host time that libodc.torch.fsdp2 adds to FSDP2's own, in processor time of this process, the least of many:

    odc run -n 2 build/python/bin/python bindings/python/bench/fsdp2_host.py

- a gather and an addition hook of a group of which each rank has 1,024 elements, repeated, so with warm caches; without
  the buffers, which FSDP2's own hooks allocate, too;
- in their places: microbatches of 100 such groups, in turns with hooks that do nothing, divided by their 300 hooks;
- 400 groups with 1,600 parameters: sync_gradients(), and what the publish adds to the optimizer's step, by default,
  where parameters live in slices and gradients are views of the sums, and where both are copied;
- one group of which each rank has 8 M f32 parameters: its publish, and what the first gather of a minibatch takes over
  a second one, where parameters are copied and where they live in the slice, in which edits must be found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from gloo_ranks import process_group
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from libodc.torch import fsdp2
from libodc.torch.fsdp2.group import Group
from libodc.torch.fsdp2.torch_state import AllGather, Buffers, ReduceScatter

GROUPS = 100
WIDTH = 32
ROUNDS = 10
MICROBATCHES = 4  # in a round
LARGE = 4096  # squared: two ranks' parameters


class Nothing(Buffers, AllGather, ReduceScatter):
    def __call__(self, *_: Any, **__: Any) -> None:
        return None


def sharded(groups: int, *, bias: bool) -> nn.Module:
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH, bias=bias))  # noqa: E731
    model = nn.Sequential(*(block() for _ in range(groups)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for one in model:
        fully_shard(one, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def spent(call: Callable[[], Any]) -> float:
    """Milliseconds."""
    begin = time.process_time_ns()
    call()
    return (time.process_time_ns() - begin) * 1e-6


def microbatch(model: nn.Module) -> None:
    model(torch.ones(1, WIDTH)).sum().backward()


def least(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds of one of `repeats` calls in a row."""
    return min(spent(lambda: [call() for _ in range(repeats)]) for _ in range(ROUNDS)) * 1e3 / repeats


def one_hook(group: Group) -> tuple[float, float]:
    """Microseconds of a gather and of an addition, whose gradients are those of all parameters."""
    numel = group.layout.gradient_numel * group.ranks
    gather, add = group.mine.all_gather, group.mine.reduce_scatter
    output = torch.empty(numel)
    mine = output[: group.layout.numel]
    kind: Any = {"dtype": output.dtype, "device": output.device}

    def addition(hook: Any) -> None:
        for index in range(len(group.trainable)):
            group.participation.note_backward(index)
        full = hook.allocate((numel,), **kind)
        hook(hook.allocate((numel // group.ranks,), **kind), full, None, dist.ReduceOp.SUM)

    gathers, buffers = least(lambda: gather(output, mine, None), 200), least(lambda: addition(Nothing()), 200)
    return gathers, least(lambda: addition(add), 200) - buffers


def hooks() -> tuple[float, float, float]:
    """Microseconds of a gather, of an addition, and of a hook in its place."""
    plain, model = (sharded(GROUPS, bias=False) for _ in range(2))
    nothing = Nothing()
    for one in plain:
        one.set_custom_all_gather(nothing)
        one.set_custom_reduce_scatter(nothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    without, over_odc = [], []
    with fsdp2.attach(model, optimizer) as job:
        for _ in range(ROUNDS):
            for _ in range(MICROBATCHES):
                without.append(spent(lambda: microbatch(plain)))
                over_odc.append(spent(lambda: microbatch(model)))
            job.sync_gradients()
            optimizer.step()
            optimizer.zero_grad()
        microbatch(model)
        gather, add = one_hook(job._groups[GROUPS // 2])
        job.sync_gradients()
    return gather, add, (min(over_odc) - min(without)) * 1e3 / (3 * GROUPS)


def sync_and_step(**options: Any) -> tuple[float, float, float]:
    """Milliseconds of a sync, of a step with its publish, and of a step alone. `options`: of attach."""
    model = sharded(4 * GROUPS, bias=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    syncs, steps = [], []
    with fsdp2.attach(model, optimizer, **options) as job:
        for _ in range(ROUNDS):
            microbatch(model)
            dist.barrier()  # so that the sync does not wait
            syncs.append(spent(job.sync_gradients))
            steps.append(spent(optimizer.step))
            optimizer.zero_grad()
        microbatch(model)
        job.sync_gradients()
    alone = [spent(optimizer.step) for _ in range(ROUNDS)]
    return min(syncs), min(steps), min(alone)


def large_slice(**options: Any) -> tuple[float, float]:
    """Milliseconds of a publish, and of finding edits at the first gather. `options`: of attach."""
    model: Any = nn.Linear(LARGE, LARGE, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    publishes, firsts, others = [], [], []
    with fsdp2.attach(model, optimizer, **options) as job:
        gather = job._groups[0].mine.all_gather
        output, mine = torch.empty(LARGE * LARGE), model.weight.detach().to_local().view(-1)
        for _ in range(ROUNDS):
            job.sync_gradients()
            publishes.append(spent(optimizer.step))  # without gradients it changes nothing
            dist.barrier()
            for times in (firsts, others):
                times.append(spent(lambda: gather(output, mine, None)))
    return min(publishes), min(firsts) - min(others)


def main() -> None:
    with process_group() as (rank, _):
        gather, add, in_turns = hooks()
        in_place = sync_and_step()
        copied = sync_and_step(parameters="copy", gradients="copy")
        large = [(one, large_slice(parameters=one)) for one in ("copy", "slice")]
        if rank == 0:
            print(
                f"hooks of 1,024 elements: gather {gather:.1f} us, addition {add:.1f} us; "
                f"in their places {in_turns:.1f} us"
            )
            for name, (sync, step, alone) in (("slices and views", in_place), ("copies", copied)):
                print(
                    f"{4 * GROUPS} groups with {16 * GROUPS} parameters, {name}: sync {sync:.1f} ms; publish "
                    f"{step - alone:.1f} ms: step with it {step:.1f} ms, without {alone:.1f} ms"
                )
            for chosen, (publish, check) in large:
                print(
                    f'{LARGE**2 / dist.get_world_size() / 1e6:.1f} M f32 parameters, parameters="{chosen}": publish '
                    f"{publish:.1f} ms, looking for edits at the first gather {check:.1f} ms"
                )


main()
