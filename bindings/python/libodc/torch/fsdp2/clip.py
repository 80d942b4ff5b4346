# SPDX-License-Identifier: Apache-2.0
"""The norm of all gradients, the same bits for any division over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ..._abi import Reduction
from ...exact import from_digits, to_digits

_PIECE = 26  # bits; the squares of f32 have 48
_PIECES = 3
_AT_ONCE = 1 << 24  # elements: the sum of as many pieces is exact in f64
_DIGITS = 4  # of 2**32 elements on each rank


def total_norm(gradients: list[torch.Tensor], reduce: Callable[[list[float], Reduction], list[float]]) -> float:
    """The 2-norm of the gradients of all ranks together, which `reduce` combines. Squares are added as integers in
    units of 2**-78 of the largest's power of two, so neither their order nor their division over ranks matters."""
    mine = [float(one.abs().max()) for one in gradients if one.numel() > 0]
    (largest,) = reduce([math.nan if any(map(math.isnan, mine)) else max(mine, default=0.0)], Reduction.MAX)
    if not math.isfinite(largest) or largest == 0:
        return largest
    exponent = max(math.frexp(largest)[1], -1022)  # below only in f64, whose least elements then count for less
    units = sum(_units(one, exponent) for one in gradients)
    total = from_digits(reduce(to_digits(units, _DIGITS), Reduction.SUM))
    root = math.sqrt(total / (1 << _PIECE * _PIECES))
    return math.ldexp(root, exponent) if exponent < 1000 else root * 2.0 ** (exponent - 100) * 2.0**100


def _units(gradient: torch.Tensor, exponent: int) -> int:
    """The sum of squares, in units of 2**(2 * exponent - 78); all elements are below 2**exponent."""
    units = 0
    for part in gradient.reshape(-1).split(_AT_ONCE):
        rest = part.to(torch.float64, copy=True).mul_(math.ldexp(1.0, -exponent)).square_()
        for index in range(_PIECES):
            rest = rest.mul_(2.0**_PIECE)
            whole = rest.round() if index == _PIECES - 1 else rest.floor()
            units += int(whole.sum()) << _PIECE * (_PIECES - 1 - index)
            rest = rest.sub_(whole)
    return units
