# SPDX-License-Identifier: Apache-2.0
"""Low precision and mixed types, within a tolerance that is derived.

Each microbatch's gradient g is computed alone, by one process, from the parameters that the ranks hold, by the same
operations and so to the same bits, and rounded to the type in which it is reduced. ODC adds n of them in f32 (f64 for
f64) in an order of its own: the sum is at most (n - 1) u sum|g| away from the exact one, u being half the type's
epsilon. One division and one rounding to the type of .grad add their u each. On a single rank FSDP2 adds in .grad.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Counts,
    Net,
    finish,
    gathers_checked,
    mesh_of,
    run_blocked,
    run_pending,
    samples,
    total,
    whole_gradients,
    whole_parameters,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_ranks import run_torch_ranks, torch

from libodc.torch.fsdp2 import attach

Tensor = torch.Tensor
Run = Callable[[Case, Any, int, Counts], None]
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


class Adapter(nn.Module):
    """A frozen bf16 base with trainable f32 parameters of low rank beside it, in one group."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, dtype=BF16).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(3, width) / 5)
        self.up = nn.Parameter(torch.randn(width, 3) / 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x.bfloat16()).float() + x @ self.down.t() @ self.up.t())


class Adapted(Net):
    def __init__(self) -> None:
        super().__init__()
        self.float()
        self.blocks = nn.ModuleList(Adapter(13) for _ in range(2))


def net(dtype: torch.dtype) -> nn.Module:
    return Net().to(dtype)


@dataclass(frozen=True)
class Typed:
    model: Any
    samples: torch.dtype
    computed: torch.dtype | None = None  # as in MixedPrecisionPolicy
    reduced: torch.dtype | None = None
    returned: torch.dtype | None = None

    @property
    def added(self) -> torch.dtype:
        return F64 if self.samples == F64 and self.reduced is None else F32

    def shard(self, model: Any, mesh: DeviceMesh) -> None:
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(self.computed, self.reduced))
        root = MixedPrecisionPolicy(self.computed, self.reduced, self.returned)
        fully_shard(model, mesh=mesh, mp_policy=root)

    def case(self) -> Case:
        def microbatch(model: Any, x: Tensor, weight: float) -> None:
            (model(x.to(self.samples)).square().sum() * weight).backward()

        return Case(self.model, self.shard, microbatch)

    def alone(self, parameters: dict[str, Tensor]) -> nn.Module:
        """What one process computes with, given whole parameters."""
        model: nn.Module = self.case().made()
        model.load_state_dict(parameters)
        return model if self.computed is None else model.to(self.computed)

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        y = model(x.to(self.samples if self.computed is None else self.computed))
        return y.to(self.returned or y.dtype).square().sum()


TYPES = {
    "bf16": Typed(partial(net, BF16), BF16),
    "f16": Typed(partial(net, F16), F16),
    "f32 by bf16, reduced in f32": Typed(partial(net, F32), F32, BF16, F32),
    "f32 by bf16, reduced in f32, f32 returned": Typed(partial(net, F32), F32, BF16, F32, F32),
    "f32 by bf16": Typed(partial(net, F32), F32, BF16),
    "f32 by f16, reduced in f16": Typed(partial(net, F32), F32, F16, F16),
    "f32 reduced in f16": Typed(partial(net, F32), F32, None, F16),
    "f64 reduced in f32": Typed(partial(net, F64), F64, None, F32),
    "f32 beside frozen bf16": Typed(Adapted, F32),
}


def u(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def assert_within_tolerance(typed: Typed, model: Any, start: dict[str, Tensor], minibatch: int, counts: Counts) -> None:
    """`start`: the whole parameters from which the microbatches were run."""
    sums, sizes = one_by_one(typed, start, minibatch, counts)
    divisor = total(counts)
    gradients = whole_gradients(model)
    for name, parameter in model.named_parameters():
        gradient = gradients[name]
        if name not in sums:
            assert gradient is None
            continue
        assert gradient is not None and gradient.dtype == parameter.dtype
        added = parameter.dtype if len(counts) == 1 else typed.added
        bound = (sum(counts) * u(added) + u(parameter.dtype)) * sizes[name] / divisor
        bound += torch.finfo(parameter.dtype).tiny * u(parameter.dtype)  # for subnormal numbers
        error = (gradient.to(F64) - sums[name] / divisor).abs()
        assert bool((error <= bound).all()), f"{name}: {float((error / bound).max())} of the tolerance"
        assert sums[name].abs().max() > 0


def one_by_one(
    typed: Typed, start: dict[str, Tensor], minibatch: int, counts: Counts
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The exact sums of the gradients, and of their absolute values."""
    alone = typed.alone(start)
    sums: dict[str, Tensor] = {}
    sizes: dict[str, Tensor] = {}
    for rank, count in enumerate(counts):
        for x in samples(minibatch, rank, count):
            alone.zero_grad()
            typed.loss(alone, x).backward()
            for name, parameter in alone.named_parameters():
                if parameter.grad is not None:
                    sent = parameter.grad.to(typed.reduced or parameter.dtype).to(F64)
                    sums[name] = sums.get(name, 0) + sent
                    sizes[name] = sizes.get(name, 0) + sent.abs()
    return sums, sizes


def typed_training(rank: int, size: int, name: str, run: Run = run_blocked) -> None:
    typed = TYPES[name]
    case = typed.case()
    model = case.sharded(mesh_of(size))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for minibatch, counts in enumerate(UNEVEN[size]):
            start = whole_parameters(model)
            with gathers_checked(model):
                run(case, model, minibatch, counts)
            job.sync_gradients(divisor=total(counts))
            assert_within_tolerance(typed, model, start, minibatch, counts)
            finish(model, optimizer)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TYPES)
def test_types(name: str, size: int) -> None:
    run_torch_ranks(size, typed_training, name)


def test_pending_gradients_of_mixed_types() -> None:
    run_torch_ranks(3, typed_training, "f32 by bf16, reduced in f32", run_pending)
