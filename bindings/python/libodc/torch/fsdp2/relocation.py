# SPDX-License-Identifier: Apache-2.0
"""Moves sharded parameters to other memory, such that the parameter's object, and whatever sees its memory, stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .torch_state import FsdpGroup, Slot, local_tensor

HELD = "other tensors see their memory"


@dataclass
class Move:
    fsdp: FsdpGroup
    slot: Slot
    memory: torch.Tensor  # where it is: flat and padded
    to: torch.Tensor  # of the same length
    why_not: str | None = None
    _sees: list[DTensor] = field(default_factory=list)


def move(moves: Sequence[Move]) -> None:
    """Copies, and makes the parameters and all other DTensors of their memory (a state_dict() that somebody keeps)
    see the copy. Where plain tensors see it, too, nothing is moved, and `why_not` says so: they would go stale."""
    _find_aliases(moves)
    if any(one.why_not for one in moves):
        gc.collect()  # what nobody can reach is no reason
        _find_aliases(moves)
    for one in moves:
        if one.why_not is not None:
            continue
        one.to.copy_(one.memory)
        for alias in one._sees:
            local = local_tensor(alias)
            begin = local.storage_offset() - one.memory.storage_offset()
            alias._local_tensor = one.to.as_strided(local.shape, local.stride(), one.to.storage_offset() + begin)
        one.fsdp.gather_from(one.slot, one.to)


def _find_aliases(moves: Sequence[Move]) -> None:
    by_storage = {_storage(one.memory): one for one in moves}
    seen: dict[int, Move] = {}  # by the local tensor's id
    plain: list[tuple[Move, torch.Tensor]] = []
    for one in moves:
        one._sees, one.why_not = [], None
    for kind, tensor in _tensors():
        if kind is DTensor:
            local: Any = local_tensor(tensor)
            if type(local) is torch.Tensor and (found := by_storage.get(_storage(local))) is not None:
                if local.dtype is found.memory.dtype:
                    found._sees.append(tensor)
                    seen[id(local)] = found
        elif (found := by_storage.get(_storage(tensor))) is not None and tensor is not found.memory:
            plain.append((found, tensor))
    for one, tensor in plain:
        if id(tensor) not in seen:
            one.why_not = HELD
    for one in moves:
        parameter = one.slot.get()
        if all(alias is not parameter for alias in one._sees):  # hidden by gc.freeze(), and so may others be
            one.why_not = HELD


def _tensors() -> Iterator[tuple[type, Any]]:
    """All that Python can see; tensors of other classes consist of these."""
    for one in gc.get_objects():
        kind = type(one)
        if kind is torch.Tensor or kind is nn.Parameter or kind is DTensor:
            yield kind, one


def _storage(tensor: torch.Tensor) -> tuple[torch.device, int]:
    try:
        return tensor.device, tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # has none: sparse, for example
        return tensor.device, -1
