# SPDX-License-Identifier: Apache-2.0
"""This rank's shards of a job's parameters, read again at each publish and copied into the slices."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from operator import is_not
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ...errors import PhaseError
from . import forks
from .bulk import Copies, descriptions
from .extension import ExtensionGroup
from .group import Group
from .homes import move_in
from .layout import Entry
from .torch_state import Memories, ModuleAttributes, local_tensors

_State = tuple[torch.dtype, torch.Size, torch.device, int, bool]


class LocalShards:
    """Of all groups at once: there may be thousands of parameters, and each call costs. What is to be copied is found
    anew only where a shard is elsewhere than at the last publish. No shards are kept: their memory may be given back.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._entries = [entry for group in groups for entry in group.layout.entries]
        self._attributes = ModuleAttributes(entry.attribute for entry in self._entries)
        self._parameters: list[Any] = [entry.parameter for entry in self._entries]
        self._kinds = [one[:3] for one in _each_state(self._parameters)]
        self._states = _states(self._parameters)  # at the last publish
        gathered = [group for group in groups if group.layout.process_group is not None]
        self._captured = [group for group in gathered if isinstance(group, ExtensionGroup)]
        self._copied = [group for group in gathered if not isinstance(group, ExtensionGroup)]
        self._sources: list[int] | None = None  # what FSDP2 gathered, at the last publish
        self._forks = forks.count()  # before it
        # Found where they differ:
        self._told: set[str] = set()  # names of parameters that have not lived in slices since attach
        self._away: list[Entry] = []
        self._copies = Copies([], [])
        self._in_bytes: list[tuple[Group, list[Entry], list[torch.Tensor]]] = []
        self._bits: list[torch.Tensor] = []  # of small slices in which parameters live
        self._notes = Copies([], [])  # of them
        self._noting: list[Group] = []  # the others

    def refresh(self) -> array[int] | list[_State]:
        """Reads the sharded parameters again, since loading may have replaced them."""
        parameters = self._attributes.get()
        if any(map(is_not, parameters, self._parameters)):
            self._replace(parameters)
        if (states := _states(parameters)) != self._states:
            self._check_kinds()
        return states

    def publish(self) -> bool:
        """Copies those that do not live there into the slices, in the types that are gathered. Returns whether some are
        elsewhere than at the last publish."""
        self._forks = forks.count()
        moved = (self.refresh(), self._memories.ids()) != (self._states, self._sources)
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
            if self._sources is None:  # attach has told of them
                self._told = set(self._without_home())
            self._states, self._sources = _states(self._parameters), self._memories.ids()
            return True
        self._notes.run(lambda index: self._bits[index])
        for group in self._noting:
            group.homes.note()
        return False

    def check_unedited(self) -> None:
        """Before a sync: raises if parameters were edited in their slices since the publish."""
        small_ones_differ = not self._notes.known_equal()
        for group in self._copied if small_ones_differ else self._noting:
            group.check_unedited()

    @property
    def moved_out(self) -> bool:
        """Whether parameters have left their slices since the last publish, for a fork."""
        return self._forks != forks.count() and any(group.homes for group in self._copied)

    @cached_property
    def _memories(self) -> Memories:
        """Of groups in whose slices parameters may live. The ids of tensors that live there stay valid, because Homes
        keeps them."""
        return Memories(group.fsdp for group in self._copied if group.homes)

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

    def left(self) -> tuple[dict[str, str], int]:
        """Parameters that lived in their slices at attach and no longer do: why, by name, and their bytes."""
        why = {name: reason for name, reason in self._without_home().items() if name not in self._told}
        entries = [entry for group in self._copied for entry in group.layout.entries]
        return why, sum(entry.local.nbytes for entry in entries if entry.name in why)

    def _without_home(self) -> dict[str, str]:
        return {name: reason for group in self._copied for name, reason in group.homes.reasons()}

    def _find_notes(self) -> None:
        for group in self._copied:
            group.homes.note()
        noted = [(group, group.homes.noted_bits()) for group in self._copied]
        self._noting = [group for group, both in noted if both is None and group.homes]
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

    def _check_kinds(self) -> None:
        for entry, was, state in zip(self._entries, self._kinds, _each_state(self._parameters), strict=True):
            if (now := state[:3]) != was:
                before, after = (f"{dtype} {tuple(shape)} on {device}" for dtype, shape, device in (was, now))
                raise PhaseError(
                    f'the shard of parameter "{entry.name}" was {before} at attach and is {after}: remove() the job '
                    "before moving or converting the model, then attach again"
                )


def _states(parameters: list[Any]) -> array[int] | list[_State]:
    """Of shards; equal if each is where it was and as it was."""
    shards = local_tensors(parameters)
    described = descriptions(shards)
    return _each_state(parameters) if described is None else described


def _each_state(parameters: list[Any]) -> list[_State]:
    return [
        (one.dtype, one.shape, one.device, one.data_ptr() if type(one) is torch.Tensor else 0, one.is_contiguous())
        for one in local_tensors(parameters)
    ]
