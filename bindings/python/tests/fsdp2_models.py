# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of libodc.torch.fsdp2, and their training by one process, by plain FSDP2 and over ODC, to
compare.

A minibatch is given as counts: the microbatches of each rank. The samples follow from minibatch, rank and index.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from torch_ranks import dist, torch  # skips where there is no torch

# isort: split
import torch._dynamo  # each rank would import it, which takes a second
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from libodc import PhaseError
from libodc.torch.fsdp2 import Job, MinibatchReport, attach

Tensor = torch.Tensor
Counts = Sequence[int]

# By number of ranks. All ranks have different numbers of microbatches, and each time another one has none.
UNEVEN: dict[int, list[Counts]] = {
    1: [(2,), (0,), (3,)],
    2: [(0, 3), (2, 0), (1, 2)],
    3: [(0, 3, 1), (2, 0, 3), (1, 2, 0)],
    4: [(0, 3, 1, 2), (2, 0, 3, 1), (3, 1, 2, 0)],
}
DEVICE = torch.device("cpu")  # see use_gpu
# Seconds; a superfluous wait fails the test with an error. Ranks that share a GPU load its libraries in turn.
LIMIT = 90.0 if torch.cuda.device_count() else 30.0


def use_gpu() -> None:
    """Makes this rank train on a GPU: the same for all ranks, or one each if there are enough."""
    global DEVICE
    number = dist.get_rank() if torch.cuda.device_count() >= dist.get_world_size() else 0
    torch.cuda.set_device(number)
    torch.cuda.init()  # otherwise a mesh chooses a device by the rank
    DEVICE = torch.device("cuda", number)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Most sizes are not divisible by 2, 3 or 4; `last` has fewer rows than four ranks."""

    def __init__(self, width: int = 13) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(7, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.last = nn.Linear(width, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def shard_blocks(model: Any, mesh: DeviceMesh, **options: Any) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def square_loss(model: Any, x: Tensor, weight: float) -> None:
    (model(x).square().sum() * weight).backward()


@dataclass(frozen=True)
class Case:
    """A model, how FSDP2 shards it and how a rank runs its microbatches."""

    model: Callable[[], Any] = Net
    shard: Callable[[Any, DeviceMesh], None] = shard_blocks
    microbatch: Callable[[Any, Tensor, float], None] = square_loss  # model, sample, weight of the loss
    backwards: int = 1  # in a microbatch
    clear: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad

    def made(self) -> Any:
        return self.model().to(DEVICE)

    def sharded(self, mesh: DeviceMesh) -> Any:
        model = self.made()
        self.shard(model, mesh)
        return model


@dataclass
class Step:
    """The result of a minibatch: full tensors, by parameter name."""

    norm: Tensor
    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]


def mesh_of(size: int) -> DeviceMesh:
    return init_device_mesh(DEVICE.type, (size,))


def sample(minibatch: int, rank: int, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_000 * minibatch + 100 * rank + index)
    return torch.randn(4, 7, dtype=torch.float64, generator=generator).to(DEVICE)


def samples(minibatch: int, rank: int, count: int) -> list[Tensor]:
    return [sample(minibatch, rank, index) for index in range(count)]


def total(counts: Counts) -> float:
    return float(max(1, sum(counts)))


def fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def reshard(model: nn.Module) -> None:
    for module in fsdp_modules(model):
        module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """Collective where the tensor is sharded."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def all_whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same by one collective, as each takes a while where ranks share a core."""
    sharded = {name: one for name, one in tensors.items() if isinstance(one, DTensor) and one.device_mesh.ndim == 1}
    full = {name: whole(one) for name, one in tensors.items() if name not in sharded}
    if sharded:
        group = next(iter(sharded.values())).device_mesh.get_group()
        everyone: list[Any] = [None] * group.size()
        # As arrays: torch takes a millisecond to read a tensor.
        mine = {name: one.detach().to_local().cpu().contiguous() for name, one in sharded.items()}
        arrays = {name: one.view(torch.uint8).numpy() for name, one in mine.items()}
        dist.all_gather_object(everyone, arrays, group=group)
        for name, one in sharded.items():
            parts = [torch.from_numpy(locals[name]).view(one.dtype) for locals in everyone]
            full[name] = torch.cat(parts, dim=one.placements[0].dim).to(DEVICE)
    return {name: full[name] for name in tensors}


def named(model: Any, **options: Any) -> dict[str, nn.Parameter]:
    """Parameters by the names that they have without checkpoint_wrapper. `options`: of named_parameters."""
    return {name.replace("_checkpoint_wrapped_module.", ""): one for name, one in model.named_parameters(**options)}


def whole_parameters(model: Any, **options: Any) -> dict[str, Tensor]:
    reshard(model)  # after an evaluation the root is unsharded on the ranks that ran it
    return all_whole(dict(named(model, **options)))


def whole_gradients(model: Any) -> dict[str, Tensor | None]:
    gradients = {name: parameter.grad for name, parameter in named(model).items()}
    full = all_whole({name: one for name, one in gradients.items() if one is not None})
    return {name: full.get(name) for name in gradients}


def adamw(model: Any) -> torch.optim.Optimizer:
    """With a large `eps`: with the default one the first step amplifies the rounding of tiny gradients."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1, eps=1e-3)


def finish(
    model: Any,
    optimizer: torch.optim.Optimizer,
    clear: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad,
) -> Step:
    """Clips, so that the norm matters, and steps."""
    gradients = whole_gradients(model)
    norm = whole(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    optimizer.step()
    clear(optimizer)
    return Step(norm, gradients, whole_parameters(model))


def by_one_process(
    case: Case,
    minibatches: Sequence[Counts],
    divisors: Sequence[float] | None = None,
    optimized: Callable[[Any], torch.optim.Optimizer] = adamw,
) -> list[Step]:
    model = case.made()
    optimizer = optimized(model)
    steps = []
    for minibatch, counts in enumerate(minibatches):
        for rank, count in enumerate(counts):
            for x in samples(minibatch, rank, count):
                case.microbatch(model, x, 1.0)
        divide_gradients(model, divisors[minibatch] if divisors else total(counts))
        steps.append(finish(model, optimizer, case.clear))
    return steps


def sum_exactly(model: nn.Module) -> None:
    """Makes plain FSDP2 sum instead of average: gloo omits the division (pytorch issue 162338), and a single rank
    divides f64 twice."""
    for module in fsdp_modules(model):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)


def divide_gradients(model: nn.Module, divisor: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(divisor)


def by_plain_fsdp2(
    case: Case,
    mesh: DeviceMesh,
    minibatches: Sequence[Counts],
    prepare: Callable[[Any], None] = sum_exactly,
    divide: Callable[[Any, float], None] = divide_gradients,
) -> list[Step]:
    """Equal counts: microbatches of loss zero are added until all ranks have the same number."""
    rank = mesh.get_local_rank()
    model = case.sharded(mesh)
    optimizer = adamw(model)
    prepare(model)
    steps = []
    for minibatch, counts in enumerate(minibatches):
        for index in range(max(counts)):
            case.microbatch(model, sample(minibatch, rank, index), float(index < counts[rank]))
        reshard(model)
        divide(model, total(counts))
        steps.append(finish(model, optimizer, case.clear))
    return steps


def rank_of(model: Any) -> int:
    """Among the ranks over which it is sharded."""
    return int(next(iter(model.parameters())).device_mesh.get_local_rank(0))


def run_microbatches(case: Case, model: Any, minibatch: int, counts: Counts) -> None:
    rank = rank_of(model)
    for x in samples(minibatch, rank, counts[rank]):
        case.microbatch(model, x, 1.0)


class News:
    """Sends a rank's value to all others without a collective. All ranks make it."""

    _number = iter(range(1_000_000))

    def __init__(self) -> None:
        self._store = dist.distributed_c10d._get_default_store()
        self._key = f"news {next(self._number)} of "

    def tell(self) -> None:
        self._store.set(f"{self._key}{dist.get_rank()}", "1")

    def await_from(self, ranks: Sequence[int]) -> None:
        if ranks:
            self._store.wait([f"{self._key}{rank}" for rank in ranks], datetime.timedelta(seconds=LIMIT))


def busiest(counts: Counts) -> int:
    return max(range(len(counts)), key=lambda rank: counts[rank])


def run_blocked(case: Case, model: Any, minibatch: int, counts: Counts) -> None:
    """Only the rank with the most microbatches runs; when it has finished all of them, the others."""
    news, first = News(), busiest(counts)
    if dist.get_rank() != first:
        news.await_from([first])
    run_microbatches(case, model, minibatch, counts)
    news.tell()


def run_asleep(case: Case, model: Any, minibatch: int, counts: Counts) -> None:
    """The rank with the most microbatches stays inside its first backward until the others have finished all theirs."""
    news, sleeper = News(), busiest(counts)
    others = [rank for rank in range(len(counts)) if rank != sleeper]

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        handle.remove()
        output.register_hook(lambda gradient: news.await_from(others))

    if dist.get_rank() == sleeper and counts[sleeper] > 0:
        handle = model.blocks[0].register_forward_hook(hook)
    run_microbatches(case, model, minibatch, counts)
    news.tell()


def run_pending(case: Case, model: Any, minibatch: int, counts: Counts) -> None:
    """Each rank reduces at different times: after every microbatch, after two, or after the last one only."""
    rank, count = dist.get_rank(), counts[dist.get_rank()]
    for index, x in enumerate(samples(minibatch, rank, count)):
        model.set_requires_gradient_sync(index == count - 1 or (index + 1) % (1 + (rank + minibatch) % 3) == 0)
        case.microbatch(model, x, 1.0)


@contextmanager
def gathers_checked(model: Any) -> Iterator[None]:
    """Collective. Within the block every gathered parameter must be bit-identical to the ranks' current shards."""
    # A parameter that is tied after fully_shard has a name for each place where it is gathered.
    expected = whole_parameters(model, remove_duplicate=False)

    def check(*_: Any) -> None:
        for name, parameter in named(model).items():
            if not isinstance(parameter, DTensor):
                assert torch.equal(parameter.detach(), expected[name].to(parameter)), name

    hooks = [module.register_forward_pre_hook(check) for module in fsdp_modules(model)]
    yield
    for hook in hooks:
        hook.remove()


def over_odc(
    case: Case,
    mesh: DeviceMesh,
    minibatches: Sequence[Counts],
    run: Callable[[Case, Any, int, Counts], None] = run_microbatches,
    sync: Callable[[Job, Counts], MinibatchReport] = lambda job, counts: job.sync_gradients(divisor=total(counts)),
    optimized: Callable[[Any], torch.optim.Optimizer] = adamw,
    **options: Any,
) -> list[Step]:
    """`run`: runs this rank's microbatches of a minibatch. `options`: of attach."""
    model = case.sharded(mesh)
    optimizer = optimized(model)
    steps = []
    with attach(model, optimizer, timeout=LIMIT, **options) as job:
        for minibatch, counts in enumerate(minibatches):
            with gathers_checked(model):
                run(case, model, minibatch, counts)
            report = sync(job, counts)
            assert report.microbatches == [count * case.backwards for count in counts] and report.minibatch == minibatch
            steps.append(finish(model, optimizer, case.clear))
    return steps


def edited(rank: int, size: int) -> None:
    """On a GPU a parameter changed outside of a step is reported at the sync: the forward would have to wait."""
    case = Case()
    model = case.sharded(mesh_of(size))
    with attach(model, adamw(model), timeout=LIMIT) as job:
        with torch.no_grad():
            model.first.bias.to_local().add_(1)
        case.microbatch(model, sample(0, rank, 0), 1.0)
        with pytest.raises(PhaseError, match=r'parameter "first\.bias" of FSDP group .* has changed since it was'):
            job.sync_gradients()
        job.publish()


def transposed(one: Tensor) -> Tensor:
    """The same values in another order in memory."""
    return one.t().contiguous().t()


def assert_equal_steps(mine: Sequence[Step], expected: Sequence[Step], tolerance: float = 1e-12) -> None:
    assert len(mine) == len(expected)
    for minibatch, (a, b) in enumerate(zip(mine, expected, strict=True)):
        where = f"minibatch {minibatch}"
        assert a.gradients.keys() == b.gradients.keys() and a.parameters.keys() == b.parameters.keys()
        for name in a.gradients:
            one, other = a.gradients[name], b.gradients[name]
            assert (one is None) == (other is None), f"{where}: {name}.grad is {one}, expected {other}"
            if one is not None and other is not None:
                assert_near(one, other, tolerance, f"{where}: {name}.grad")
        assert_near(a.norm, b.norm, tolerance, f"{where}: the norm")
        for name in a.parameters:
            assert_near(a.parameters[name], b.parameters[name], tolerance, f"{where}: {name}")


def assert_near(one: Tensor, other: Tensor, tolerance: float, what: str) -> None:
    """Relative to the tensor's largest element."""
    scale = float(other.abs().max()) if other.numel() else 0.0
    error = float((one.to(other) - other).abs().max()) if other.numel() else 0.0
    assert error <= tolerance * scale, f"{what} differs by {error}, the largest is {scale}"
