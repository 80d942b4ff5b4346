# SPDX-License-Identifier: Apache-2.0
"""One parameter in several FSDP groups: tied after fully_shard, as in transformers. Its gradient is the sum over all of
them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Step,
    adamw,
    assert_equal_steps,
    by_one_process,
    by_plain_fsdp2,
    finish,
    mesh_of,
    over_odc,
    run_microbatches,
    run_pending,
    sample,
    whole_gradients,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch.fsdp2 import attach, gradients

Tensor = torch.Tensor
SIZES = [1, 2, 3]


class Tied(nn.Module):
    """One weight at both ends."""

    def __init__(self, width: int = 11) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Linear(7, width, bias=False)
        self.blocks = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.out = nn.Linear(7, width, bias=False)
        self.parts = 2  # of the model that run: without the first, only the last of the groups takes part
        self.out.weight = self.table.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(x) if self.parts == 2 else x.new_ones(len(x), self.out.out_features)
        for block in self.blocks:
            y = y + block(y)
        return self.out(x) * y


class Thrice(Tied):
    """A third group has the parameter, too."""

    def __init__(self, width: int = 11) -> None:
        super().__init__(width)
        self.again = nn.Linear(7, width, bias=False).double()
        self.again.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.again(x[:, [1, 2, 3, 4, 5, 6, 0]])


def shard_and_tie(model: Any, mesh: DeviceMesh, **options: Any) -> None:
    """`table` in a group of its own, `out` in the root's, and tied only now. Plain FSDP2 trains that, too."""
    others = [model.again] if isinstance(model, Thrice) else []
    for other in (model.out, *others):  # they were tied for one process; now each group has a parameter of its own
        other.weight = nn.Parameter(model.table.weight.detach().clone())
    for module in (model.table, *model.blocks, *others, model):
        fully_shard(module, mesh=mesh, **options)
    for other in (model.out, *others):
        other.weight = model.table.weight


def clear_to_zero(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


def keep(optimizer: torch.optim.Optimizer) -> None:
    """The next sync overwrites what this one has filled."""


def equal(rank: int, size: int) -> None:
    for case in (
        Case(Tied, shard_and_tie),
        Case(Thrice, shard_and_tie),
        Case(Tied, shard_and_tie, clear=clear_to_zero),
        Case(Tied, partial(shard_and_tie, reshard_after_forward=False)),
        Case(Tied, partial(shard_and_tie, offload_policy=CPUOffloadPolicy(pin_memory=False))),
    ):
        expected = by_one_process(case, UNEVEN[size])
        for run in (run_microbatches, run_pending):
            assert_equal_steps(over_odc(case, mesh_of(size), UNEVEN[size], run, check=True), expected)
    # Where the parameter is padded, plain FSDP2 (torch 2.13) keeps gathering the values from before the first step.
    for model in (partial(Tied, 12), partial(Thrice, 12)):
        case = Case(model, shard_and_tie)
        plain = by_plain_fsdp2(case, mesh_of(size), UNEVEN[size])
        assert_equal_steps(over_odc(case, mesh_of(size), UNEVEN[size], check=True), plain)
        assert_equal_steps(plain, by_one_process(case, UNEVEN[size]))


@pytest.mark.parametrize("size", SIZES)
def test_equals_one_process_and_plain_fsdp2(size: int) -> None:
    run_torch_ranks(size, equal)


def small(rank: int, size: int) -> None:
    """An embedding in a group, the head in the root's, and every rank with the same microbatch."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.emb = nn.Embedding(11, 16)
            self.layers = nn.ModuleList([nn.Linear(16, 16)])
            self.out = nn.Linear(16, 11, bias=False)
            self.double()

        def forward(self, i: Tensor) -> Tensor:
            return self.out(self.layers[0](self.emb(i)))

    model, mesh = Small(), mesh_of(size)
    for module in (model.emb, model.layers[0], model):
        fully_shard(module, mesh=mesh)
    model.out.weight = model.emb.weight
    words = torch.arange(11).view(1, -1)
    with attach(model, torch.optim.SGD(model.parameters(), lr=0.1), timeout=LIMIT) as job:
        model(words).square().sum().backward()
        job.sync_gradients()
        alone = Small()
        alone.out.weight = alone.emb.weight
        alone(words).square().sum().backward()
        for name, gradient in whole_gradients(model).items():
            torch.testing.assert_close(gradient, alone.get_parameter(name).grad, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("size", SIZES)
def test_an_embedding_and_a_head(size: int) -> None:
    run_torch_ranks(size, small)


def one_of_the_groups(rank: int, size: int, clear: Callable[[torch.optim.Optimizer], None]) -> None:
    """In some minibatches, and on some ranks, only one of a parameter's groups takes part, or none."""
    model, alone = Case(Tied, shard_and_tie).sharded(mesh_of(size)), Tied()
    optimizer, other = adamw(model), adamw(alone)
    parts = [(1,) * size, (0,) * size, tuple(1 + r % 2 for r in range(size)), (2,) * size]
    steps: list[list[Step]] = [[], []]
    with attach(model, optimizer, timeout=LIMIT, gradients="copy") as job:
        for minibatch, of_ranks in enumerate(parts):
            if clear is keep:
                alone.zero_grad(set_to_none=False) if any(of_ranks) else None
            for peer, part in enumerate(of_ranks):
                for one in [alone, model] if peer == rank else [alone]:
                    one.parts = part
                    if part:
                        one(sample(minibatch, peer, 0)).square().sum().backward()
            job.sync_gradients(divisor=1.0)
            steps[0].append(finish(model, optimizer, clear))
            steps[1].append(finish(alone, other, clear))
    assert_equal_steps(steps[0], steps[1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clear", [torch.optim.Optimizer.zero_grad, clear_to_zero])
def test_only_one_of_the_groups_takes_part(clear: Callable[[torch.optim.Optimizer], None], size: int) -> None:
    run_torch_ranks(size, one_of_the_groups, clear)


def not_cleared(rank: int, size: int) -> None:
    """A loop that never clears: each sync overwrites, and the groups' parts are added anew."""
    model = Case(Tied, shard_and_tie).sharded(mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for minibatch in range(3):
            for index in range(2):
                model(sample(minibatch, rank, index)).square().sum().backward()
            job.sync_gradients(divisor=1.0)
            alone = Tied()
            for peer in range(size):
                for index in range(2):
                    alone(sample(minibatch, peer, index)).square().sum().backward()
            torch.testing.assert_close(
                whole_gradients(model)["table.weight"], alone.table.weight.grad, rtol=1e-12, atol=1e-12
            )
            optimizer.step()


@pytest.mark.parametrize("size", SIZES)
def test_gradients_that_are_never_cleared(size: int) -> None:
    run_torch_ranks(size, not_cleared)


def frozen(rank: int, size: int) -> None:
    """The shared parameter is frozen: nothing but the others is trained."""

    def shard(model: Any, mesh: DeviceMesh) -> None:
        model.table.weight.requires_grad_(False)
        shard_and_tie(model, mesh)

    def model() -> Any:
        made = Tied()
        made.table.weight.requires_grad_(False)
        return made

    case = Case(model, shard)
    expected = by_one_process(case, UNEVEN[size])
    assert_equal_steps(over_odc(case, mesh_of(size), UNEVEN[size], check=True), expected)


@pytest.mark.parametrize("size", SIZES)
def test_frozen(size: int) -> None:
    run_torch_ranks(size, frozen)


def low_precision(rank: int, size: int) -> None:
    """Small integers, which every type holds: gradients are equal by bits."""

    def prepare(model: Any) -> Any:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.fill_(0.0 if "blocks" in name else 1.0)
        return model

    model, alone = prepare(Tied().float()), prepare(Tied().float())
    shard_and_tie(model, mesh_of(size), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    with attach(model, torch.optim.SGD(model.parameters(), lr=0.0), timeout=LIMIT, check=True) as job:
        for one in (model, alone):
            one(torch.ones(1, 7)).sum().backward()
        job.sync_gradients(divisor=1.0)
        gradient = whole_gradients(model)["table.weight"]
        assert gradient is not None and alone.table.weight.grad is not None
        assert torch.equal(gradient, size * alone.table.weight.grad)


@pytest.mark.parametrize("size", SIZES)
def test_mixed_precision(size: int) -> None:
    run_torch_ranks(size, low_precision)


def overwritten(rank: int, size: int) -> None:
    """check=True compares each .grad as the optimizer uses it: it fails where one group's sums replace another's."""
    model = Case(Tied, shard_and_tie).sharded(mesh_of(size))
    job = attach(model, adamw(model), timeout=LIMIT, check=True)
    model(sample(0, rank, 0)).square().sum().backward()
    gradients.come_again = lambda *_: {}
    with pytest.raises(libodc.InternalError, match=r'"table.weight" in FSDP group "\(root\)" and "table" by'):
        job.sync_gradients(divisor=2.0)
    job.remove()


@pytest.mark.parametrize("size", SIZES)
def test_check_compares_each_gradient_with_plain_fsdp2(size: int) -> None:
    run_torch_ranks(size, overwritten)


def different_factors(rank: int, size: int) -> None:
    model = Case(Tied, shard_and_tie).sharded(mesh_of(size))
    model.table.set_gradient_divide_factor(5.0)
    with pytest.raises(
        libodc.UnsupportedError, match=r'"table.weight" is in FSDP groups .* divided by . and 5: call set_'
    ):
        attach(model, adamw(model), timeout=LIMIT)


@pytest.mark.parametrize("size", SIZES)
def test_groups_with_different_factors_are_refused(size: int) -> None:
    run_torch_ranks(size, different_factors)
