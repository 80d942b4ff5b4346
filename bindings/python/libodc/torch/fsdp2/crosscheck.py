# SPDX-License-Identifier: Apache-2.0
"""attach(check=True): computes the first minibatch's gradients as plain FSDP2 does, and compares them with .grad after
sync_gradients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ...errors import InternalError, PhaseError
from .group import Group
from .layout import Entry


@dataclass
class _Kept:
    """A group's gradients from this rank's backwards: their sum, and which parameters took part."""

    sums: torch.Tensor
    took_part: torch.Tensor
    additions: int = 0


@dataclass
class _Expected:
    """A parameter's expected gradient. Plain FSDP2 adds the divided sums of all groups that it is in."""

    entry: Entry
    gradient: torch.Tensor
    largest: float = 0.0  # of the groups' gradients, to which rounding is relative
    tolerance: float = 0.0
    groups: str = ""


class Crosscheck:
    """Keeps each rank's whole gradient, so it takes as much memory as the unsharded gradients in f64."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._unread: tuple[Group, torch.Tensor] | None = None
        self._compares = False

    def add(self, group: Group, full: torch.Tensor) -> None:
        whole = group.spread(full).to(torch.float64)
        if group.name not in self._kept:
            took_part = torch.zeros(len(group.trainable), dtype=torch.float64, device=whole.device)
            self._kept[group.name] = _Kept(torch.zeros_like(whole), took_part)
        self._kept[group.name].sums += whole
        self._kept[group.name].took_part[group.reducing] = 1.0
        self._kept[group.name].additions += 1

    def add_later(self, group: Group, full: torch.Tensor) -> None:
        """On a single rank, where nothing is reduced: FSDP2 is about to write the gradients into `full`."""
        self._unread = (group, full)

    def read(self) -> None:
        """Called before a group reduces again, and before the minibatch ends: adds what add_later has kept."""
        unread, self._unread = self._unread, None
        if unread is not None:
            self.add(*unread)

    def forget(self) -> None:
        """The minibatch is dropped; the next one is compared."""
        self._unread = None
        self._kept.clear()

    def compare(self, groups: Sequence[Group], divisors: Sequence[float]) -> None:
        """Collective, in the order of the groups, after .grad is filled. All ranks raise if one finds a difference."""
        if self._compares:
            raise PhaseError(
                "an exception has ended the comparison of attach(check=True), in which peers wait: end the job, and "
                "attach again"
            )
        self._compares = True
        trained = [group for group in groups if group.trainable]
        if not trained:
            return
        process_group = trained[0].layout.process_group
        expected: dict[int, _Expected] = {}
        for group, divisor in zip(groups, divisors, strict=True):
            if group.trainable:
                self._expect(group, divisor, expected)
        worst, found = 0.0, ""
        for one in expected.values():
            error = _difference(one)
            if error > one.tolerance * one.largest:
                found = found or (
                    f'that of "{one.entry.name}" in FSDP group {one.groups} by {error}, the largest is {one.largest}'
                )
            worst = max(worst, error / one.largest if one.largest else 0.0)
        everyone: list[Any] = [found]
        if process_group is not None:
            everyone = [None] * dist.get_world_size(process_group)
            dist.all_gather_object(everyone, found, group=process_group)
        wrong = [f"on rank {rank} {difference}" for rank, difference in enumerate(everyone) if difference]
        if wrong:
            raise InternalError(f"gradients differ from those of plain FSDP2: {'; '.join(wrong)}")
        if process_group is None or dist.get_rank(process_group) == 0:
            text = f"the first minibatch's gradients equal those of plain FSDP2 to {worst:.1e}"
            print(f"odc: attach(check=True) passed: {text}", file=sys.stderr)  # asked for, so told without logging too

    def _expect(self, group: Group, divisor: float, expected: dict[int, _Expected]) -> None:
        """Reduces what the ranks have kept of `group`, and adds it to its parameters' expected gradients."""
        numel, process_group = group.layout.gradient_numel, group.layout.process_group
        kept = self._kept.pop(group.name, None)
        if kept is None:
            device = group.fsdp.device
            sums = torch.zeros(numel * group.ranks, dtype=torch.float64, device=device)
            kept = _Kept(sums, torch.zeros(len(group.trainable), dtype=torch.float64, device=device))
        rank, roundings = 0, kept.additions  # a single rank's FSDP2 adds in .grad's type
        if process_group is not None:
            roundings = 1
            dist.all_reduce(kept.sums, group=process_group)
            dist.all_reduce(kept.took_part, group=process_group)
            rank = dist.get_rank(process_group)
        mine = kept.sums[rank * numel :][:numel].div_(divisor)
        largest = float(mine.nan_to_num().abs().max()) if numel > 0 else 0.0
        for entry, took in zip(group.trainable, kept.took_part.tolist(), strict=True):
            if took == 0:
                continue
            local = entry.local
            part = mine[entry.gradient_offset :][: local.numel()].view(local.shape).to(local.device)
            one = expected.setdefault(id(entry.parameter), _Expected(entry, torch.zeros_like(part)))
            one.gradient = one.gradient + part
            one.largest += largest
            # Sums of many terms in f32 or f64, in another order, and rounded to the type of .grad.
            rounding = 1e-12 if group.layout.gradient_dtype == torch.float64 else 1e-5
            one.tolerance += rounding + roundings * torch.finfo(local.dtype).eps
            one.groups += f'{" and " if one.groups else ""}"{group.name}"'


def _difference(expected: _Expected) -> float:
    """The largest difference. A NaN must be a NaN in both."""
    found = expected.entry.parameter.grad
    if found is None:
        return float("inf")
    local: torch.Tensor = found.to_local().to(torch.float64)  # type: ignore[attr-defined]
    if not torch.equal(local.isnan(), expected.gradient.isnan()):
        return float("inf")
    return float((local - expected.gradient).nan_to_num().abs().max()) if local.numel() > 0 else 0.0
