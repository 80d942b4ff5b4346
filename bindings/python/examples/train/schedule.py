# SPDX-License-Identifier: Apache-2.0
"""FSDP2 of a model, and a schedule's part of the training loop: one sync of gradients per minibatch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""Timeout of waits for other ranks."""


class Synced(Protocol):
    """What `sync_gradients` returns: the sums over all ranks."""

    @property
    def sums(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Sums:
    sums: Mapping[str, float]


class Job(Protocol):
    """Synchronizes a sharded model's gradients."""

    def sync_gradients(self, *, weight: float, sums: Mapping[str, float]) -> Synced:
        """Called once at the end of a minibatch: divides the gradients by all ranks' `weight`, and adds up `sums`."""

    def microbatches(self, minibatch: Iterable[T]) -> Iterable[T]:
        """Those of a rank, each for one forward and backward."""

    def close(self) -> None:
        """Leaves the job."""


def shard(model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh, reduced: torch.dtype) -> None:
    """Applies FSDP2 to each block and to the rest, with plain sums as gradients, which are reduced in this type."""
    policy = MixedPrecisionPolicy(reduce_dtype=reduced)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in fsdp_modules(model):
        # gloo's average has been wrong in some versions; the caller divides by the weight anyway.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def fsdp_modules(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


class FsdpJob:
    """FSDP2 as it is: each layer of each microbatch is gathered and reduced by all ranks together."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def sync_gradients(self, *, weight: float, sums: Mapping[str, float]) -> Synced:
        values = torch.tensor([weight, *sums.values()], dtype=torch.float64)
        distributed.all_reduce(values)
        divide_gradients(self._model, float(values[0]))
        return Sums(dict(zip(sums, values[1:].tolist(), strict=True)))

    def microbatches(self, minibatch: Iterable[T]) -> Iterable[T]:
        return minibatch

    def close(self) -> None:
        pass


def divide_gradients(model: nn.Module, weight: float) -> None:
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient.to_local().div_(weight)
