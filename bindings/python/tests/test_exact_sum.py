# SPDX-License-Identifier: Apache-2.0
"""ExactSum against fractions: the same value for any order and division."""

import math
import random
from fractions import Fraction

import pytest

from libodc import ExactSum

UNIT = Fraction(1, 1 << 64)


def rounded(value: float) -> Fraction:
    """To a multiple of the unit, ties to even."""
    return round(Fraction(value) / UNIT) * UNIT


def numbers(draw: random.Random, count: int) -> list[float]:
    return [draw.choice((-1, 1)) * math.ldexp(draw.random(), draw.randrange(-80, 90)) for _ in range(count)]


def test_any_order_and_division_gives_the_rounded_sum() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(200):
        values = numbers(draw, draw.randrange(1, 50))
        expected = float(sum(map(rounded, values)))
        for ranks in (1, 2, 7):
            draw.shuffle(values)
            parts = [ExactSum(values[rank::ranks]) for rank in range(ranks)]
            added = [sum(digits) for digits in zip(*(one.digits for one in parts), strict=True)]
            assert ExactSum.of_digits(added) == expected
        assert ExactSum(values).value == expected


def test_digits_of_many_ranks_add_up_exactly() -> None:
    one = ExactSum([2.0**93, -(2.0**-64), 1.5])
    assert all(abs(digit) <= 2**32 for digit in one.digits)
    assert ExactSum.of_digits([digit * 2**20 for digit in one.digits]) == float(
        (Fraction(2) ** 93 - UNIT + Fraction(3, 2)) * 2**20
    )


def test_what_is_not_finite_stays() -> None:
    assert math.isnan(ExactSum([1.0, math.nan]).value)
    assert ExactSum([math.inf, 1.0]).value == math.inf
    assert math.isnan(ExactSum([math.inf, -math.inf]).value)


class Loss:
    """As a tensor that needs a gradient: torch warns where that is made a number."""

    def __float__(self) -> float:
        raise AssertionError("not detached")

    def detach(self) -> float:
        return 0.5


def test_a_loss_that_needs_a_gradient_is_taken() -> None:
    assert ExactSum([Loss(), Loss()]).value == 1.0


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="too large for an exact sum"):
        ExactSum([2.0**94])
    with pytest.raises(ValueError, match="2 numbers are no digits of an exact sum, which has 6"):
        ExactSum.of_digits([1.0, 2.0])
    assert repr(ExactSum([0.5, 0.25])) == "ExactSum(0.75)"
