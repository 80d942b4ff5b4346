# SPDX-License-Identifier: Apache-2.0
"""What all ranks learn of each other's minibatch at its sync: which parameters had gradients on any rank, how many
microbatches each rank ran and claimed, whether all made the same call.

In the common case it is all in a few sums that ride on the sync:
- How many ranks veto, have new names, call each method and so on: digits of one number, in a base above the number of
  ranks, so that no digit of the sum carries over.
- The parameters that took part are the usual ones (at first: all) if no rank has others, and one rank has all of them;
  none if no rank has any.
- All ranks ran the same number of microbatches if their sum and their sum of squares say so, and made the same call if
  the sums of its hash and of that one's hash are those of equal ones. Otherwise each rank's own number is one digit, at
  the place of its rank. In jobs of up to about 150 ranks the digits of microbatches ride on the sync, too.

Only if that does not tell, reductions after the sync do: of digits again, 64 values each. All ranks decide on them by
the same sums. Each value is an integer below 2^53, which f64 adds exactly."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..._abi import Reduction
from .totals import VALUES, Reduce

_EXACT = 53  # bits of an integer in f64

_METHODS = ("sync_gradients", "publish", "the end of trace", "close")
_FLAGS = 7  # four of RankSummary, and three about the parameters that took part
_COUNTED = _FLAGS + len(_METHODS) - 1  # the ranks that call the last method are the rest
_RIDING = 256  # counts below it ride digit by digit; the digit itself stands for all from there on


@dataclass(frozen=True)
class RankSummary:
    """This rank's part."""

    took_part: list[bool]  # of the parameters
    microbatches: int
    claimed: int  # of those
    call: str
    vetoes: bool  # this rank drops the minibatch
    collectives: int  # that it began besides the job's
    has_new_names: bool  # of sums or maxima
    has_maxima: bool


@dataclass(frozen=True)
class JobSummary:
    """All ranks' parts."""

    took_part: list[bool]  # of the parameters, on any rank; none in a dropped minibatch
    microbatches: list[int]  # of each rank
    claimed: list[int]  # of each rank
    other_callers: list[int]  # the ranks whose call is not this rank's; of a dropped minibatch arguments may differ
    vetoes: int  # this and the following: summed over ranks
    collectives: int
    new_names: int
    maxima: int


class Digits:
    """Several small numbers in each value. Sums of values are sums of numbers if those stay below the base."""

    def __init__(self, base: int) -> None:
        self._base = max(base, 2)
        self.per_value = max(int(_EXACT / math.log2(self._base)), 1)

    def values(self, numbers: int) -> int:
        """How many values hold so many numbers."""
        return -(-numbers // self.per_value)

    def pack(self, numbers: Sequence[int]) -> list[float]:
        packed = []
        for begin in range(0, len(numbers), self.per_value):
            value = 0
            for number in reversed(numbers[begin : begin + self.per_value]):
                value = value * self._base + number
            packed.append(float(value))
        return packed

    def pack_one(self, index: int, number: int, count: int) -> list[float]:
        """As pack() of `count` numbers that are 0 but for one."""
        packed = [0.0] * self.values(count)
        packed[index // self.per_value] = float(number * self._base ** (index % self.per_value))
        return packed

    def unpack(self, values: Sequence[float], count: int) -> list[int]:
        numbers: list[int] = []
        for value in values:
            rest = int(value)
            for _ in range(min(self.per_value, count - len(numbers))):
                rest, number = divmod(rest, self._base)
                numbers.append(number)
        return numbers


@dataclass(frozen=True)
class _Sums:
    """What rides on the sync, added up."""

    flags: list[int]  # ranks that have each flag
    methods: list[int]  # ranks that call each method
    collectives: int
    microbatches: tuple[int, int]  # the sum and the sum of squares
    calls: tuple[int, int]  # of a hash, and of its hash
    by_rank: list[list[int]] | None  # microbatches and claimed, if they ride


class Summaries:
    def __init__(self, parameters: int, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._usual = [True] * parameters  # that took part when ranks last exchanged them; equal on all ranks
        self._counts = Digits(ranks + 1)  # of ranks
        self._counted = self._counts.values(_COUNTED)
        self._by_rank = Digits(_RIDING + 1)
        # So that hashes add exactly, and one fits into a digit beside the method.
        self._hash_bits = _EXACT - ranks.bit_length() - len(_METHODS).bit_length()
        self.length = self._counted + 5
        """How many values ride at least."""

    # ---- before the sync ----

    def riding(self, mine: RankSummary, room: int) -> list[float]:
        """The values for the sync, at most `room`. All ranks have the same room, and as many values."""
        usual = mine.took_part == self._usual
        has_all = usual or not any(usual and not took for took, usual in zip(mine.took_part, self._usual, strict=True))
        has_others = not usual and any(
            took and not usual for took, usual in zip(mine.took_part, self._usual, strict=True)
        )
        of_rank = [mine.vetoes, mine.has_new_names, mine.has_maxima, mine.claimed > 0]
        flags = [*of_rank, any(mine.took_part), has_all, has_others]
        own = _METHODS.index(_method(mine.call))
        method = [own == one for one in range(len(_METHODS) - 1)]
        microbatches, call = mine.microbatches, self._hash(mine.call)
        sums = [mine.collectives, microbatches, microbatches**2, call, self._hash(str(call))]
        values = [*self._counts.pack([*flags, *method]), *(float(one) for one in sums)]
        if self.length + 2 * self._by_rank.values(self._ranks) <= room:
            for number in (microbatches, mine.claimed):
                values += self._by_rank.pack_one(self._rank, min(number, _RIDING), self._ranks)
        return values

    def _hash(self, call: str) -> int:
        digest = hashlib.blake2b(call.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") & ((1 << self._hash_bits) - 1)

    # ---- after it ----

    def complete(self, mine: RankSummary, synced: list[float], reduce: Reduce) -> JobSummary:
        """An interrupted call can be repeated: what has changed till then does not change the reductions."""
        sums = self._read(synced)
        vetoes, new_names, maxima, *_ = sums.flags
        others = self._other_callers(mine, sums, reduce)
        took_part = self._took_part(mine, sums, reduce)
        microbatches, claimed = self._microbatches(mine, sums, reduce), self._claimed(mine, sums, reduce)
        return JobSummary(took_part, microbatches, claimed, others, vetoes, sums.collectives, new_names, maxima)

    def _read(self, synced: list[float]) -> _Sums:
        counts = self._counts.unpack(synced[: self._counted], _COUNTED)
        flags, methods = counts[:_FLAGS], counts[_FLAGS:]
        numbers = [int(one) for one in synced[self._counted : self.length]]
        collectives, microbatches, microbatch_squares, calls, call_hashes = numbers
        by_rank = None
        if rest := synced[self.length :]:
            half = len(rest) // 2
            by_rank = [self._by_rank.unpack(one, self._ranks) for one in (rest[:half], rest[half:])]
        return _Sums(
            flags,
            [*methods, self._ranks - sum(methods)],
            collectives,
            (microbatches, microbatch_squares),
            (calls, call_hashes),
            by_rank,
        )

    def _other_callers(self, mine: RankSummary, sums: _Sums, reduce: Reduce) -> list[int]:
        same_method, dropped = max(sums.methods) == self._ranks, sums.flags[0] > 0
        total, hashes = sums.calls
        same = total % self._ranks == 0 and hashes == self._ranks * self._hash(str(total // self._ranks))
        if same_method and (dropped or same):
            return []
        methods = len(_METHODS)
        own = _METHODS.index(_method(mine.call))
        if not dropped:
            own += self._hash(mine.call) * methods
        calls = self._each(own, methods << self._hash_bits, reduce)
        return [rank for rank, call in enumerate(calls) if call != own]

    def _took_part(self, mine: RankSummary, sums: _Sums, reduce: Reduce) -> list[bool]:
        vetoes, _, _, _, have_any, have_all, have_others = sums.flags
        if vetoes > 0 or have_any == 0:
            return [False] * len(mine.took_part)
        if have_all == 0 or have_others > 0:
            values = _in_parts(self._counts.pack(mine.took_part), reduce)
            self._usual = [count > 0 for count in self._counts.unpack(values, len(mine.took_part))]
        return self._usual

    def _microbatches(self, mine: RankSummary, sums: _Sums, reduce: Reduce) -> list[int]:
        total, squares = sums.microbatches
        if self._same(sums.microbatches):
            return [total // self._ranks] * self._ranks
        if sums.by_rank is not None and _RIDING not in sums.by_rank[0]:
            return sums.by_rank[0]
        return self._each(mine.microbatches, math.isqrt(squares) + 1, reduce)

    def _claimed(self, mine: RankSummary, sums: _Sums, reduce: Reduce) -> list[int]:
        have_claimed = sums.flags[3]
        if have_claimed == 0:
            return [0] * self._ranks
        if sums.by_rank is not None and _RIDING not in sums.by_rank[1]:
            return sums.by_rank[1]
        (most,) = reduce([float(mine.claimed)], Reduction.MAX)
        return self._each(mine.claimed, int(most) + 1, reduce)

    def _same(self, sum_and_squares: tuple[int, int]) -> bool:
        total, squares = sum_and_squares
        return self._ranks * squares == total**2

    def _each(self, own: int, base: int, reduce: Reduce) -> list[int]:
        """Each rank's number, which is below `base`."""
        digits = Digits(base)
        values = _in_parts(digits.pack_one(self._rank, own, self._ranks), reduce)
        return digits.unpack(values, self._ranks)


def _method(call: str) -> str:
    return call.partition("(")[0]


def _in_parts(values: list[float], reduce: Reduce) -> list[float]:
    reduced = []
    for begin in range(0, len(values), VALUES):
        reduced += reduce(values[begin : begin + VALUES], Reduction.SUM)
    return reduced
