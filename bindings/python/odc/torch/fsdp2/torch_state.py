# SPDX-License-Identifier: Apache-2.0
"""Everything that is read from torch's private attributes, and nothing else. What is changed in FSDP2 is changed by its
public methods, except that restoring a gradient divide factor of None has none that says so."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

try:  # where the classes are meant to be one day
    from torch.distributed.fsdp import AllGather, ReduceScatter  # type: ignore[attr-defined]
except ImportError:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

__all__ = ["AllGather", "Buffers", "FsdpGroup", "ReduceScatter", "Settings", "Slot", "collectives", "fsdp_groups"]


class Buffers:
    """Of AllGather and ReduceScatter: memory as FSDP2 itself takes it."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


@dataclass(frozen=True)
class Slot:
    """Where a parameter lives. The object there changes: sharded, unsharded, replaced by a loaded one."""

    module: nn.Module
    attribute: str

    def get(self) -> nn.Parameter:
        parameter: nn.Parameter = getattr(self.module, self.attribute)
        return parameter


@dataclass(frozen=True)
class Settings:
    """What attach changes in a group, to be restored."""

    all_gather: AllGather
    reduce_scatter: ReduceScatter
    divide_factor: float | None
    force_sum: bool


class FsdpGroup:
    """The parameters that FSDP2 gathers and reduces together."""

    def __init__(self, module: FSDPModule, name: str, raw: Any) -> None:
        self.module = module
        self.name = name
        self._raw = raw

    @property
    def slots(self) -> list[Slot]:
        infos = [one._module_info for one in self._raw.fsdp_params]
        return [Slot(info.module, info.param_name) for info in infos]

    @property
    def reduce_dtype(self) -> torch.dtype | None:
        """What gradients are cast to before they are reduced; None: not at all. Known after the first unshard."""
        if self._raw._reduce_dtype is not None:
            return self._raw._reduce_dtype  # type: ignore[no-any-return]
        # In torch 2.15 gradients have a type of their own, and the widest is taken.
        trainable = [one for one in self._raw.fsdp_params if one.sharded_param.requires_grad]
        given = {getattr(one, "unsharded_grad_dtype", None) for one in trainable}
        types = [one for one in given if one is not None]
        return functools.reduce(torch.promote_types, types) if types else None

    @property
    def device(self) -> torch.device:
        """Where it is gathered; with CPU offload its shards are elsewhere."""
        device: torch.device = self._raw.device
        return device

    @property
    def gathers_by_extension(self) -> bool:
        return any(hasattr(_local(slot.get()), "fsdp_pre_all_gather") for slot in self.slots)

    @property
    def reshards_to_fewer_ranks(self) -> bool:
        """fully_shard(reshard_after_forward=<int>)."""
        return bool(self._raw._use_post_forward_mesh)

    @property
    def replicated(self) -> bool:
        """HSDP or replicate()."""
        return hasattr(self._raw.mesh_info, "replicate_process_group")

    @property
    def all_reduce_hook(self) -> Any:
        return self._raw._all_reduce_hook

    @property
    def settings(self) -> Settings:
        raw = self._raw
        return Settings(
            raw._all_gather_comm,
            raw._reduce_scatter_comm,
            raw.gradient_divide_factor,
            raw.force_sum_reduction_for_comms,
        )

    @property
    def ranks(self) -> int:
        return int(self._raw.mesh_info.shard_mesh_size)

    def settle(self) -> None:
        """Reshards. What was gathered ahead and not used is dropped: it would be taken for the parameters later."""
        if self._raw._all_gather_result is not None:
            self.module.unshard()
        self.module.reshard()

    def apply(self, settings: Settings) -> None:
        self.module.set_custom_all_gather(settings.all_gather)
        self.module.set_custom_reduce_scatter(settings.reduce_scatter)
        self.module.set_gradient_divide_factor(settings.divide_factor)  # type: ignore[arg-type]
        self.module.set_force_sum_reduction_for_comms(settings.force_sum)


def _local(parameter: torch.Tensor) -> Any:
    return getattr(parameter, "_local_tensor", parameter)


def fsdp_groups(model: nn.Module) -> Iterator[tuple[str, list[FsdpGroup]]]:
    """For each FSDP2 module with parameters of its own: its name and groups, in the order of model.named_modules(),
    which is the same on all ranks. Modules that share a group (`fully_shard([a, b])`) come once."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        # Until torch 2.11 a module had one group.
        raw_groups = getattr(state, "_fsdp_param_groups", None)
        if raw_groups is None:
            raw_groups = [one for one in (state._fsdp_param_group,) if one is not None]
        if not raw_groups or id(raw_groups[0]) in seen:
            continue
        seen.add(id(raw_groups[0]))
        yield name, [FsdpGroup(module, name or "(root)", raw) for raw in raw_groups]


def collectives() -> int:
    """How many collectives this rank has begun on all its process groups; groups that do not count are left out."""
    count = 0
    one: Any
    for one in dist.distributed_c10d._world.pg_map:
        try:
            count += one._get_sequence_number_for_group()
        except (RuntimeError, AttributeError):
            continue
    return count
