# SPDX-License-Identifier: Apache-2.0
"""A small model of two FSDP groups, a job that trains it, and checks of its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch_ranks import dist, torch

from libodc.torch import fsdp2

nn = torch.nn
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
init_device_mesh = torch.distributed.device_mesh.init_device_mesh


def plain(width: int = 6) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


def sharded(size: int, model: Any = None, **options: Any) -> Any:
    model = plain() if model is None else model
    mesh = options.pop("mesh", None) or init_device_mesh("cpu", (size,))
    fully_shard(model[0], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def backward(model: Any, scale: float = 1.0) -> None:
    (model(torch.ones(2, 4)).sum() * scale).backward()


def continue_training(job: Any, model: Any, optimizer: Any) -> None:
    backward(model)
    job.sync_gradients()
    optimizer.step()


@contextmanager
def training(size: int, *, frozen: bool = False, **options: Any) -> Iterator[tuple[Any, Any, Any]]:
    """`frozen`: the first group."""
    model = plain()
    model[0].requires_grad_(not frozen)
    model = sharded(size, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = fsdp2.attach(model, optimizer, timeout=60, **options)
    try:
        yield job, model, optimizer
    finally:
        dist.barrier()
        job.remove()


@contextmanager
def raises(kind: type[Exception], *words: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    for one in words:
        assert one in str(caught.value)
