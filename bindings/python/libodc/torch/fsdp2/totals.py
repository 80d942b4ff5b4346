# SPDX-License-Identifier: Apache-2.0
"""Numbers that ranks combine at a sync, by name: a rank omits those for which it has nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..._abi import Reduction
from ...errors import ArgumentError
from ...exact import ExactSum

VALUES = 64  # in a sync or a reduction
LIMIT = VALUES - 1  # of either kind
_PER_VALUE = 6  # bytes of a name, which f64 holds exactly

_DIGIT = "\x1f"  # between the name of an exact sum and the number of a digit

Reduce = Callable[[list[float], Reduction], list[float]]


@dataclass(frozen=True, repr=False)
class Given:
    """A rank's numbers in one call."""

    sums: Mapping[str, float] = field(default_factory=dict)
    maxima: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"sums={self.sums}, maxima={self.maxima}"  # that of dataclasses is wrong forever once it is interrupted


@dataclass(frozen=True)
class Combined:
    """All ranks' numbers: every name that any of them has ever passed, with 0 or -inf if none did this time."""

    sums: dict[str, float]
    maxima: dict[str, float]


@dataclass(frozen=True)
class Names:
    """That any rank has passed so far, in the same order on all."""

    sums: list[str]
    maxima: list[str]


class Totals:
    """All ranks must pass a sync equally many values, whatever names they have. So each keeps the names that any rank
    has passed so far, in the same order. A rank sets a flag in its summary when it has a new one; then, after the sync,
    names are exchanged by reductions, once per name. Values that did not travel with the sync take one reduction."""

    def __init__(self) -> None:
        self.known = Names([], [])

    def has_new(self, given: Given) -> bool:
        return not (given.sums.keys() <= set(self.known.sums) and given.maxima.keys() <= set(self.known.maxima))

    def riding(self, given: Given, room: int) -> list[float]:
        """The values for the sync, at most `room`."""
        return [given.sums.get(name, 0.0) for name in self.known.sums[:room]]

    def complete(
        self,
        known: Names,
        given: Given,
        synced: list[float],
        reduce: Reduce,
        rank: int,
        *,
        new_names: bool,
        any_maxima: bool,
    ) -> Combined:
        """Called after the sync, or again after an exception; the flags are equal on all ranks. `known`: before it."""
        sums, maxima = list(known.sums), list(known.maxima)
        values = list(synced)
        if new_names:
            _learn(given, sums, maxima, reduce, rank)
        if late := sums[len(values) :]:
            values += reduce([given.sums.get(name, 0.0) for name in late], Reduction.SUM)
        largest = [-math.inf] * len(maxima)
        if any_maxima:
            largest = reduce([given.maxima.get(name, -math.inf) for name in maxima], Reduction.MAX)
        combined = _without_digits(dict(zip(sums, values, strict=True)))
        self.known = Names(sums, maxima)
        return Combined(combined, dict(zip(maxima, largest, strict=True)))


def _without_digits(sums: dict[str, float]) -> dict[str, float]:
    made: dict[str, float] = {}
    digits: dict[str, list[float]] = {}
    for name, value in sums.items():
        of, digit, number = name.partition(_DIGIT)
        if not digit:
            made[name] = value
        else:
            digits.setdefault(of, [0.0] * ExactSum.digit_count)[int(number)] = value
    if both := sorted(made.keys() & digits.keys()):
        raise ArgumentError(f"sums[{both[0]!r}] has been a number in one call and an ExactSum in another; keep to one")
    return made | {name: ExactSum.of_digits(all_digits) for name, all_digits in digits.items()}


def _learn(given: Given, sums: list[str], maxima: list[str], reduce: Reduce, rank: int) -> None:
    """Adds names that are not in the lists yet. The ranks that have some send them one after the other."""
    while True:
        mine = [sorted(given.sums.keys() - set(sums)), sorted(given.maxima.keys() - set(maxima))]
        (speaker,) = reduce([float(rank + 1 if any(mine) else 0)], Reduction.MAX)
        if speaker == 0:
            break
        told = json.loads(_tell(json.dumps(mine).encode() if speaker == rank + 1 else b"", reduce))
        for names, new in zip((sums, maxima), told, strict=True):
            names += [name for name in new if name not in names]
    for kind, names in (("sums", sums), ("maxima", maxima)):
        if len(names) > LIMIT:
            raise ArgumentError(
                f"the ranks have given {len(names)} names of {kind} so far, at most {LIMIT} are combined: "
                f"{', '.join(dict.fromkeys(name.partition(_DIGIT)[0] for name in names))}"
            )


def _tell(mine: bytes, reduce: Reduce) -> bytes:
    """Broadcasts one rank's bytes; the others contribute nothing."""
    length = int(reduce([float(len(mine))], Reduction.SUM)[0])
    told = b""
    while len(told) < length:
        step = min(length - len(told), VALUES * _PER_VALUE)
        part = mine[len(told) : len(told) + step] or bytes(step)
        pieces = [part[begin : begin + _PER_VALUE] for begin in range(0, step, _PER_VALUE)]
        numbers = reduce([float(int.from_bytes(piece, "big")) for piece in pieces], Reduction.SUM)
        told += b"".join(int(n).to_bytes(len(piece), "big") for n, piece in zip(numbers, pieces, strict=True))
    return told


def check_divisor(divisor: float | None, weight: float | None) -> None:
    if divisor is not None and weight is not None:
        raise ArgumentError("give divisor or weight, not both")
    if divisor is not None and (divisor == 0 or not math.isfinite(divisor)):
        raise ArgumentError(f"divisor is {divisor}, must be finite and not 0")
    if weight is not None and (weight < 0 or not math.isfinite(weight)):
        raise ArgumentError(f"weight is {weight}, must be finite and at least 0")


def given(sums: Mapping[str, Any] | None, maxima: Mapping[str, Any] | None) -> Given:
    return Given(_numbers("sums", sums), _numbers("maxima", maxima))


def _numbers(kind: str, values: Mapping[str, Any] | None) -> dict[str, float]:
    numbers = {}
    for name, value in sorted((values or {}).items()):
        if _DIGIT in str(name):
            raise ArgumentError(f"{kind}[{name!r}]: a name must not have the control character U+001F")
        if isinstance(value, ExactSum) and kind == "sums":
            numbers.update({f"{name}{_DIGIT}{index}": digit for index, digit in enumerate(value.digits)})
            continue
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError(f"{kind}[{name!r}] is {value!r}, must be a number") from None
    if len(numbers) > LIMIT:
        raise ArgumentError(
            f"{len(numbers)} {kind}; at most {LIMIT} travel with a sync; an ExactSum is {ExactSum.digit_count} of them"
        )
    return numbers
