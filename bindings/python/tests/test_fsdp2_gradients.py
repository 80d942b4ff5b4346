# SPDX-License-Identifier: Apache-2.0
"""Which parameters get which gradients: unused ones, pending ones, and their divisors."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from fsdp2_models import (
    LIMIT,
    Block,
    Case,
    Step,
    adamw,
    assert_equal_steps,
    assert_near,
    by_one_process,
    by_plain_fsdp2,
    finish,
    fsdp_modules,
    mesh_of,
    over_odc,
    run_blocked,
    run_microbatches,
    run_pending,
    sample,
    samples,
    shard_blocks,
    square_loss,
    sum_exactly,
    transposed,
    whole_gradients,
)
from logged import warnings_logged
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch_ranks import run_torch_ranks, torch

from libodc.torch.fsdp2 import attach, bulk

Tensor = torch.Tensor


class Routed(nn.Module):
    """The sample decides which blocks run, and which part of a block, and whether the root's bias is added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(7, 13)
        self.bias = nn.Parameter(torch.randn(13))
        self.blocks = nn.ModuleList(Fork(13) for _ in range(3))
        self.last = nn.Linear(13, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        routes = (x[0] > 0.3).tolist()
        y = self.first(x)
        if routes[0]:
            y = y + self.bias
        for index, block in enumerate(self.blocks):
            if routes[1 + index]:
                y = block(y, routes[4])
        return self.last(y)


class Fork(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.left = Block(width)
        self.right = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.scale * (self.left(x) if left else self.right(x))


def clear_to_none(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def clear_to_zero(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


MANY = {1: [(2,), (1,), (0,), (1,)], 3: [(0, 2, 1), (1, 0, 1), (0, 0, 0), (2, 1, 0), (0, 1, 1)]}


def unused(rank: int, size: int, clear: Callable[[torch.optim.Optimizer], None]) -> None:
    case = Case(Routed, clear=clear)
    expected = by_one_process(case, MANY[size])
    seen = {(name, gradient is None) for step in expected for name, gradient in step.gradients.items()}
    assert any((name, True) in seen and (name, False) in seen for name in expected[0].gradients)
    # Views end at the step, as with zero_grad(set_to_none=True).
    assert_equal_steps(over_odc(case, mesh_of(size), MANY[size], run_blocked, gradients="copy"), expected)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("clear", [clear_to_none, clear_to_zero])
def test_unused_parameters(clear: Callable[[torch.optim.Optimizer], None], size: int) -> None:
    run_torch_ranks(size, unused, clear)


class Shallow(Routed):
    """All ranks run the same blocks, as they must where they gather by collectives; the parts differ by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 3

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for block in self.blocks[: self.depth]:
            y = block(y, bool(x[0, 0] > 0))
        return self.last(y)


def reduced_unused(rank: int, size: int) -> None:
    """set_reduce_scatter_unused_params gives parameters a zero gradient where plain FSDP2 does."""
    plain, mine = Case(Shallow).sharded(mesh_of(size)), Case(Shallow).sharded(mesh_of(size))
    sum_exactly(plain)
    for model in (plain, mine):
        for module in fsdp_modules(model):
            module.set_reduce_scatter_unused_params(True)
    optimizers = [adamw(plain), adamw(mine)]
    steps: list[list[Step]] = [[], []]
    with attach(mine, optimizers[1], timeout=LIMIT) as job:
        for minibatch in range(3):
            plain.depth = mine.depth = 3 - minibatch
            for x in samples(minibatch, rank, 2):
                square_loss(plain, x, 1.0)
            for x in samples(minibatch, rank, 2):
                square_loss(mine, x, 1.0)
            job.sync_gradients(divisor=1.0)
            for model, optimizer, done in zip((plain, mine), optimizers, steps, strict=True):
                done.append(finish(model, optimizer))
    zero = [name for name, one in steps[0][2].gradients.items() if one is not None and not one.any()]
    assert "blocks.2.scale" in zero
    assert_equal_steps(steps[1], steps[0])


@pytest.mark.parametrize("size", [1, 3])
def test_reduced_unused_parameters(size: int) -> None:
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        pytest.skip("this torch has no set_reduce_scatter_unused_params")
    run_torch_ranks(size, reduced_unused)


def pending(rank: int, size: int) -> None:
    minibatches = [[(4, 3, 5)[(rank + step) % 3] for rank in range(size)] for step in range(3)]
    for case in (Case(), Case(Routed)):
        expected = by_one_process(case, minibatches)
        assert_equal_steps(over_odc(case, mesh_of(size), minibatches, run_pending), expected)


@pytest.mark.parametrize("size", [1, 3])
def test_pending_gradients(size: int) -> None:
    run_torch_ranks(size, pending)


def others(rank: int, size: int) -> None:
    """A minibatch that uses one block leaves the .grad of all other parameters as it is, bit by bit."""
    model = Case().sharded(mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(3, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    with attach(model, optimizer, timeout=LIMIT) as job:
        for used in (model.blocks[1], model.blocks[0]):
            kept = {name: torch.randn_like(one) for name, one in model.named_parameters()}
            mine = {id(parameter) for parameter in used.parameters()}
            for name, parameter in model.named_parameters():
                parameter.grad = None if id(parameter) in mine else kept[name].clone()
            used(x).sum().backward()
            job.sync_gradients()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                same = torch.equal(parameter.grad.to_local(), kept[name].to_local())
                assert same != (id(parameter) in mine) or parameter.grad.to_local().numel() == 0, name
            optimizer.step()


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_of_other_groups_stay(size: int) -> None:
    run_torch_ranks(size, others)


def divided(rank: int, size: int) -> None:
    """The divisor of the sums, and the report of sync_gradients. Three microbatches, none on rank 0."""
    counts = (3,) if size == 1 else (0, *(2, 1)[: size - 1])
    tokens = [7.5 * r for r in range(size)] if size > 1 else [4.0]
    model = Case().sharded(mesh_of(size))
    model.set_gradient_divide_factor(1.0)
    model.blocks[1].set_gradient_divide_factor(5.0)
    one = Case().model()
    for r, count in enumerate(counts):
        for x in samples(0, r, count):
            square_loss(one, x, 1.0)
    sums = {name: parameter.grad.clone() for name, parameter in one.named_parameters()}

    def factor(name: str) -> float:
        """By group: the user's, else plain FSDP2's."""
        return size if name.startswith("blocks.0") else 5.0 if name.startswith("blocks.1") else 1.0

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for arguments, divisor, expected in (
            ({}, None, factor),
            ({"divisor": 2.5}, 2.5, lambda name: 2.5),
            ({"divisor": -2}, -2.0, lambda name: -2.0),
            ({"weight": tokens[rank]}, sum(tokens), lambda name: sum(tokens)),
            ({"weight": 0}, 1.0, lambda name: 1.0),  # no divisor
        ):
            run_microbatches(Case(), model, 0, counts)
            summed = [("b", torch.tensor(rank + 0.5)), ("a", 2 * rank)]
            report = job.sync_gradients(**arguments, sums=dict(summed if rank == 0 else summed[::-1]))
            assert report.divisor == divisor and report.microbatches == list(counts)
            assert report.sums == {"a": size * (size - 1), "b": size * size / 2}
            assert report.waited_s >= 0 and report.slowest in range(size)
            for name, gradient in whole_gradients(model).items():
                assert gradient is not None
                assert_near(gradient, sums[name] / expected(name), 1e-12, f"{arguments}: {name}")
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("size", [1, 3])
def test_divisors(size: int) -> None:
    run_torch_ranks(size, divided)


def factor_as_plain(rank: int, size: int) -> None:
    """With equal counts a factor set before attach has the same effect as in plain FSDP2."""

    def shard(model: Any, mesh: DeviceMesh) -> None:
        shard_blocks(model, mesh)
        for factor, module in enumerate(fsdp_modules(model)):
            module.set_gradient_divide_factor(1.0 + factor)

    def prepare(model: nn.Module) -> None:
        for module in fsdp_modules(model):
            module.set_force_sum_reduction_for_comms(True)

    case, minibatches = Case(shard=shard), [(2,) * size] * 2
    plain = by_plain_fsdp2(case, mesh_of(size), minibatches, prepare, lambda model, divisor: None)
    mine = over_odc(case, mesh_of(size), minibatches, sync=lambda job, counts: job.sync_gradients())
    assert_equal_steps(mine, plain)


def test_gradient_divide_factor_as_in_plain_fsdp2() -> None:
    run_torch_ranks(2, factor_as_plain)


def disjoint(rank: int, size: int) -> None:
    model = Case().sharded(mesh_of(size))
    x = torch.ones(2, 13, dtype=torch.float64)
    with attach(model, adamw(model), timeout=LIMIT) as job:
        for used in (0, 1, 0):
            model.blocks[used](x).sum().backward()
        assert job.sync_gradients(divisor=1.0).microbatches == [2] * size


def test_microbatches_are_those_of_the_parameter_with_most() -> None:
    run_torch_ranks(2, disjoint)


class Wide(nn.Module):
    """Its weights are large enough to be divided one by one, its biases are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(7, 500)
        self.blocks = nn.ModuleList([nn.Linear(500, 500)])
        self.last = nn.Linear(500, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks[0](self.first(x)).sin())


def wide(rank: int, size: int) -> None:
    case, minibatches = Case(Wide), [(2,) * size] * 2
    assert_equal_steps(over_odc(case, mesh_of(size), minibatches), by_one_process(case, minibatches))


def test_large_and_small_gradients() -> None:
    run_torch_ranks(2, wide)


def anywhere(rank: int, size: int, bulks: dict[str, Any], layout: Callable[[Tensor], Tensor]) -> None:
    """The sync writes into the .grad that is there, however it lies in memory, and autograd knows that it did. `bulks`:
    attributes of the module bulk."""
    for name, value in bulks.items():
        setattr(bulk, name, value)
    model, alike = Case().sharded(mesh_of(size)), Case().sharded(mesh_of(size))
    copies: Any = {"timeout": LIMIT, "gradients": "copy"}
    with attach(model, adamw(model), **copies) as job, attach(alike, adamw(alike), **copies) as other:
        for one in (model, alike):
            run_microbatches(Case(), one, 0, (1,) * size)
        with torch.no_grad():
            gradients = [cast(Any, parameter.grad).to_local() for parameter in model.parameters()]
        for gradient in gradients:
            gradient.data = layout(gradient)
        factors = [torch.ones_like(one, requires_grad=True) for one in gradients]
        products = [factor * one for factor, one in zip(factors, gradients, strict=True)]
        job.sync_gradients(divisor=3.0)
        other.sync_gradients(divisor=3.0)
        for product in products:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.sum().backward()
        expected = whole_gradients(alike)
        for name, found in whole_gradients(model).items():
            assert found is not None
            assert_near(found, expected[name], 1e-12, name)


@pytest.mark.parametrize("layout", [torch.clone, transposed])
@pytest.mark.parametrize(
    "bulks", [{"_LARGE": 1}, {}, {"_describer": None}], ids=["torch divides", "small", "torch 2.9"]
)
def test_gradients_are_written_where_they_are(bulks: dict[str, Any], layout: Callable[[Tensor], Tensor]) -> None:
    run_torch_ranks(2, anywhere, bulks, layout)


def steps_again(rank: int, size: int) -> None:
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for minibatch in range(2):
            model(sample(minibatch, rank, 0)).square().sum().backward()
            job.sync_gradients()
            optimizer.step()
            with warnings_logged() as warned:
                optimizer.step()
            assert [line for line in warned if "changes nothing" in line] == warned
            assert len(warned) == (1 if rank == 0 and minibatch == 0 else 0)
            optimizer.zero_grad()


def test_a_second_step_is_warned_of() -> None:
    run_torch_ranks(2, steps_again)
