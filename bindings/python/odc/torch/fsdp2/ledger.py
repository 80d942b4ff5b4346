# SPDX-License-Identifier: Apache-2.0
"""What each rank did in a minibatch: which parameters had gradients, how many microbatches it ran, which call ended it.
Each rank adds its line to every rank's copy before it arrives in sync, so that no other exchange is needed. In host
memory, wherever the model is."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch.utils.dlpack import from_dlpack

from ..._abi import Type
from ...shard import Shard, ShardDescription


@dataclass(frozen=True)
class Page:
    took_part: list[bool]  # of the parameters, on any rank
    microbatches: list[int]  # of each rank
    calls: list[int]  # of each rank: what Ledger.code made of its call


class Ledger:
    NAME = "ledger"

    def __init__(self, parameters: int, ranks: int) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self._length = parameters + 2 * ranks

    def description(self) -> ShardDescription:
        return ShardDescription(self.NAME, self._length * self._ranks, Type.BYTES, Type.F64)

    def install(self, shard: Shard) -> None:
        self._shard = shard
        self._sums = from_dlpack(shard.slice.gradients)

    @staticmethod
    def code(call: str) -> int:
        return zlib.crc32(call.encode())

    def await_owners(self) -> None:
        """Waits until all ranks have published: an addition waits for that, too, but cannot be interrupted safely."""
        self._shard.gather(torch.empty(self._length * self._ranks, dtype=torch.uint8, device="cpu"))

    def write(self, rank: int, took_part: list[bool], microbatches: int, call: int) -> None:
        line = torch.zeros(self._length, dtype=torch.float64, device="cpu")
        line[: self._parameters] = torch.tensor(took_part, dtype=torch.float64, device="cpu")
        line[self._parameters + rank] = microbatches
        line[self._parameters + self._ranks + rank] = call
        self._shard.scatter_add(line.repeat(self._ranks))

    def read(self) -> Page:
        took, microbatches, calls = self._sums.split([self._parameters, self._ranks, self._ranks])
        return Page((took > 0).tolist(), [int(n) for n in microbatches.tolist()], [int(n) for n in calls.tolist()])
