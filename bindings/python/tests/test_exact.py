# SPDX-License-Identifier: Apache-2.0
"""Exact sums against a model of rational numbers: every bf16 and f16 value, random f32, any number of ranks."""

import math
import re
import struct
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks

import libodc
from libodc import Type

UNITS = 51  # a unit is 2^(exponent - UNITS)


def fraction(bits: int, exponent_bits: int, fraction_bits: int) -> Fraction | None:
    """The number with these bits; None: infinity or NaN."""
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = bits >> fraction_bits & 2**exponent_bits - 1
    magnitude = bits & 2**fraction_bits - 1
    if exponent == 2**exponent_bits - 1:
        return None
    magnitude |= 2**fraction_bits if exponent > 0 else 0
    sign = -1 if bits >> (exponent_bits + fraction_bits) else 1
    return sign * magnitude * Fraction(2) ** (max(exponent, 1) - bias - fraction_bits)


@cache  # each bf16 and f16 is added three times
def addend(bits: int, widths: tuple[int, int], exponent: int) -> int | None:
    """In units: rounded to even, as round does, and clamped."""
    value, most = fraction(bits, *widths), 2**UNITS - 1
    return None if value is None else min(max(round(value * Fraction(2) ** (UNITS - exponent)), -most), most)


def as_f32(units: int | None, exponent: int) -> bytes:
    """The nearest f32, rounded to even; a NaN where there is none."""
    if not units:
        return struct.pack("<f", 0.0 if units == 0 else math.nan)
    value = units * Fraction(2) ** (exponent - UNITS)
    above = math.floor(math.log2(abs(units))) + exponent - UNITS
    above += 1 if abs(value) >= Fraction(2) ** (above + 1) else 0
    above -= 1 if abs(value) < Fraction(2) ** above else 0
    last = Fraction(2) ** max(above - 23, -149)
    nearest = round(value / last) * last
    return struct.pack("<f", float(nearest) if abs(nearest) < 2**128 else math.nan)


FORMATS = {Type.BF16: np.uint16, Type.F16: np.float16, Type.F32: np.float32}
WIDTHS = {Type.BF16: (8, 7), Type.F16: (5, 10), Type.F32: (8, 23)}


def gradients(type: Type) -> list[np.ndarray]:
    """Three, whose sums are partly exact in f32, partly ties, partly neither."""
    random = np.random.default_rng(5)
    if type is Type.F32:
        made = random.integers(0, 2**32, (3, 4000), dtype=np.uint32)
        made[1:, :2000] = (
            (random.normal(size=(2, 2000)) * 10.0 ** random.uniform(-9, 2, 2000)).astype(np.float32).view(np.uint32)
        )
        return list(made)
    every = np.arange(65536, dtype=np.uint16)
    return [every, random.permutation(every), np.roll(every, 1000)]


@cache  # the same for any number of ranks
def sums(type: Type, exponent: int) -> np.ndarray:
    def total(column: tuple[int, ...]) -> int | None:
        addends = [addend(bits, WIDTHS[type], exponent) for bits in column]
        return None if None in addends else sum(addends)

    columns = zip(*(one.tolist() for one in gradients(type)), strict=True)
    return np.frombuffer(b"".join(as_f32(total(column), exponent) for column in columns), np.float32)


def adds(rank: int, size: int, job: str, type: Type, largest: float, to: Path) -> None:
    given = gradients(type)
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        shard = context.register("layer", given[0].size, None, type, sum="exact", largest=largest)
        context.publish()
        for number in range(rank, 3, size):
            shard.scatter_add(given[number].view(FORMATS[type]))
        context.sync()
        mine = shard.slice
        if mine.gradients is not None:
            np.save(to / f"{mine.offset}.npy", np.asarray(mine.gradients))
        assert mine.largest > 0 and math.log2(mine.largest).is_integer()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("type", "exponent"), [(Type.BF16, 0), (Type.BF16, -98), (Type.F16, 16), (Type.F32, 10), (Type.F32, 127)]
)
def test_sums_are_those_of_rational_numbers(type: Type, exponent: int, size: int, tmp_path: Path) -> None:
    run_ranks(size, adds, type, 2.0**exponent, tmp_path)
    parts = sorted(tmp_path.iterdir(), key=lambda path: int(path.stem))
    got = np.concatenate([np.load(path) for path in parts])
    wanted = sums(type, exponent)
    assert np.isnan(got[np.isnan(wanted)]).all()
    assert (got.view(np.uint32) == wanted.view(np.uint32))[~np.isnan(wanted)].all()


def one_after_another(rank: int, size: int, job: str) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        shard = context.register("layer", 10, Type.F32, Type.F32, sum="exact")
        plain = context.register("plain", 10)
        assert shard.slice.largest == 1024 and plain.slice.largest == 0
        for _ in range(2):
            context.publish()
            shard.scatter_add(np.full(10, 5000, np.float32))
            context.sync()
        assert shard.slice.largest == 2.0**20  # 64 times the largest sum, of two ranks
        stats = context.stats()
        assert stats.clamped_addends == 10  # in the first minibatch
        if rank == 0:
            assert "clamped" in str(libodc.stats())


def test_too_large_gradients_are_counted() -> None:
    run_ranks(2, one_after_another)


def test_bad_descriptions() -> None:
    with libodc.init(rank=0, size=1, job="exact") as context:
        with pytest.raises(libodc.ArgumentError, match=r'sum of shard "x" is \'close\', must be None or "exact"'):
            context.register("x", 10, sum="close")  # type: ignore[arg-type]
        with pytest.raises(libodc.UnsupportedError, match="f64"):
            context.register("x", 10, Type.F64, Type.F64, sum="exact")
        for largest in (math.inf, 1e300, math.nan, "1"):
            with pytest.raises(libodc.ArgumentError, match=re.escape(f'largest of shard "x" is {largest!r}, must be')):
                context.register("x", 10, sum="exact", largest=largest)
        for largest in (2.0**127.5, 2.0**-99):
            with pytest.raises(libodc.ArgumentError, match="2\\^-98"):
                context.register("x", 10, sum="exact", largest=largest)
        with pytest.raises(libodc.ArgumentError, match="sum is not ODC_SUM_EXACT"):
            context.register("x", 10, largest=8)
