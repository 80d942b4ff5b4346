# SPDX-License-Identifier: Apache-2.0
"""Sums of numbers that are the same bits for any order and any division over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

_FRACTION = 64  # bits after the point
_DIGIT = 32  # bits; digits of 2**20 ranks add up exactly in f64
_DIGITS = 5


def to_digits(units: int, count: int) -> list[float]:
    """An integer as `count` digits, the least first; all but the last, which has the sign, are in 0..2**32 - 1."""
    low = [float(units >> _DIGIT * index & (1 << _DIGIT) - 1) for index in range(count - 1)]
    return [*low, float(units >> _DIGIT * (count - 1))]


def from_digits(digits: Sequence[float]) -> int:
    """The integer of digits, of one rank or added over several."""
    return sum(int(digit) << _DIGIT * index for index, digit in enumerate(digits))


class ExactSum:
    """A sum whose bits depend neither on the order of its addends nor on which rank adds which.

    Each addend is rounded to a multiple of 2**-64; its magnitude must be below 2**94. NaN and infinities stay. Ranks
    combine their sums by `digits`, each of which is added over ranks (odc_all_reduce, or riding on a sync), and
    `of_digits`; sync_gradients(sums={"loss": ExactSum(...)}) does so.
    """

    digit_count = _DIGITS + 1
    """How many numbers `digits` are."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._units = 0
        self._not_finite = 0.0
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Anything that float() takes: a number, a tensor of one element."""
        number = float(value)
        if not math.isfinite(number):
            self._not_finite += number
        elif abs(number) >= 2.0**94:
            raise ValueError(f"{number} is too large for an exact sum; scale it so that it is below 2**94")
        else:
            self._units += round(math.ldexp(number, _FRACTION))

    @property
    def value(self) -> float:
        """This rank's sum, rounded to the nearest f64."""
        return self.of_digits(self.digits)

    @property
    def digits(self) -> list[float]:
        return [*to_digits(self._units, _DIGITS), self._not_finite]

    @staticmethod
    def of_digits(digits: Sequence[float]) -> float:
        """The value of `digits`, of one rank or added over several."""
        if len(digits) != _DIGITS + 1:
            raise ValueError(f"{len(digits)} numbers are no digits of an exact sum, which has {_DIGITS + 1}")
        if digits[-1] != 0:
            return digits[-1]
        return from_digits(digits[:-1]) / (1 << _FRACTION)

    def __repr__(self) -> str:
        return f"ExactSum({self.value})"
