# SPDX-License-Identifier: Apache-2.0
"""The schedules that are compared, behind one interface: a model prepared for one, and the sync of its minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Synced:
    """What `sync_gradients` has summed over all ranks."""

    sums: Mapping[str, float]


class Job(Protocol):
    """Keeps a sharded model's gradients in step."""

    def sync_gradients(self, *, tokens: float, sums: Mapping[str, float]) -> Synced:
        """At the end of a minibatch, once: divides the gradients by all ranks' `tokens`, and adds up `sums`."""

    def close(self) -> None:
        """Leaves what the job has joined."""


def shard(model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh) -> None:
    """FSDP2 of each block and of the rest, with plain sums as gradients."""
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in fsdp_modules(model):
        # gloo's average has been wrong in some versions; the division by tokens is ours anyway.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def fsdp_modules(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def reshard(model: nn.Module) -> None:
    """Drops the gathered parameters that evaluation has left."""
    for module in fsdp_modules(model):
        module.reshard()


class FsdpJob:
    """FSDP2 as it is: each layer of each microbatch is gathered and reduced by all ranks together."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def sync_gradients(self, *, tokens: float, sums: Mapping[str, float]) -> Synced:
        values = torch.tensor([tokens, *sums.values()], dtype=torch.float64)
        distributed.all_reduce(values)
        divide_gradients(self._model, float(values[0]))
        return Synced(dict(zip(sums, values[1:].tolist(), strict=True)))

    def close(self) -> None:
        pass


def divide_gradients(model: nn.Module, tokens: float) -> None:
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient.to_local().div_(tokens)


@dataclass(frozen=True)
class Arm:
    """A schedule with a plan. `attach` takes the sharded model and its optimizer."""

    name: str
    title: str
    policy: str
    in_step: bool  # whether all ranks wait for each other in each layer
    attach: Callable[[nn.Module, torch.optim.Optimizer], Job]


ARMS = {
    arm.name: arm
    for arm in (Arm("fsdp", "FSDP2 over gloo + LB-Micro", "lb-micro", True, lambda model, _: FsdpJob(model)),)
}
