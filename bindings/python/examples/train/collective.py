# SPDX-License-Identifier: Apache-2.0
"""The collective schedule over libodc's shared memory, or GPU memory: FSDP2's own all-gathers and reduce-scatters, each
a wait for all.

Beside FSDP2 over gloo it shows what the transport gains; beside ODC, what the schedule gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from schedule import WAIT_SECONDS, Sums, Synced, T, divide_gradients, fsdp_modules
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_api
from torch.utils.dlpack import from_dlpack

import libodc


@dataclass(frozen=True)
class _Channel:
    """A shard with a context of its own, whose minibatch is one collective."""

    context: libodc.Context
    shard: libodc.Shard
    slice: torch.Tensor


class Collectives:
    """All ranks call them in the same order, so one channel serves all tensors of a size."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._name = name
        self._device = device if device.type == "cuda" else None
        self._memory = libodc.Memory.HOST if self._device is None else libodc.Memory.GPU
        self._job = libodc.init(group=name, timeout=WAIT_SECONDS)
        self._channels: dict[tuple[str, int], _Channel] = {}

    def all_gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        """Fills `output` with all ranks' parts, in rank order; `part` may be its own place in `output`."""
        channel = self._channel("all-gather", output.numel())
        channel.slice.copy_(part)
        channel.context.publish()
        channel.shard.gather(output)
        channel.context.sync()

    def reduce_scatter(self, output: torch.Tensor, full: torch.Tensor) -> None:
        """Fills `output` with this rank's part of the sum of all ranks' `full`."""
        channel = self._channel("reduce-scatter", full.numel())
        channel.context.publish()
        channel.shard.scatter_add(full)
        channel.context.sync()
        output.copy_(channel.slice)

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        return self._job.sync(values)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.context.close()
        self._job.close()

    def _channel(self, kind: str, numel: int) -> _Channel:
        """Collective at the first use."""
        if (kind, numel) not in self._channels:
            context = libodc.init(group=f"{self._name} {kind} {numel}", timeout=WAIT_SECONDS, device=self._device)
            if kind == "all-gather":
                shard = context.register(kind, numel, gradients=None, memory=self._memory)
                mine = shard.slice.parameters
            else:
                shard = context.register(kind, numel, parameters=None, memory=self._memory)
                mine = shard.slice.gradients
            self._channels[kind, numel] = _Channel(context, shard, from_dlpack(mine))
        return self._channels[kind, numel]


class _Buffers:
    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Buffers, _fsdp_api.AllGather):
    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        self._collectives.all_gather(output_tensor, input_tensor)


class _ReduceScatter(_Buffers, _fsdp_api.ReduceScatter):
    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        self._collectives.reduce_scatter(output_tensor, input_tensor)


class CollectiveJob:
    """Collective. Replaces FSDP2's collectives by libodc's."""

    def __init__(self, model: nn.Module, name: str) -> None:
        self._model = model
        self._collectives = Collectives(name, next(model.parameters()).device)
        for module in fsdp_modules(model):
            module.set_custom_all_gather(_AllGather(self._collectives))
            module.set_custom_reduce_scatter(_ReduceScatter(self._collectives))

    def sync_gradients(self, *, weight: float, sums: Mapping[str, float]) -> Synced:
        values = self._collectives.all_reduce([weight, *sums.values()])
        divide_gradients(self._model, values[0])
        return Sums(dict(zip(sums, values[1:], strict=True)))

    def microbatches(self, minibatch: Iterable[T]) -> Iterable[T]:
        return minibatch

    def close(self) -> None:
        self._collectives.close()
