# SPDX-License-Identifier: Apache-2.0
"""This rank's shards of a job's parameters, read again at each publish and copied into the slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ...errors import PhaseError
from .group import Group
from .homes import move_in
from .torch_state import in_attributes, local_tensors


class LocalShards:
    """Of all groups at once: there may be thousands of parameters, and each call costs."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._entries = [entry for group in groups for entry in group.layout.entries]
        self._attributes = [entry.attribute for entry in self._entries]
        self._parameters: list[Any] = [entry.parameter for entry in self._entries]
        self._kinds = _kinds(self._parameters)

    def refresh(self) -> None:
        """Reads the sharded parameters again, since loading may have replaced them."""
        parameters = in_attributes(self._attributes)
        if any(now is not before for now, before in zip(parameters, self._parameters, strict=True)):
            self._replace(parameters)
        if (kinds := _kinds(parameters)) != self._kinds:
            self._refuse(kinds)

    def publish(self) -> None:
        """Copies those that do not live there into the slices, in the types that are gathered."""
        self.refresh()
        away = [group for group in self._groups if not group.homes.hold_all()]
        move_in(group.homes for group in away)
        # Foreach functions are quick with tensors of one kind.
        copies: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for group in away:
            group.add_copies(*copies.setdefault(group.copied_as, ([], [])))
            if group.layout.dtype is torch.uint8:  # its values are copies already: not those of all groups at once
                _copy(*copies.pop(group.copied_as))
        for parts, values in copies.values():
            _copy(parts, values)
        for group in self._groups:
            group.homes.note()

    def _replace(self, parameters: list[Any]) -> None:
        for entry, parameter in zip(self._entries, parameters, strict=True):
            if not isinstance(parameter, DTensor):
                raise PhaseError(
                    f'parameter "{entry.name}" is unsharded: after an exception in a forward call '
                    "model.reset_iter_state(); after unshard(), reshard()"
                )
            entry.parameter = parameter  # type: ignore[assignment]
        self._parameters = parameters

    def _refuse(self, kinds: _Kinds) -> None:
        for entry, was, now in zip(
            self._entries, zip(*self._kinds, strict=True), zip(*kinds, strict=True), strict=True
        ):
            if now != was:
                before, after = (f"{dtype} {tuple(shape)} on {device}" for dtype, shape, device in (was, now))
                raise PhaseError(
                    f'the shard of parameter "{entry.name}" was {before} at attach and is {after}: remove() the job '
                    "before moving or converting the model, then attach again"
                )


def _copy(parts: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    if parts:
        torch._foreach_copy_(parts, values)


_Kinds = tuple[list[torch.dtype], list[torch.Size], list[torch.device]]


def _kinds(parameters: list[Any]) -> _Kinds:
    """Of their shards."""
    shards = local_tensors(parameters)
    return [one.dtype for one in shards], [one.shape for one in shards], [one.device for one in shards]
