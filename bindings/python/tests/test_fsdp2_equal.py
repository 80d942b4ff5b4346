# SPDX-License-Identifier: Apache-2.0
"""Training over ODC equals training by one process and by plain FSDP2, whichever ranks are fast or slow."""

from typing import Any

import pytest
from fsdp2_models import (
    UNEVEN,
    Case,
    Net,
    assert_equal_steps,
    by_one_process,
    by_plain_fsdp2,
    fsdp_modules,
    mesh_of,
    over_odc,
    run_asleep,
    run_blocked,
    sum_exactly,
    whole,
)
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_ranks import dist, run_torch_ranks, torch

from libodc.torch.fsdp2 import attach

SIZES = [1, 2, 3, 4]


def equal_counts(rank: int, size: int) -> None:
    """Without any argument the result is that of plain FSDP2 without any setting."""
    minibatches = [(2,) * size] * 3

    def prepare(model: nn.Module) -> None:
        for module in fsdp_modules(model):
            module.set_force_sum_reduction_for_comms(True)

    plain = by_plain_fsdp2(Case(), mesh_of(size), minibatches, prepare, divide=lambda model, divisor: None)
    mine = over_odc(Case(), mesh_of(size), minibatches, sync=lambda job, counts: job.sync_gradients())
    assert_equal_steps(mine, plain)
    assert_equal_steps(mine, by_one_process(Case(), minibatches, divisors=[size] * 3))


@pytest.mark.parametrize("size", SIZES)
def test_equal_counts(size: int) -> None:
    run_torch_ranks(size, equal_counts)


def uneven_counts(rank: int, size: int) -> None:
    mesh, case = mesh_of(size), Case()
    expected = by_one_process(case, UNEVEN[size])
    assert_equal_steps(by_plain_fsdp2(case, mesh, UNEVEN[size]), expected)
    for run in (run_blocked, run_asleep):
        steps = over_odc(case, mesh, UNEVEN[size], run)
        assert_equal_steps(steps, expected)
        norms: list[float] = [0.0] * size
        dist.all_gather_object(norms, [step.norm.item() for step in steps])
        assert all(norm == norms[0] for norm in norms)  # by bits


@pytest.mark.parametrize("size", SIZES)
def test_uneven_counts_and_no_collective_within_a_minibatch(size: int) -> None:
    run_torch_ranks(size, uneven_counts)


class Sums(nn.Module):
    """Gradients are sums of products of the inputs, so integers if those are."""

    WIDTHS = (5, 3, 9)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(7, width) for width in self.WIDTHS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([block(x) for block in self.blocks], dim=1)


def integers_of_a_type(mesh: Any, dtype: torch.dtype, policy: MixedPrecisionPolicy) -> None:
    rank = mesh.get_rank()
    model = Sums().to(dtype)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    generator = torch.Generator().manual_seed(rank)
    weights, biases = torch.zeros(17, 7, dtype=torch.int64), torch.zeros(17, dtype=torch.int64)
    with attach(model, torch.optim.SGD(model.parameters(), lr=0.5), timeout=30) as job:
        for _ in range(1 + rank):
            x = torch.randint(-2, 3, (4, 7), generator=generator)
            v = torch.randint(-2, 3, (4, 17), generator=generator)
            (model(x.to(dtype)) * v).sum().backward()
            weights += v.t() @ x
            biases += v.sum(0)
        job.sync_gradients(divisor=1.0)
        dist.all_reduce(weights)
        dist.all_reduce(biases)
        parts = zip(weights.split(Sums.WIDTHS), biases.split(Sums.WIDTHS), strict=True)
        for block, expected in zip(model.blocks, parts, strict=True):
            for parameter, sums in zip(block.parameters(), expected, strict=True):
                assert parameter.grad is not None and parameter.grad.dtype == dtype
                assert torch.equal(whole(parameter.grad), sums.to(dtype)), (dtype, policy)


def integers(rank: int, size: int) -> None:
    mesh = mesh_of(size)
    low = [torch.bfloat16, torch.float16]
    for dtype in (torch.float64, torch.float32, *low):
        integers_of_a_type(mesh, dtype, MixedPrecisionPolicy())
    for dtype in low:
        for reduced in (None, torch.float32):
            integers_of_a_type(mesh, torch.float32, MixedPrecisionPolicy(dtype, reduced))


@pytest.mark.parametrize("size", [1, 3])
def test_integer_gradients_are_equal_by_bits(size: int) -> None:
    run_torch_ranks(size, integers)


def recording(mesh: Any, policy: MixedPrecisionPolicy, seen: list[torch.Tensor]) -> nn.Module:
    """A model that records in `seen` what it gathered, in forward and in backward."""

    def note(module: nn.Module, *_: Any) -> None:
        seen.extend(p.detach().clone() for p in module.parameters() if type(p) is nn.Parameter)

    model = Net().float()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
        module.register_forward_pre_hook(note)
        module.register_full_backward_pre_hook(note)
    return model


def gathers(rank: int, size: int) -> None:
    """The same shards in a plain and in an attached model."""
    mesh = mesh_of(size)
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
        seen: dict[str, list[torch.Tensor]] = {"plain": [], "mine": []}

        plain, mine = recording(mesh, policy, seen["plain"]), recording(mesh, policy, seen["mine"])
        sum_exactly(plain)
        optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-2)
        with attach(mine, optimizer, timeout=30) as job:
            for minibatch in range(2):
                for theirs, parameter in zip(plain.parameters(), mine.parameters(), strict=True):
                    theirs.detach().to_local().copy_(parameter.detach().to_local())
                for _ in range(2):
                    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(100 * minibatch + rank))
                    for model in (plain, mine):
                        model(x).float().square().sum().backward()
                job.sync_gradients()
                optimizer.step()
                mine.zero_grad()
        assert len(seen["mine"]) == len(seen["plain"]) > 40
        assert all(torch.equal(a, b) for a, b in zip(seen["plain"], seen["mine"], strict=True))


def test_gathered_parameters_equal_those_of_plain_fsdp2_by_bits() -> None:
    run_torch_ranks(3, gathers)
