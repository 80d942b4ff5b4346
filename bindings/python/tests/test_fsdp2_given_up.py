# SPDX-License-Identifier: Apache-2.0
"""Abandoned microbatches, as in a loop that catches an out-of-memory error and goes on; minibatches dropped at the
request of one rank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    Block,
    Case,
    Net,
    Step,
    adamw,
    assert_equal_steps,
    finish,
    mesh_of,
    named,
    sample,
    total,
    whole_gradients,
)
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import checkpoint
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch.fsdp2 import Job, attach
from libodc.torch.fsdp2.group import Add
from libodc.torch.fsdp2.torch_state import Buffers

Tensor = torch.Tensor
SIZES = [1, 3]
COUNTS = (2, 0, 1)

needs_reset = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="this torch has no way back from an exception in backward"
)


def fail_in_backward(block: Any, when: Callable[[], bool] = lambda: True) -> Any:
    """Runs out of memory in the backward of `block`, when the layers behind it have been reduced. Returns the hook."""

    def fail(gradient: Tensor) -> None:
        if when():
            raise torch.OutOfMemoryError("CUDA out of memory. Says the test")

    return block.register_forward_hook(lambda module, inputs, output: output.register_hook(fail) and None)


@contextmanager
def out_of_memory(block: Any) -> Iterator[None]:
    hook = fail_in_backward(block)
    with pytest.raises(torch.OutOfMemoryError, match="Says the test"):
        yield
    hook.remove()


def assert_gradients(model: Any, alone: Any) -> None:
    for name, gradient in whole_gradients(model).items():
        torch.testing.assert_close(gradient, named(alone)[name].grad, rtol=1e-12, atol=1e-12)


def train(job: Job, model: Any, minibatch: int, counts: Any, rank: int) -> Any:
    for index in range(counts[rank]):
        model(sample(minibatch, rank, index)).square().sum().backward()
    return job.sync_gradients(divisor=total(counts))


def given_up(rank: int, size: int) -> None:
    """One rank's second microbatch fails in the middle: the sync reports it, all ranks drop the minibatch, and later
    ones are as if it had never run."""
    counts = [COUNTS[:size], COUNTS[:size], tuple(reversed(COUNTS[:size]))]
    model, alone = Case().sharded(mesh_of(size)), Net()
    optimizer, other = adamw(model), adamw(alone)
    steps: list[list[Step]] = [[], []]
    with attach(model, optimizer, timeout=LIMIT, check=True) as job:
        for minibatch in range(3):
            if minibatch == 1:
                model(sample(7, rank, 0)).square().sum().backward()
                if rank == 0:
                    with out_of_memory(model.blocks[0]):
                        model(sample(7, rank, 1)).square().sum().backward()
                    with pytest.raises(libodc.PhaseError, match=r"3 FSDP groups have gradients of it.*\(valid=False\)"):
                        job.sync_gradients(weight=2.0)
                # A rank that has failed omits what it does not know.
                report = job.sync_gradients(valid=False) if rank == 0 else job.sync_gradients(weight=1.0)
                assert report.discarded and report.divisor is None
                assert report.microbatches == [2 if r == 0 else 1 for r in range(size)]
                assert all(parameter.grad is None for parameter in model.parameters())
            assert not train(job, model, minibatch, counts[minibatch], rank).discarded
            for peer in range(size):
                for index in range(counts[minibatch][peer]):
                    alone(sample(minibatch, peer, index)).square().sum().backward()
            for parameter in alone.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(total(counts[minibatch]))
            steps[0].append(finish(model, optimizer))
            steps[1].append(finish(alone, other))
    assert_equal_steps(steps[0], steps[1])


@needs_reset
@pytest.mark.parametrize("size", SIZES)
def test_a_backward_that_fails_in_the_middle(size: int) -> None:
    run_torch_ranks(size, given_up)


def no_memory_for_an_input(rank: int, size: int) -> None:
    """The allocation of a reduction's input fails, and another microbatch runs before the sync: FSDP2 then asks for an
    input again, and must get one."""
    asked: list[int] = []
    allocate = Buffers.allocate

    def failing(hook: Buffers, size: Any, **kind: Any) -> Tensor:
        if isinstance(hook, Add):
            asked.append(*size)
            if len(asked) == 3:  # the first group's input and output, and the second one's input
                raise torch.OutOfMemoryError("not enough memory, says the test")
        return allocate(hook, size, **kind)

    model = Case().sharded(mesh_of(size))
    with attach(model, torch.optim.SGD(model.parameters(), lr=0.0), timeout=LIMIT) as job:
        Buffers.allocate = failing  # type: ignore[method-assign]
        with pytest.raises(torch.OutOfMemoryError, match="says the test"):
            model(sample(7, rank, 0)).square().sum().backward()
        model.reset_iter_state()
        model(sample(7, rank, 1)).square().sum().backward()
        Buffers.allocate = allocate  # type: ignore[method-assign]
        assert asked[3:6] == asked[:3] and len(asked) == 9
        assert [size * output for output in asked[4::2]] == asked[3::2] and asked[7] not in asked[:7]
        assert job.sync_gradients(valid=False).discarded
        train(job, model, 0, (1,) * size, rank)


@needs_reset
def test_no_memory_for_the_input_of_a_reduction() -> None:
    run_torch_ranks(2, no_memory_for_an_input)


class InnerCheckpoint(nn.Module):
    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=True) if self.recomputes else self.inner(x)


class Recomputed(nn.Module):
    """Reentrant checkpoints around or inside blocks: each has a backward of its own inside the whole one, and outside
    of them there is nothing to train."""

    def __init__(self, root: bool, inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(InnerCheckpoint(inside) for _ in range(3))
        self.head = nn.Linear(4, 4).requires_grad_(False)
        self.root, self.inside = root, inside
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.through_blocks(x))

    def through_blocks(self, x: Tensor) -> Tensor:
        x.requires_grad_()
        for block in self.blocks:
            x = (block(x) if self.inside else checkpoint(block, x, use_reentrant=True)).tanh()
        return x

    def loss(self, rank: int, index: int) -> Tensor:
        x = torch.full((2, 4), 0.3 + rank - 0.5 * index, dtype=torch.float64)
        return (self(x) if self.root else self.through_blocks(x)).square().sum()


def recomputed(rank: int, size: int, root: bool, inside: bool, failing: int, by_user: bool) -> None:
    """One rank runs out of memory in a recomputation, when the blocks behind it have been reduced."""
    model, mesh = Recomputed(root, inside), mesh_of(size)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    if root:
        fully_shard(model, mesh=mesh)

    def fail(module: nn.Module, inputs: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            raise torch.OutOfMemoryError("CUDA out of memory. Says the test")

    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.0)
    with attach(model, optimizer, timeout=LIMIT) as job:
        for _ in range(2):
            if rank == 0:
                hook = model.blocks[failing].inner.register_forward_pre_hook(fail)
                with pytest.raises(torch.OutOfMemoryError, match="Says the test"):
                    model.loss(rank, 0).backward()
                hook.remove()
                if by_user:
                    for one in [model] if root else model.blocks:
                        one.reset_iter_state()
                    model.loss(rank, 1).backward()
                if failing < 2:  # else nothing has been reduced
                    with pytest.raises(libodc.PhaseError, match=r"has raised before its end.*\(valid=False\)"):
                        job.sync_gradients(divisor=1.0)
            assert job.sync_gradients(valid=rank != 0).discarded
            model.loss(rank, 1).backward()
            job.sync_gradients(divisor=1.0)
            alone = Recomputed(root, inside)
            for peer in range(size):
                alone.loss(peer, 1).backward()
            assert_gradients(model.blocks, alone.blocks)
            model.zero_grad()


@needs_reset
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("root", [True, False])
def test_a_recomputation_that_fails(root: bool, inside: bool) -> None:
    for failing in (0, 2):
        for by_user in (False, True):
            run_torch_ranks(2, recomputed, root, inside, failing, by_user)


class Wide(Net):
    """Its last block is one group of two, of which the first fails before the group is reduced."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(13).double(), nn.Sequential(Block(13), Block(13)).double()])


def not_reduced(rank: int, size: int) -> None:
    """Gradients that autograd has given and FSDP2 has not reduced must not be part of the next reduction."""
    model = Case(Wide).sharded(mesh_of(size))
    model.set_requires_gradient_sync(False)
    with attach(model, torch.optim.SGD(model.parameters(), lr=0.0), timeout=LIMIT) as job:
        for reduced in (False, True):
            model.set_requires_gradient_sync(reduced)
            model(sample(7, rank, 0)).square().sum().backward()  # accumulated, without and with a reduction
            if rank == 0:
                with out_of_memory(model.blocks[1][0]):
                    model(sample(7, rank, 1)).square().sum().backward()
                with pytest.raises(libodc.PhaseError, match="has raised before its end"):
                    job.sync_gradients()
            assert job.sync_gradients(valid=False).discarded
        train(job, model, 0, (1,) * size, rank)
        expected = Wide()
        for peer in range(size):
            (expected(sample(0, peer, 0)).square().sum() / size).backward()
        assert_gradients(model, expected)


@needs_reset
@pytest.mark.parametrize("size", SIZES)
def test_gradients_that_are_not_reduced_are_dropped(size: int) -> None:
    run_torch_ranks(size, not_reduced)


def vetoed(rank: int, size: int) -> None:
    """One rank's veto is enough. Each .grad is what it was: none, cleared to zero, or kept from the last step."""
    model = Case().sharded(mesh_of(size))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.blocks, model.first, model.last)]
    with attach(model, optimizers, timeout=LIMIT) as job:
        for clear in (
            lambda: model.zero_grad(),
            lambda: model.zero_grad(set_to_none=False),
            lambda: None,
        ):
            assert not train(job, model, 0, COUNTS[:size], rank).discarded
            for optimizer in optimizers:
                optimizer.step()
            clear()
            before = whole_gradients(model)
            for _ in range(2):
                for index in range(COUNTS[rank]):
                    model(sample(1, rank, index)).square().sum().backward()
                report = job.sync_gradients(
                    divisor=1.0 + rank, sums={"loss": rank}, maxima={"loss": rank}, valid=rank != size - 1
                )
                assert report.discarded and report.sums == {"loss": size * (size - 1) / 2}
                assert report.maxima == {"loss": size - 1}
                after = whole_gradients(model)
                for name, gradient in before.items():
                    same = gradient is after[name] if gradient is None else torch.equal(gradient, after[name])
                    assert same, (name, gradient, after[name])
            # Stepped or not, the next minibatch is like any other.
            if rank == 0 or clear() is None:
                for optimizer in optimizers:
                    optimizer.step()
        model.zero_grad()
        train(job, model, 2, (1,) * size, rank)
        assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("size", SIZES)
def test_one_rank_drops_the_minibatch(size: int) -> None:
    run_torch_ranks(size, vetoed)


def other_calls(rank: int, size: int) -> None:
    """With a veto other arguments are allowed, but not another call."""
    model = Case().sharded(mesh_of(size))
    with pytest.raises(libodc.MismatchError, match="ended the minibatch with "):
        with attach(model, adamw(model), timeout=LIMIT) as job:
            if rank == 0:
                job.sync_gradients(valid=False)


def test_a_veto_meets_another_call() -> None:
    run_torch_ranks(2, other_calls)


def smaller_batches(rank: int, size: int, accelerate: Any) -> None:
    """A loop restarts with a smaller batch, as in accelerate: with the job still attached it must first drop the
    microbatches that ran."""
    model, tried = Case().sharded(mesh_of(size)), []
    x = torch.cat([sample(0, rank, index) for index in range(2)])
    with attach(model, torch.optim.SGD(model.parameters(), lr=0.0), timeout=LIMIT) as job:
        fail_in_backward(model.blocks[0], lambda: tried == [8])

        @accelerate.utils.find_executable_batch_size(starting_batch_size=8)
        def loop(batch_size: int) -> None:
            if tried:
                with pytest.raises(libodc.PhaseError, match="has raised before its end"):
                    job.sync_gradients(divisor=1.0)
                assert job.sync_gradients(valid=False).discarded
            tried.append(batch_size)
            for part in x.split(batch_size):
                model(part).square().sum().backward()
            job.sync_gradients(divisor=1.0)

        loop()
        assert len(tried) == 2 and tried[1] < tried[0] == 8
        expected = Net()
        for peer in range(size):
            for index in range(2):
                expected(sample(0, peer, index)).square().sum().backward()
        assert_gradients(model, expected)


@needs_reset
@pytest.mark.parametrize("size", SIZES)
def test_a_loop_that_begins_again_with_smaller_batches(size: int) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    run_torch_ranks(size, smaller_batches, accelerate)
