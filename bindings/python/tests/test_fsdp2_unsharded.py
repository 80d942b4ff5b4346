# SPDX-License-Identifier: Apache-2.0
"""Trainable parameters that FSDP2 does not manage: attach names them, and refuses those that reduce by hooks."""

from collections.abc import Callable
from typing import Any

import pytest
from logged import warnings_logged
from torch_ranks import dist, run_torch_ranks, torch

import libodc
from libodc.torch import fsdp2

nn = torch.nn
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
init_device_mesh = torch.distributed.device_mesh.init_device_mesh


def plain() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def partly_sharded(size: int) -> Any:
    model = plain()
    mesh = init_device_mesh("cpu", (size,))
    return fully_shard(model, mesh=mesh, ignored_params={model[2].weight, model[2].bias})


def loss(model: Any, rank: int, index: int) -> Any:
    return model(torch.full((2, 4), 1.0 + rank + 0.5 * index, dtype=torch.float64)).square().sum()


def ignored(rank: int, size: int) -> None:
    model = partly_sharded(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings_logged() as warnings, fsdp2.attach(model, optimizer, timeout=60) as job:
        for index in range(1 + rank):
            loss(model, rank, index).backward()
        job.sync_gradients(divisor=1.0)
        gradients = model[0].weight.grad.full_tensor(), model[2].weight.grad.clone()
        optimizer.step()
    said = "odc: 2 trainable parameters are not sharded by FSDP2 (2.weight, 2.bias…)"
    assert [line.startswith(said) for line in warnings] == ([True] if rank == 0 else [])

    # The others are reduced; these hold what this rank's microbatches gave.
    everyone, alone = plain(), plain()
    for peer in range(size):
        for index in range(1 + peer):
            loss(everyone, peer, index).backward()
            if peer == rank:
                loss(alone, peer, index).backward()
    for mine, other in zip(gradients, (everyone[0], alone[2]), strict=True):
        torch.testing.assert_close(mine, other.weight.grad, rtol=1e-12, atol=1e-12)

    with warnings_logged() as warnings:
        with fsdp2.attach(model, timeout=60):  # only read
            model(torch.ones(2, 4, dtype=torch.float64))
        model[2].requires_grad_(False)
        fsdp2.attach(model, optimizer, timeout=60).close()
    assert not warnings


def test_ignored_parameters_are_named() -> None:
    run_torch_ranks(2, ignored)


def post_accumulate_hook(model: Any) -> Any:
    return model[2].bias.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))


def tensor_hook(model: Any) -> Any:
    return model[2].bias.register_hook(lambda gradient: dist.all_reduce(gradient))


class Distributed:
    """DistributedDataParallel around a module: its hooks go with it."""

    def __init__(self, model: Any) -> None:
        self.model, self.inner = model, model[2]
        model[2] = nn.parallel.DistributedDataParallel(model[2])

    def remove(self) -> None:
        self.model[2] = self.inner


def hooked(rank: int, size: int, register: Callable[[Any], Any], words: str) -> None:
    model = partly_sharded(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = register(model)
    with pytest.raises(libodc.UnsupportedError) as caught:
        fsdp2.attach(model, optimizer, timeout=60)
    for said in (words, "different numbers of backwards", "before fully_shard"):
        assert said in str(caught.value)
    loss(model, rank, 0).backward()  # by plain FSDP2, as before
    hook.remove()
    fsdp2.attach(model, optimizer, timeout=60).close()


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (post_accumulate_hook, 'parameter "2.bias" is not sharded by FSDP2 and has a post-accumulate-grad hook'),
        (tensor_hook, 'parameter "2.bias" is not sharded by FSDP2 and has a hook (Tensor.register_hook)'),
        (Distributed, 'parameter "2.module.weight" is not sharded by FSDP2 and has the hooks of Distributed'),
    ],
)
def test_parameters_that_reduce_by_a_hook_are_refused(register: Callable[[Any], Any], words: str) -> None:
    run_torch_ranks(2, hooked, register, words)
