# SPDX-License-Identifier: Apache-2.0
"""Gradients that are the sums themselves, from sync to publish, which sets the sums to zero."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from ...memory import View
from .forks import watch
from .layout import Entry
from .torch_state import local_tensor, set_local_tensor

Gradients = Literal["view", "copy"]


class GradientViews:
    """Of one group. By index of trainable parameters: those whose .grad has the type and place of the sums, and which
    are in no other group."""

    def __init__(self) -> None:
        self._sums: dict[int, torch.Tensor] = {}
        self._grads: dict[int, torch.Tensor] = {}
        self._empty: list[nn.Parameter] = []
        self._trainable: list[Entry] = []

    def build(self, view: View, sums: torch.Tensor, trainable: list[Entry], tied: Container[int]) -> None:
        """`sums`: `view` as a tensor."""
        self._trainable = trainable
        if sums.device.type == "cpu":
            watch(self, _leave)
        for index, entry in enumerate(trainable):
            local, size = entry.local, sums.dtype.itemsize
            if local.dtype is sums.dtype and local.device == sums.device and id(entry.parameter) not in tied:
                part = view.part(entry.gradient_offset * size, local.numel())
                self._sums[index] = from_dlpack(part).view(local.shape)

    def of(self, index: int, parameter: nn.Parameter) -> torch.Tensor | None:
        """The .grad to be; the same object in each minibatch."""
        if index not in self._sums:
            return None
        made: Any = self._grads.get(index)
        if made is None or made.shape != parameter.shape:
            made = parameter.detach()
            set_local_tensor(made, self._sums[index])
            self._grads[index] = made
        return made  # type: ignore[no-any-return]

    def reducing(self, index: int, parameter: nn.Parameter) -> None:
        """FSDP2 is about to make a .grad of zeros, if there is none."""
        if index in self._sums and parameter.grad is None:
            self._empty.append(parameter)

    def drop_zeros(self) -> None:
        for parameter in self._empty:
            parameter.grad = None
        self._empty.clear()

    def leave(self) -> None:
        """The gradients move to memory of their own."""
        with torch.no_grad():
            self.let_go(lambda _: True)

    def let_go(self, keeps: Callable[[nn.Parameter], bool]) -> None:
        """Before the sums are set to zero. Those that somebody still waits to use are copied."""
        for index, grad in self._grads.items():
            parameter = self._trainable[index].parameter
            if parameter.grad is grad:
                parameter.grad = _copied(parameter, grad) if keeps(parameter) else None

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._sums.values())


def _leave(groups: list[GradientViews]) -> None:
    for one in groups:
        one.leave()


def _copied(parameter: nn.Parameter, grad: torch.Tensor) -> torch.Tensor:
    made: Any = parameter.detach()
    set_local_tensor(made, local_tensor(grad).clone())
    return made  # type: ignore[no-any-return]
