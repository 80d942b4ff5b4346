# SPDX-License-Identifier: Apache-2.0
"""Gradients that are the sums themselves, from sync to publish, which sets the sums to zero."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from ...memory import View
from .forks import watch
from .layout import Entry
from .torch_state import dtensor_like, local_tensor, quick_gradients

Gradients = Literal["view", "copy"]


class GradientViews:
    """Of one group's trainable parameters: of those whose .grad has the type and place of the sums, and which are in no
    other group."""

    def __init__(self, trainable: list[Entry]) -> None:
        self._trainable = trainable
        self.gradients: list[torch.Tensor | None] = [None] * len(trainable)
        """What .grad becomes in the sync, the same objects in each minibatch; None: not a view."""
        self.sums: list[torch.Tensor] = []
        """What becomes these gradients when it is divided."""
        self._empty: list[nn.Parameter] = []
        self.made: list[torch.Tensor] = []
        """The local tensors of those that are views, and where in the slice they are."""
        self.addresses: list[int] = []
        self._parts: dict[int, View] = {}  # of the sums, by index

    def build(self, view: View, sums: torch.Tensor, tied: Container[int]) -> None:
        """`sums`: `view` as a tensor."""
        if sums.device.type == "cpu":
            watch(self, _leave)
        self.sums = [sums]
        for index, entry in enumerate(self._trainable):
            local, size = entry.local, sums.dtype.itemsize
            if local.dtype is sums.dtype and local.device == sums.device and id(entry.parameter) not in tied:
                self._parts[index] = view.part(entry.gradient_offset * size, local.numel())
        self._make()

    def renew(self) -> None:
        """After torch has moved one to shared memory, to hand it to another process."""
        if [one.data_ptr() for one in self.made] != self.addresses:
            self._make()

    def _make(self) -> None:
        self.made.clear()
        for index, part in self._parts.items():
            entry = self._trainable[index]
            self.made.append(from_dlpack(part).view(entry.local.shape))
            self.gradients[index] = dtensor_like(entry.parameter, self.made[-1])
        self.addresses = [one.data_ptr() for one in self.made]
        if len(self.made) < len(self.gradients):
            self.sums = self.made

    def reducing(self, index: int, parameter: nn.Parameter) -> None:
        """FSDP2 is about to make a .grad of zeros, if there is none."""
        if self.gradients[index] is not None and parameter.grad is None:
            self._empty.append(parameter)

    def drop_zeros(self) -> None:
        for parameter in self._empty:
            parameter.grad = None
        self._empty.clear()

    def leave(self) -> None:
        """The gradients move to memory of their own."""
        both = zip(self._trainable, self.gradients, strict=True)
        with torch.no_grad():
            let_go([(entry, gradient) for entry, gradient in both if gradient is not None], ())

    @property
    def nbytes(self) -> int:
        return sum(local_tensor(one).nbytes for one in self.gradients if one is not None)


def let_go(viewed: Iterable[tuple[Entry, torch.Tensor]], used: Container[int]) -> None:
    """Before the sums are set to zero. `used`: ids of parameters; the others' gradients are copied, since somebody
    still waits to use them."""
    kept = []
    with quick_gradients():
        for entry, gradient in viewed:
            parameter = entry.parameter
            if parameter.grad is gradient:
                if id(parameter) in used:
                    parameter.grad = None
                else:
                    kept.append((parameter, gradient))
    for parameter, gradient in kept:
        parameter.grad = dtensor_like(parameter, local_tensor(gradient).clone())


def _leave(groups: list[GradientViews]) -> None:
    for one in groups:
        one.leave()
