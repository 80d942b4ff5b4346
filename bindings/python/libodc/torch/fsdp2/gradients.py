# SPDX-License-Identifier: Apache-2.0
"""The .grad of a job's parameters: what it was before a minibatch, and what the sync writes for the optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .bulk import Quotients, Unwritten, kind_of
from .gradient_views import let_go
from .group import Group
from .layout import Entry
from .torch_state import local_tensor, local_tensors, quick_gradients


class JobGradients:
    """Of all groups at once: there may be thousands of parameters, and each call costs."""

    def __init__(self, groups: Sequence[Group], optimizers: Sequence[Optimizer]) -> None:
        self._groups = groups
        self._entries = [entry for group in groups for entry in group.trainable]
        self._adds = any(group.adds for group in groups)
        self._divisors = [group.divisor for group in groups for _ in group.trainable]
        self._optimizers = optimizers
        self._to_step: set[int] = set()  # optimizers that have not stepped since the last sync
        self.left_over = False  # the last sync's gradients were not cleared before this minibatch's first backward
        self._dropped = False  # the last minibatch was dropped
        self._reduced: Group | None = None  # the last one
        self._cleared: set[int] = set()  # on a single rank: parameters with a .grad of this minibatch
        self._filled: _Filled | None = None  # at the last sync
        self._undivided = Unwritten([])  # on a single rank, whose sums are FSDP2's
        # The .grad of parameters whose groups were reduced in this minibatch, from before.
        self._before: list[tuple[list[nn.Parameter], list[torch.Tensor | None]]] = []

    # What groups have once their shards are registered:

    @cached_property
    def _sums(self) -> list[torch.Tensor]:
        return [one for group in self._groups for one in group.own_sums]

    @cached_property
    def _views(self) -> list[torch.Tensor | None]:
        return [one for group in self._groups for one in group.views.gradients]

    @cached_property
    def _viewed(self) -> list[tuple[Entry, torch.Tensor]]:
        both = zip(self._entries, self._views, strict=True)
        return [(entry, view) for entry, view in both if view is not None]

    @cached_property
    def _made(self) -> tuple[list[torch.Tensor], list[int]]:
        views = [group.views for group in self._groups]
        return [one for group in views for one in group.made], [one for group in views for one in group.addresses]

    @cached_property
    def _in_place(self) -> list[tuple[Quotients, float]]:
        """Of the sums that are gradients, those of one kind and divisor together."""
        by_kind: dict[object, tuple[list[torch.Tensor], float]] = {}
        for group in self._groups:
            for one in group.views.sums:
                by_kind.setdefault((group.divisor, kind_of(one, one)), ([], group.divisor))[0].append(one)
        return [(Quotients(sums), divisor) for sums, divisor in by_kind.values()]

    @cached_property
    def _tied(self) -> list[int]:
        """The indices of parameters that are in several groups."""
        counts = Counter(id(entry.parameter) for entry in self._entries)
        return [index for index, entry in enumerate(self._entries) if counts[id(entry.parameter)] > 1]

    # ---- in a minibatch ----

    def before_reduce(self, group: Group) -> None:
        self.drop_zeros()
        self._reduced = group
        if not self._before:
            self.left_over = self.unused()
        if not group.participation.any_reduced():
            parameters = [entry.parameter for entry in group.trainable]
            self._before.append((parameters, [one.grad for one in parameters]))
        if not group.adds:
            # A single rank's .grad is FSDP2's own; it must not add to the last sync's result.
            for index in group.participation.pending:
                parameter = group.trainable[index].parameter
                if id(parameter) not in self._cleared:
                    self._cleared.add(id(parameter))
                    parameter.grad = None

    def drop_zeros(self) -> None:
        """FSDP2 has made gradients of zeros where views of the sums come at the sync."""
        if self._reduced is not None:
            self._reduced.views.drop_zeros()

    def synced(self) -> None:
        """The minibatch has ended."""
        self._dropped = False
        self._forget()

    def drop(self) -> None:
        """The minibatch has ended, and its gradients become what they were before it."""
        for parameters, gradients in reversed(self._before):  # the first record of a tied one is the oldest
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        # The gradients of the sync before may still be there, unused.
        self._dropped = not (self.left_over or (not self._before and self.unused()))
        self._forget()

    def _forget(self) -> None:
        self.left_over = False
        self._cleared.clear()
        self._before.clear()

    # ---- after the sync ----

    def begin_fill(self) -> None:
        """Before fill(), which may be called several times."""
        if not self._adds:
            self._undivided = Unwritten(self.local())
            return
        views, addresses = self._made
        if list(map(torch.Tensor.data_ptr, views)) != addresses:
            self._renew()
        for sums, _ in self._in_place:
            sums.begin()

    def fill(self, took_part: Sequence[bool], divisor: float | None) -> None:
        """Writes the sums, divided by `divisor` (None: each group's), into the gradient of each parameter that any rank
        had one for. A tied parameter is in several groups, and its gradient is the sum of all, as in plain FSDP2. After
        an exception it is called again, with the same arguments."""
        entries = self._entries
        again = come_again({index: entries[index].parameter for index in self._tied if took_part[index]})
        if not self._adds:  # a single rank's FSDP2 has added the gradients of all groups
            left = set(map(id, self._undivided.left()))
            by_divisor: dict[float, list[torch.Tensor]] = {}
            for index, entry in enumerate(entries):
                gradient = entry.parameter.grad if took_part[index] and index not in again else None
                if gradient is not None and id(alone := local_tensor(gradient)) in left:
                    by_divisor.setdefault(divisor or self._divisors[index], []).append(alone)
            for by, gradients in by_divisor.items():  # in one call, since those of a group have one counter
                torch._foreach_div_(gradients, by)
            self._undivided = Unwritten([])
            return
        if self._filled is None or self._filled.key != (took_part, again):
            self._filled = self._find_filled(took_part, again)
        for sums, own_divisor in self._in_place:  # also what nobody has added to, which is zero
            sums.divide(divisor or own_divisor)
        with quick_gradients():
            for entry, view in self._filled.views:
                entry.parameter.grad = view
        for beside, sums, own_divisor in self._filled.beside:
            with quick_gradients():
                filled = [entry.parameter.grad for entry in beside]
            made = [(index, beside[index].parameter) for index, one in enumerate(filled) if one is None]
            for index, parameter in made:
                filled[index] = torch.empty_like(parameter)
            sums.write(divisor or own_divisor, local_tensors(filled))  # type: ignore[arg-type]
            for index, parameter in made:
                parameter.grad = filled[index]
        for index in again:
            local: Any = local_tensor(entries[index].parameter.grad)  # type: ignore[arg-type]
            local.add_(self._sums[index].div(divisor or self._divisors[index]).to(local.device))

    def _renew(self) -> None:
        for group in self._groups:
            group.views.renew()
        for found in ("_views", "_viewed", "_made", "_in_place"):
            self.__dict__.pop(found, None)
        self._filled = None

    def _find_filled(self, took_part: Sequence[bool], again: dict[int, int]) -> _Filled:
        views: list[tuple[Entry, torch.Tensor]] = []
        by_kind: dict[object, list[int]] = {}
        for index, took in enumerate(took_part):
            if not took or index in again:
                continue
            if (view := self._views[index]) is not None:
                views.append((self._entries[index], view))
            else:
                kind = kind_of(self._sums[index], self._entries[index].local)
                by_kind.setdefault((self._divisors[index], kind), []).append(index)
        beside = [
            (
                [self._entries[index] for index in indices],
                Quotients([self._sums[index] for index in indices]),
                self._divisors[indices[0]],
            )
            for indices in by_kind.values()
        ]
        return _Filled((took_part, again), views, beside)

    def await_steps(self) -> None:
        self._to_step = set(range(len(self._optimizers)))

    def note_step(self, optimizer: int) -> None:
        self._to_step.discard(optimizer)

    @property
    def all_stepped(self) -> bool:
        return not self._to_step

    def let_go(self) -> None:
        """Before a publish, which sets the sums to zero: of the views of them."""
        if self._viewed:
            let_go(self._viewed, _ids(one for index, one in enumerate(self._optimizers) if index not in self._to_step))

    def let_go_of(self, optimizer: Optimizer) -> bool:
        """Behind a publish: whether it has no gradients left, and some were views."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        return bool(self._viewed) and all(one.grad is None for one in parameters)

    def unused(self) -> bool:
        """Whether gradients of the last sync were neither used by a step nor cleared."""
        if self._dropped or not self._to_step:
            return False
        late = _ids(self._optimizers[index] for index in self._to_step)
        grads = (entry.parameter.grad for entry in self._entries if id(entry.parameter) in late)
        return any(one is not None and bool(local_tensor(one).count_nonzero()) for one in grads)

    def local(self) -> list[torch.Tensor]:
        """This rank's part of each gradient, once for each parameter."""
        parameters = {id(entry.parameter): entry.parameter for entry in self._entries}
        return local_tensors([one.grad for one in parameters.values() if one.grad is not None])


@dataclass(frozen=True)
class _Filled:
    """What a sync writes; the next one does so, too, unless others take part."""

    key: tuple[Sequence[bool], dict[int, int]]  # which took part, and of these come_again()
    # Not parameters, which loading may replace.
    views: list[tuple[Entry, torch.Tensor]]
    beside: list[tuple[list[Entry], Quotients, float]]  # those of one kind and divisor together


def come_again(parameters: dict[int, nn.Parameter]) -> dict[int, int]:
    """`parameters`: by index. The indices of those that have come before, each with its first one."""
    first: dict[int, int] = {}
    again = {}
    for index, parameter in parameters.items():
        if (before := first.setdefault(id(parameter), index)) != index:
            again[index] = before
    return again


def _ids(optimizers: Iterable[Optimizer]) -> set[int]:
    """Of their parameters."""
    return {one for optimizer in optimizers for group in optimizer.param_groups for one in map(id, group["params"])}
