# SPDX-License-Identifier: Apache-2.0
"""FSDP2's options, trained over ODC: equal to one process and to plain FSDP2, while every rank but one is blocked until
that one has finished all its microbatches."""

from functools import partial
from typing import Any

import pytest
from fsdp2_models import (
    UNEVEN,
    Block,
    Case,
    Net,
    adamw,
    assert_equal_steps,
    by_one_process,
    by_plain_fsdp2,
    mesh_of,
    over_odc,
    run_blocked,
    shard_blocks,
    square_loss,
)
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint
from torch_ranks import run_torch_ranks, torch

Tensor = torch.Tensor


def shard_nested(model: Any, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        fully_shard(block.up, mesh=mesh)
    shard_blocks(model, mesh)


def shard_pair(model: Any, mesh: DeviceMesh) -> None:
    """The root has no parameters of its own."""
    fully_shard([model.first, model.last], mesh=mesh)
    shard_blocks(model, mesh)


def shard_root_only(model: Any, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)


def shard_columns(model: Any, mesh: DeviceMesh) -> None:
    def placement(parameter: nn.Parameter) -> Shard | None:
        return Shard(1) if parameter.ndim == 2 and parameter.size(1) % 12 == 0 else None

    shard_blocks(model, mesh, shard_placement_fn=placement)


def shard_compiled(model: Any, mesh: DeviceMesh) -> None:
    for block in model.blocks:
        block.compile(backend="aot_eager")
    shard_blocks(model, mesh)


def shard_checkpointed(model: Any, mesh: DeviceMesh) -> None:
    """A group holds the checkpointed block."""
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block, CheckpointImpl.NO_REENTRANT)
    shard_blocks(model, mesh)


def shard_checkpointed_and_compiled(model: Any, mesh: DeviceMesh) -> None:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block, CheckpointImpl.NO_REENTRANT)
        model.blocks[index].compile(backend="aot_eager")
    shard_blocks(model, mesh)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 13)
        self.blocks = nn.ModuleList(Block(13) for _ in range(2))
        self.head = nn.Linear(13, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding((x * 100).long().remainder(11))
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def partly_frozen() -> Net:
    """One group has nothing to train, another something."""
    model = Net()
    model.blocks[0].requires_grad_(False)
    model.first.weight.requires_grad_(False)
    model.blocks[1].up.bias.requires_grad_(False)
    return model


class Recomputed(Net):
    """A checkpoint holds the group, so that it is gathered anew inside the recomputation."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.last(x)


class Twice(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            x = block(x)
        return self.last(x)


def two_backwards(model: Any, x: Tensor, weight: float) -> None:
    """The second goes through the graph of the first again."""
    y = model(x)
    (y.sum() * weight).backward(retain_graph=True)
    (y.square().sum() * weight).backward()


def shard_without_root(model: Any, mesh: DeviceMesh) -> None:
    for module in (model.first, *model.blocks, model.last):
        fully_shard(module, mesh=mesh)


def shard_prefetching(model: Any, mesh: DeviceMesh) -> None:
    shard_blocks(model, mesh)
    model.set_modules_to_forward_prefetch([model.blocks[0], model.blocks[1]])
    model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0]])


def shard_kept_after_backward(model: Any, mesh: DeviceMesh) -> None:
    shard_blocks(model, mesh)
    model.set_reshard_after_backward(False)


def unsharded_early(model: Any, x: Tensor, weight: float) -> None:
    if isinstance(model, FSDPModule):
        model.unshard(async_op=True)
        model.blocks[0].unshard()
    square_loss(model, x, weight)


def looks_twice(model: Any, x: Tensor, weight: float) -> None:
    """A forward without a backward."""
    model(x)
    square_loss(model, x, weight)


class Quantised(Net):
    """Frozen integers, in a group of their own and beside others, and parameters of a single element."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.ModuleList([Integers(13)])
        self.blocks.append(Integers(13))
        self.blocks[0] = nn.Sequential(self.blocks[0], Integers(13))
        self.factor = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) * self.factor
        for block in (*self.blocks, *self.table):
            x = block(x)
        return self.last(x)


class Integers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-9, 9, (width,), dtype=torch.int8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight / 10


CASES = {
    "blocks": Case(),
    "nested": Case(shard=shard_nested),
    "two modules in a group": Case(shard=shard_pair),
    "root only": Case(shard=shard_root_only),
    "tied": Case(model=Tied),
    "frozen": Case(model=partly_frozen),
    "kept after forward": Case(shard=partial(shard_blocks, reshard_after_forward=False)),
    "columns": Case(model=partial(Net, 12), shard=shard_columns),
    "offloaded": Case(shard=partial(shard_blocks, offload_policy=CPUOffloadPolicy(pin_memory=False))),
    "checkpointed": Case(shard=shard_checkpointed),
    "recomputed": Case(model=partial(Recomputed, False)),
    "recomputed by reentrance": Case(model=partial(Recomputed, True)),
    "called twice": Case(model=Twice),
    "without root": Case(shard=shard_without_root),
    "prefetching": Case(shard=shard_prefetching),
    "kept after backward": Case(shard=shard_kept_after_backward),
    "unsharded early": Case(microbatch=unsharded_early),
    "forward alone": Case(microbatch=looks_twice),
    "quantised": Case(Quantised),
    "two backwards": Case(microbatch=two_backwards, backwards=2),
}
COMPILED = {  # slow
    "compiled": Case(shard=shard_compiled),
    "checkpointed and compiled": Case(shard=shard_checkpointed_and_compiled),
}


def skip_what_torch_lacks(name: str) -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if name == "quantised" and version < (2, 13):
        pytest.skip(f"the fully_shard of torch {torch.__version__} may take no integers; that of 2.11 does not")


def configured(rank: int, size: int, name: str) -> None:
    mesh, case = mesh_of(size), (CASES | COMPILED)[name]
    expected = by_one_process(case, UNEVEN[size])
    if name in CASES:
        assert_equal_steps(by_plain_fsdp2(case, mesh, UNEVEN[size]), expected)
    assert name not in COMPILED or not torch._dynamo.utils.counters["frames"]["ok"]
    for options in ({}, {"parameters": "copy", "gradients": "copy"}):
        assert_equal_steps(over_odc(case, mesh, UNEVEN[size], run_blocked, **options), expected)
    assert name not in COMPILED or torch._dynamo.utils.counters["frames"]["ok"]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str, size: int) -> None:
    skip_what_torch_lacks(name)
    run_torch_ranks(size, configured, name)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    run_torch_ranks(2, configured, name)


def compiled_adamw(model: Any) -> torch.optim.Optimizer:
    optimizer = adamw(model)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
    return optimizer


def steps_compiled(rank: int, size: int) -> None:
    mesh, case = mesh_of(size), Case()
    results = []
    for options in ({}, {"parameters": "copy", "gradients": "copy"}):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        results.append(over_odc(case, mesh, UNEVEN[size], optimized=compiled_adamw, **options))
        assert torch._dynamo.utils.counters["frames"]["ok"]
        assert not [one for one in torch._dynamo.utils.counters["graph_break"] if "libodc" in one or "ctypes" in one]
    assert_equal_steps(results[1], results[0])
    # A compiled step computes its factors in f32.
    assert_equal_steps(results[0], by_one_process(case, UNEVEN[size]), tolerance=1e-3)


def test_compiled_step() -> None:
    run_torch_ranks(2, steps_compiled)


def halves(rank: int, size: int) -> None:
    """Two models, each over half of the ranks, with their own counts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("half", "rank"))
    minibatches = [list(reversed(counts)) if rank < 2 else counts for counts in UNEVEN[2]]
    expected = by_one_process(Case(), minibatches)
    assert_equal_steps(over_odc(Case(), mesh["rank"], minibatches), expected)


def test_a_mesh_of_some_ranks() -> None:
    run_torch_ranks(4, halves)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(7) for _ in range(2))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


def tensor_parallel(rank: int, size: int) -> None:
    """Pairs of ranks divide each block, and run the same microbatches."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))

    def shard(model: Any, mesh: DeviceMesh) -> None:
        for block in model.blocks:
            parallelize_module(block, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        shard_blocks(model, mesh)

    tensor, case = mesh["tensor"], Case(Blocks, shard)
    expected = by_one_process(case, UNEVEN[2])
    assert_equal_steps(by_plain_fsdp2(case, mesh["data"], UNEVEN[2]), expected)
    assert_equal_steps(over_odc(case, mesh["data"], UNEVEN[2]), expected)


def test_tensor_parallelism_inside() -> None:
    run_torch_ranks(4, tensor_parallel)
