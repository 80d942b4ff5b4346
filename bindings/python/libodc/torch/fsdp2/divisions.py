# SPDX-License-Identifier: Apache-2.0
"""Sums that become gradients, divided in few calls whatever the number of groups."""

from __future__ import annotations

import functools
from typing import Any

import torch

_LARGE = 1 << 16  # elements, from which on one pass over memory counts for more than calls


class Divisions:
    def __init__(self) -> None:
        self._by: dict[tuple[Any, ...], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def add(self, sums: torch.Tensor, divisor: float, into: torch.Tensor) -> None:
        """run() divides `sums` into `into`, which may be the same memory."""
        in_place = sums.data_ptr() == into.data_ptr()
        kind = (divisor, sums.dtype, sums.device, into.dtype, into.device, in_place)
        these, those = self._by.setdefault(kind, ([], []))
        these.append(sums)
        those.append(sums if in_place else into)

    def run(self) -> None:
        for (divisor, *_), (sums, into) in self._by.items():
            _divide(sums, divisor, into)
        self._by.clear()


def _divide(sums: list[torch.Tensor], divisor: float, into: list[torch.Tensor]) -> None:
    """All are of one kind. The bits do not depend on a tensor's size: on a GPU only the foreach functions divide by a
    number itself."""
    kind, device = sums[0].dtype, sums[0].device
    by: Any = divisor if device.type != "cpu" else _as_tensor(divisor, kind)
    alike = into[0].dtype is kind and into[0].device == device

    def together(these: list[torch.Tensor], those: list[torch.Tensor]) -> None:
        if not alike:  # other types, whose values are rounded once, or offloaded
            torch._foreach_copy_(those, torch._foreach_div(these, by))
            return
        if those[0] is not these[0]:
            torch._foreach_copy_(those, these)
        torch._foreach_div_(those, by)

    small, of_small = [], []
    for one, to in zip(sums, into, strict=True):
        if one.numel() < _LARGE:
            small.append(one)
            of_small.append(to)
        elif alike and device.type == "cpu":
            torch.div(one, by, out=to)
        else:
            together([one], [to])
    if small:
        together(small, of_small)


@functools.lru_cache(maxsize=16)
def _as_tensor(divisor: float, dtype: torch.dtype) -> torch.Tensor:
    """On the host torch makes one for each division by a number."""
    return torch.tensor(divisor, dtype=dtype, device="cpu")
