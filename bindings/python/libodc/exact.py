# SPDX-License-Identifier: Apache-2.0
"""Sums of numbers that are the same bits for any order and any division over ranks."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

from ._abi import lib
from .errors import ArgumentError, check

_DIGITS = 6
_Digits = ctypes.c_double * _DIGITS


class ExactSum:
    """A sum whose bits depend neither on the order of its addends nor on which rank adds which.

    Each addend is rounded to a multiple of 2**-64; its magnitude must be below 2**94. NaN and infinities stay. Ranks
    combine their sums by `digits`, each of which is added over ranks (odc_all_reduce, or riding on a sync), and
    `of_digits`; sync_gradients(sums={"loss": ExactSum(...)}) does so.
    """

    digit_count = _DIGITS
    """How many numbers `digits` are."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._digits = _Digits()
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Anything that float() takes: a number, a tensor of one element, which may need a gradient."""
        number = ctypes.c_double(float(value.detach() if hasattr(value, "detach") else value))
        check(lib.odc_exact_add(self._digits, ctypes.byref(number), 1))

    @property
    def value(self) -> float:
        """This rank's sum, rounded to the nearest f64."""
        return self.of_digits(self.digits)

    @property
    def digits(self) -> list[float]:
        return list(self._digits)

    @staticmethod
    def of_digits(digits: Sequence[float]) -> float:
        """The value of `digits`, of one rank or added over several."""
        if len(digits) != _DIGITS:
            raise ArgumentError(f"{len(digits)} numbers are no digits of an exact sum, which has {_DIGITS}")
        value = ctypes.c_double(math.nan)
        check(lib.odc_exact_value(_Digits(*digits), ctypes.byref(value)))
        return value.value

    def __repr__(self) -> str:
        return f"ExactSum({self.value})"
