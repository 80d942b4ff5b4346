# SPDX-License-Identifier: Apache-2.0
"""A summary of each rank's minibatch: which parameters had gradients, how many microbatches it ran, which call ended
it. Each rank adds its own to every rank's copy before it arrives in sync, so that no other exchange is needed. In host
memory, wherever the model is."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch.utils.dlpack import from_dlpack

from ..._abi import Type
from ...shard import Shard, ShardDescription


@dataclass(frozen=True)
class RankSummary:
    """This rank's part."""

    took_part: list[bool]  # of the parameters
    microbatches: int
    claimed: int  # of those
    call: int  # SummaryShard.code of its call
    vetoes: bool  # this rank drops the minibatch
    collectives: int  # that it began besides the job's
    has_new_names: bool  # of sums or maxima
    has_maxima: bool


@dataclass(frozen=True)
class JobSummary:
    """All ranks' parts."""

    took_part: list[bool]  # of the parameters, on any rank
    microbatches: list[int]  # of each rank
    claimed: list[int]  # of each rank
    calls: list[int]  # of each rank
    vetoes: int  # this and the following: summed over ranks
    collectives: int
    new_names: int
    maxima: int


_SUMMED = 4


class SummaryShard:
    NAME = "summary"

    def __init__(self, parameters: int, ranks: int) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self._length = parameters + 3 * ranks + _SUMMED

    def description(self) -> ShardDescription:
        return ShardDescription(self.NAME, self._length * self._ranks, Type.BYTES, Type.F64)

    def install(self, shard: Shard) -> None:
        self._shard = shard
        self._sums = from_dlpack(shard.slice.gradients)

    @staticmethod
    def code(call: str) -> int:
        """The called method in the upper bits, its arguments in the lower ones; below 2^53, so that f64 is exact."""
        return (zlib.crc32(call.partition("(")[0].encode()) & 0xFFFFF) << 32 | zlib.crc32(call.encode())

    @staticmethod
    def is_same_call(one: int, other: int, *, with_arguments: bool) -> bool:
        return one == other if with_arguments else one >> 32 == other >> 32

    def await_owners(self) -> None:
        """Waits until all ranks have published. An addition does so, too, but an interruption of it (Ctrl-C) aborts the
        job if the addition has begun and an owner stalls."""
        self._shard.gather(torch.empty(self._length * self._ranks, dtype=torch.uint8, device="cpu"))

    def write(self, rank: int, summary: RankSummary) -> None:
        microbatches, claimed, calls = ([0] * self._ranks for _ in range(3))
        microbatches[rank], claimed[rank], calls[rank] = summary.microbatches, summary.claimed, summary.call
        summed = [summary.vetoes, summary.collectives, summary.has_new_names, summary.has_maxima]
        whole = [*summary.took_part, *microbatches, *claimed, *calls, *summed]
        self._shard.scatter_add(torch.tensor(whole, dtype=torch.float64, device="cpu").repeat(self._ranks))

    def read(self) -> JobSummary:
        took, *others = self._sums.split([self._parameters, *[self._ranks] * 3, _SUMMED])
        microbatches, claimed, calls, summed = ([int(number) for number in one.tolist()] for one in others)
        return JobSummary((took > 0).tolist(), microbatches, claimed, calls, *summed)
