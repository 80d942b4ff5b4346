# SPDX-License-Identifier: Apache-2.0
"""Other processes than ranks. DataLoader workers forked while a model is attached have the model, and nothing of the
job; what goes to a process by torch.multiprocessing leaves its slice."""

import os
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from fsdp2_models import Net, adamw, mesh_of, sample, shard_blocks, square_loss
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2
from libodc.torch.fsdp2 import relocation
from libodc.torch.fsdp2.torch_state import FsdpGroup

MICROBATCHES = 3
COPIES: dict[str, Any] = {"parameters": "copy", "gradients": "copy"}


class Samples(torch.utils.data.Dataset[Any]):
    """Of one rank and minibatch; each with a sum over what the worker sees of the model."""

    def __init__(self, model: Any, minibatch: int, rank: int) -> None:
        self.model, self.minibatch, self.rank = model, minibatch, rank

    def __len__(self) -> int:
        return MICROBATCHES

    def __getitem__(self, index: int) -> Any:
        with open("/proc/self/maps") as maps:
            kept = [line for line in maps if "memfd:odc" in line]
        kept += [name for name in open_files() if "memfd:odc" in name]
        if torch.utils.data.get_worker_info() is None or kept:
            raise RuntimeError(f"not in a worker, or the worker keeps {kept}")
        return sample(self.minibatch, self.rank, index), local_sum(self.model)


def open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            yield os.readlink(f"/proc/self/fd/{number}")


def local_sum(model: Any) -> float:
    """Of the local shards, and of their gradients where there are some."""
    locals = [one.detach().to_local() for one in model.parameters()]
    locals += [one.grad.to_local() for one in model.parameters() if one.grad is not None]
    return float(sum(one.sum() for one in locals))


def seen_by_workers(model: Any, minibatch: int, rank: int) -> Iterator[Any]:
    """The microbatches; the workers see the model as it was when they were forked."""
    loader = torch.utils.data.DataLoader(
        Samples(model, minibatch, rank), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    expected = local_sum(model)
    for x, seen in loader:
        assert seen == expected
        yield x


def trained(rank: int, size: int, living: dict[str, Any]) -> None:
    model = Net()
    shard_blocks(model, mesh_of(size))
    optimizer = adamw(model)
    with fsdp2.attach(model, optimizer, **living) as job:
        for minibatch in range(3):
            for x in seen_by_workers(model, minibatch, rank):
                square_loss(model, x, 1.0 / (size * MICROBATCHES))
            job.sync_gradients()
            if minibatch == 1:
                with torch.inference_mode():  # an evaluation
                    list(torch.utils.data.DataLoader([0], num_workers=1, multiprocessing_context="fork"))
            assert sum(1 for _ in seen_by_workers(model, minibatch, rank)) == MICROBATCHES  # and its gradients
            assert all(one.grad is not None for one in model.parameters())
            optimizer.step()


@pytest.mark.parametrize("living", [COPIES, {}], ids=["copies", "slices and views"])
def test_workers_forked_while_attached(living: dict[str, Any]) -> None:
    run_torch_ranks(2, trained, living)


def handed_over(rank: int, size: int) -> None:
    trained = []
    for living in (COPIES, {}):
        torch.manual_seed(0)
        model = Net()
        shard_blocks(model, mesh_of(size))
        optimizer = adamw(model)
        with fsdp2.attach(model, optimizer, **living) as job:
            for minibatch in range(5):
                square_loss(model, sample(minibatch, rank, 0), 1.0 / size)
                job.sync_gradients()
                if minibatch == 1:  # what a queue does, which moves them to shared memory
                    ForkingPickler.dumps([one.grad.to_local() for one in model.parameters()])
                optimizer.step()
                optimizer.zero_grad()
                if minibatch == 2:
                    ForkingPickler.dumps([one.detach().to_local() for one in model.parameters()])
        trained.append([one.full_tensor() for one in model.parameters()])
    for copied, lived in zip(*trained, strict=True):
        assert torch.equal(copied, lived)


def test_parameters_and_gradients_that_another_process_shares() -> None:
    run_torch_ranks(2, handed_over)


def read_only(rank: int, size: int) -> None:
    model = Net()
    shard_blocks(model, mesh_of(size))
    model.requires_grad_(False)

    def in_slices() -> bool:
        return all(group.homes.hold_all() for group in job._groups)

    def forked() -> None:
        # FSDP2 leaves the root's gathered.
        list(torch.utils.data.DataLoader([0], num_workers=1, multiprocessing_context="fork"))
        assert not in_slices()

    with fsdp2.attach(model) as job, torch.no_grad():
        expected = model(sample(0, 0, 0))
        assert in_slices()
        for _ in range(2):
            forked()
            assert torch.equal(model(sample(0, 0, 0)), expected)
            assert in_slices()
        with job.unsharded():
            forked()
            assert torch.equal(model(sample(0, 0, 0)), expected)
            assert not in_slices()
        forked()
        next(model.blocks[0].parameters()).to_local().add_(1.0)
        with pytest.raises(libodc.PhaseError, match="has changed since it was published"):
            model(sample(0, 0, 0))


def test_a_reference_is_in_its_slices_again_at_the_forward_after_a_fork() -> None:
    run_torch_ranks(2, read_only)


def moved_by_an_interrupted_publish(rank: int, size: int) -> None:
    """A fork has moved parameters out, and the publish that moves them in again is interrupted."""
    for module, name in ((relocation, "_find_dtensors"), (FsdpGroup, "gather_from"), (relocation, "others_see")):
        model, alone = Net(), Net()
        shard_blocks(model, mesh_of(size))
        optimizer, other = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.SGD(alone.parameters(), lr=0.01)
        with fsdp2.attach(model, optimizer) as job:
            for minibatch in range(3):
                square_loss(model, sample(minibatch, rank, 0), 1.0)
                job.sync_gradients(divisor=1.0)
                if minibatch == 1 and rank == 0:
                    list(torch.utils.data.DataLoader([0], num_workers=1, multiprocessing_context="fork"))
                    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
                        patched.setattr(module, name, interrupted)
                        optimizer.step()
                else:
                    optimizer.step()
                optimizer.zero_grad()
                for peer in range(size):
                    square_loss(alone, sample(minibatch, peer, 0), 1.0)
                other.step()
                other.zero_grad()
            model(sample(0, 0, 0))
            assert all(group.homes.hold_all() for group in job._groups), name
        torch.testing.assert_close(model(sample(0, 0, 0)), alone(sample(0, 0, 0)), rtol=1e-9, atol=1e-12)


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupted_move_into_slices_is_finished_by_the_next_publish() -> None:
    run_torch_ranks(2, moved_by_an_interrupted_publish)


def interrupted_before_fork(rank: int, size: int) -> None:
    """Python prints the exception, and forks."""
    moves = 0

    def find(*arguments: Any) -> None:
        nonlocal moves
        moves += 1
        if moves == 1:
            raise KeyboardInterrupt
        found(*arguments)

    model, found = Net(), relocation._find_dtensors
    shard_blocks(model, mesh_of(size))
    with fsdp2.attach(model, adamw(model)) as job, pytest.MonkeyPatch.context() as patched:
        square_loss(model, sample(0, rank, 0), 1.0)
        job.sync_gradients(divisor=1.0)
        patched.setattr(relocation, "_find_dtensors", find)
        assert sum(1 for _ in seen_by_workers(model, 0, rank)) == MICROBATCHES  # and its gradients
        assert moves == 2


def test_workers_forked_as_a_signal_comes() -> None:
    run_torch_ranks(2, interrupted_before_fork)
