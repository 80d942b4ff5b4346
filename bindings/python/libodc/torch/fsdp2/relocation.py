# SPDX-License-Identifier: Apache-2.0
"""Moves sharded parameters to other memory. The parameter's object stays, and DTensors that see its memory, such as
those of a state_dict() that somebody keeps, see the new memory after it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .torch_state import FsdpGroup, ModuleAttribute, local_tensor, others_see, set_local_tensor


@dataclass
class Move:
    fsdp: FsdpGroup
    attribute: ModuleAttribute
    to: torch.Tensor  # flat, as long as the parameter's memory
    held: bool = False  # not moved, since others see the memory, and would go stale
    _seen_by: list[Any] = field(default_factory=list)


def move_if_alone(moves: Sequence[Move]) -> None:
    """Leaves those whose memory is also seen by plain tensors, which cannot follow."""
    _find_dtensors(moves)
    held = [one for one in moves if not _move_if_alone(one)]
    if held:  # what nobody can reach is no reason
        gc.collect()
        for one in held:
            one.held = not _move_if_alone(one)


def move(moves: Sequence[Move]) -> None:
    """Plain tensors keep the old memory."""
    _find_dtensors(moves)
    for one in moves:
        one.to.copy_(one.fsdp.memory(one.attribute))
        _see(one, one.to)


def _find_dtensors(moves: Iterable[Move]) -> None:
    by_storage = {}
    for one in moves:
        one._seen_by = [one.fsdp.sharded(one.attribute)]  # gc.freeze() may hide it
        by_storage[_storage(one.fsdp.memory(one.attribute))] = one
    for tensor in gc.get_objects():
        if type(tensor) is DTensor:
            local = local_tensor(tensor)
            found = by_storage.get(_storage(local)) if type(local) is torch.Tensor else None
            if found is not None and tensor is not found._seen_by[0]:
                found._seen_by.append(tensor)


def _move_if_alone(one: Move) -> bool:
    memory = one.fsdp.memory(one.attribute)
    storage, begin, kind = memory.untyped_storage(), memory.storage_offset(), memory.dtype
    one.to.copy_(memory)
    del memory
    _see(one, one.to)
    if not others_see(storage):
        return True
    _see(one, torch.empty(0, dtype=kind, device=one.to.device).set_(storage, begin, one.to.shape, (1,)))
    return False


def _see(one: Move, to: torch.Tensor) -> None:
    """After an exception it is called again."""
    origin = one.fsdp.memory(one.attribute).storage_offset()
    for tensor in one._seen_by:
        local: Any = local_tensor(tensor)
        if _storage(local) == _storage(to):
            continue
        begin = to.storage_offset() + local.storage_offset() - origin
        set_local_tensor(tensor, to.as_strided(local.shape, local.stride(), begin))
    one.fsdp.gather_from(one.attribute, to)


def _storage(tensor: torch.Tensor) -> tuple[torch.device, torch.dtype, int]:
    try:
        return tensor.device, tensor.dtype, tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # has none: sparse, for example
        return tensor.device, tensor.dtype, -1
