# SPDX-License-Identifier: Apache-2.0
"""Gradients are clipped by the norm of all of them, which has the same bits for any division over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ..._abi import Reduction
from ...exact import ExactSum
from .bulk import Unwritten
from .steps import Steps
from .totals import Reduce

_PIECE = 26  # bits; the squares of f32 have 48
_PIECES = 3
_AT_ONCE = 1 << 24  # elements: the sum of as many pieces is exact in f64
_RAISED = 14  # so that the last piece is whole in the units of ExactSum, which are 2**-64


def total_norm(gradients: list[torch.Tensor], reduce: Reduce) -> float:
    """The 2-norm of the gradients of all ranks together, which `reduce` combines. Squares are added as integers in
    units of 2**-78 of the largest's power of two, so neither their order nor their division over ranks matters."""
    mine = [float(one.abs().max()) for one in gradients if one.numel() > 0]
    (largest,) = reduce([math.nan if any(map(math.isnan, mine)) else max(mine, default=0.0)], Reduction.MAX)
    if not math.isfinite(largest) or largest == 0:
        return largest
    exponent = max(math.frexp(largest)[1], -1022)  # below only in f64, whose least elements then count for less
    squares = ExactSum(piece for one in gradients for piece in _pieces(one, exponent))
    total = ExactSum.of_digits(reduce(squares.digits, Reduction.SUM))
    root = math.sqrt(math.ldexp(total, -_RAISED))
    return math.ldexp(root, exponent) if exponent < 1000 else root * 2.0 ** (exponent - 100) * 2.0**100


def scale(gradients: list[torch.Tensor], by: float, steps: Steps) -> None:
    """A step of a call, which may be repeated."""
    before = steps.run(lambda: Unwritten(gradients))
    # They may be elsewhere since, but in one call either all are written to or none.
    if gradients and before.is_all_left():
        torch._foreach_mul_(gradients, by)


def _pieces(gradient: torch.Tensor, exponent: int) -> Iterator[float]:
    """Sums to 2**14 times that of the squares, in units of 2**(2 * exponent); all elements are below 2**exponent."""
    for part in gradient.reshape(-1).split(_AT_ONCE):
        rest = part.to(torch.float64, copy=True).mul_(math.ldexp(1.0, -exponent)).square_()
        for index in range(_PIECES):
            rest = rest.mul_(2.0**_PIECE)
            whole = rest.round() if index == _PIECES - 1 else rest.floor()
            yield math.ldexp(float(whole.sum()), _RAISED - _PIECE * (index + 1))
            rest = rest.sub_(whole)
