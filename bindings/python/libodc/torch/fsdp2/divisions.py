# SPDX-License-Identifier: Apache-2.0
"""Sums that become gradients, divided in few calls whatever the number of groups."""

from __future__ import annotations

import functools
from typing import Any

import torch

_LARGE = 1 << 16  # elements, from which on one pass over memory counts for more than calls


def kind_of(sums: torch.Tensor, into: torch.Tensor) -> tuple[object, ...]:
    """Of a division. Those of one kind can be made together."""
    return sums.dtype, sums.device, into.dtype, into.device, sums.numel() < _LARGE


def divide(sums: list[torch.Tensor], divisor: float, into: list[torch.Tensor]) -> None:
    """Writes `sums`, divided, into their places, which may be the sums themselves. All are of one kind. The bits do not
    depend on a tensor's size: on a GPU only the foreach functions divide by a number itself."""
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

    if sums[0].numel() < _LARGE:
        together(sums, into)
        return
    for one, to in zip(sums, into, strict=True):
        if alike and device.type == "cpu":
            torch.div(one, by, out=to)
        else:
            together([one], [to])


@functools.lru_cache(maxsize=16)
def _as_tensor(divisor: float, dtype: torch.dtype) -> torch.Tensor:
    """On the host torch makes one for each division by a number."""
    return torch.tensor(divisor, dtype=dtype, device="cpu")
