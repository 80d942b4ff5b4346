# SPDX-License-Identifier: Apache-2.0
"""This rank's shards of a job's parameters, read again at each publish and copied into the slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ...errors import PhaseError
from .bulk import Copies
from .extension import ExtensionGroup
from .group import Group
from .homes import Homes, move_in
from .layout import Entry
from .torch_state import in_attributes, local_tensors


class LocalShards:
    """Of all groups at once: there may be thousands of parameters, and each call costs. What is to be copied is found
    anew only where a shard is elsewhere than at the last publish. No shards are kept: their memory may be given back.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._entries = [entry for group in groups for entry in group.layout.entries]
        self._attributes = [entry.attribute for entry in self._entries]
        self._parameters: list[Any] = [entry.parameter for entry in self._entries]
        self._states = _states(self._parameters)  # at the last publish
        gathered = [group for group in groups if group.layout.process_group is not None]
        self._captured = [group for group in gathered if isinstance(group, ExtensionGroup)]
        self._copied = [group for group in gathered if not isinstance(group, ExtensionGroup)]
        self._sources: list[int] | None = None  # what FSDP2 gathered, at the last publish
        # Found where they differ:
        self._away: list[Entry] = []
        self._copies = Copies([], [])
        self._in_bytes: list[tuple[Group, list[Entry], list[torch.Tensor]]] = []
        self._bits: list[torch.Tensor] = []  # of small slices in which parameters live
        self._notes = Copies([], [])  # of them
        self._noting: list[Homes] = []  # the others

    def refresh(self) -> _States:
        """Reads the sharded parameters again, since loading may have replaced them."""
        parameters = in_attributes(self._attributes)
        if any([now is not before for now, before in zip(parameters, self._parameters, strict=True)]):
            self._replace(parameters)
        if (states := _states(parameters)) != self._states:
            self._check_kinds(states)
        return states

    def publish(self) -> None:
        """Copies those that do not live there into the slices, in the types that are gathered."""
        moved = (self.refresh(), self._find_sources()) != (self._states, self._sources)
        if moved:
            move_in(group.homes for group in self._copied)
            self._find_copies()
        self._copies.run(lambda index: self._away[index].local)
        for group, entries, parts in self._in_bytes:
            torch._foreach_copy_(parts, group.published_as(entries))
        for captured in self._captured:
            captured.capture()
        if moved:
            self._find_notes()
            self._states, self._sources = _states(self._parameters), self._find_sources()
            return
        self._notes.run(lambda index: self._bits[index])
        for homes in self._noting:
            homes.note()

    def _find_sources(self) -> list[int]:
        return [one for group in self._copied for one in group.homes.sources()]

    def _find_copies(self) -> None:
        self._away, self._in_bytes, parts = [], [], list[torch.Tensor]()
        for group in self._copied:
            away = group.homes.away()
            entries, theirs = [group.layout.entries[index] for index in away], [group.parts[index] for index in away]
            if group.layout.dtype is not torch.uint8:
                self._away += entries
                parts += theirs
            elif entries:
                self._in_bytes.append((group, entries, theirs))
        self._copies = Copies(parts, [entry.local for entry in self._away])

    def _find_notes(self) -> None:
        for group in self._copied:
            group.homes.note()
        noted = [(group.homes, group.homes.noted_bits()) for group in self._copied]
        self._noting = [homes for homes, both in noted if both is None]
        small = [both for _, both in noted if both is not None]
        self._kept = [kept for kept, _ in small]  # so that they stay where they are
        self._bits = [bits for _, bits in small]
        self._notes = Copies(self._kept, self._bits)

    def _replace(self, parameters: list[Any]) -> None:
        for entry, parameter in zip(self._entries, parameters, strict=True):
            if not isinstance(parameter, DTensor):
                raise PhaseError(
                    f'parameter "{entry.name}" is unsharded: after an exception in a forward call '
                    "model.reset_iter_state(); after unshard(), reshard()"
                )
            entry.parameter = parameter  # type: ignore[assignment]
        self._parameters = parameters

    def _check_kinds(self, states: _States) -> None:
        for entry, was, now in zip(self._entries, _kinds(self._states), _kinds(states), strict=True):
            if now != was:
                before, after = (f"{dtype} {tuple(shape)} on {device}" for dtype, shape, device in (was, now))
                raise PhaseError(
                    f'the shard of parameter "{entry.name}" was {before} at attach and is {after}: remove() the job '
                    "before moving or converting the model, then attach again"
                )


@dataclass
class _States:
    """Of shards. Lists of what many have: tuples of each would wake the garbage collector."""

    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    devices: list[torch.device]
    addresses: list[int]
    contiguous: list[bool]


def _states(parameters: list[Any]) -> _States:
    shards = local_tensors(parameters)
    return _States(
        [one.dtype for one in shards],
        [one.shape for one in shards],
        [one.device for one in shards],
        [one.data_ptr() if type(one) is torch.Tensor else 0 for one in shards],
        [one.is_contiguous() for one in shards],
    )


def _kinds(states: _States) -> Iterator[tuple[torch.dtype, torch.Size, torch.device]]:
    """What must stay as it was."""
    return zip(states.dtypes, states.shapes, states.devices, strict=True)
