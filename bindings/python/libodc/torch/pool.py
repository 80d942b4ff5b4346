# SPDX-License-Identifier: Apache-2.0
"""Samples that the ranks make themselves, such as a policy's answers: their sizes become known to all ranks, and each
sample moves to the ranks that train on it, without a collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.dlpack import from_dlpack

from .._abi import Type
from ..context import Context
from ..errors import ArgumentError, MismatchError
from ..shard import Shard, ShardDescription

Sample = Mapping[str, torch.Tensor]
"""Tensors of one dimension, by field."""

_made: WeakKeyDictionary[Context, int] = WeakKeyDictionary()  # pools of a context


class Pool:
    """The samples of all ranks, in the order of their numbers, whichever rank made them: sample i has the i-th smallest
    number. The constructor waits until every rank has made its pool, and for nothing else."""

    def __init__(self, job: Any, samples: Mapping[int, Sample], fields: Mapping[str, torch.dtype]) -> None:
        """`job`: of libodc.torch.fsdp2.attach, or a Context. All ranks make the pool and fetch from it in the same
        minibatch of the job, not between its sync and step; its next sync frees the memory. `samples`: this rank's,
        none too, by numbers from 0 on, each of which one rank has. `fields`: the names and types of a sample's
        tensors, the same on all ranks."""
        self._context: Context = job if isinstance(job, Context) else job.context
        self._before_exchange: Callable[[], None] = _nothing if isinstance(job, Context) else job._hooks.before_exchange
        self._fields = dict(sorted(fields.items()))
        self._own = {number: _checked(number, samples[number], self._fields) for number in sorted(samples)}
        self._before_exchange()
        _made[self._context] = _made.get(self._context, -1) + 1
        self._name = f"libodc.pool.{_made[self._context]}"
        self._fetched = 0
        rows, self._makers = self._everyones_rows()
        self.numbers: list[int] = rows[:, 0].tolist()
        """Of the samples, ascending."""
        self.sizes: dict[str, torch.Tensor] = {name: rows[:, 1 + i].clone() for i, name in enumerate(self._fields)}
        """By field, how many elements each sample has: what MinibatchSampler takes as lengths."""

    def __len__(self) -> int:
        """Samples of all ranks."""
        return len(self.numbers)

    def fetch(self, wanted: Sequence[Sequence[int]]) -> dict[int, dict[str, torch.Tensor]]:
        """This rank's samples of `wanted`, by index. `wanted`: by rank, the indices of the samples that it wants, as
        MinibatchSampler.samples_by_rank gives them; the same on all ranks, which all call this. Only these samples
        move, and a rank waits only for those that made some of its own. The tensors are new ones, in host memory, also
        of what this rank has made."""
        size, rank = self._context.size, self._context.rank
        if len(wanted) != size:
            raise ArgumentError(f"wanted has {len(wanted)} lists of samples for {size} ranks; give one for each")
        lists = [self._by_maker(reader, indices) for reader, indices in enumerate(wanted)]
        self._before_exchange()
        self._fetched += 1
        described = {reader: self._shard_for(reader, lists[reader]) for reader in range(size)}
        used = {reader: one for reader, one in described.items() if one is not None and rank in (one.ranks or ())}
        shards = dict(zip(used, self._context.register_all(list(used.values())), strict=True)) if used else {}
        for reader, shard in shards.items():
            mine = [self._own[self.numbers[i]] for i in lists[reader] if self._makers[i] == rank]
            self._publish(shard, [self._bytes(sample) for sample in mine])
        arrived = _gathered(shards[rank]) if rank in shards else torch.empty(0, dtype=torch.uint8)
        found: dict[int, dict[str, torch.Tensor]] = {}
        begin = 0
        for index in lists[rank]:
            if self._makers[index] == rank:
                found[index] = {name: one.clone() for name, one in self._own[self.numbers[index]].items()}
                continue
            found[index] = {}
            for name, dtype in self._fields.items():
                end = begin + int(self.sizes[name][index]) * dtype.itemsize
                found[index][name] = arrived[begin:end].clone().view(dtype)
                begin = end
        return found

    def _by_maker(self, reader: int, indices: Sequence[int]) -> list[int]:
        wrong = [index for index in indices if not 0 <= index < len(self)]
        if wrong:
            raise ArgumentError(f"rank {reader} wants sample {wrong[0]}, and there are {len(self)}, from 0 on")
        return sorted(set(indices), key=lambda index: (self._makers[index], index))

    def _shard_for(self, reader: int, indices: Sequence[int]) -> ShardDescription | None:
        """A shard of what other ranks have made, which they own and `reader` gathers."""
        sizes = {reader: 0}
        for index in indices:
            if self._makers[index] != reader:
                maker = self._makers[index]
                sizes[maker] = sizes.get(maker, 0) + self._bytes_of(index)
        ranks = sorted(one for one, bytes in sizes.items() if bytes > 0 or one == reader)
        slices = [sizes[one] for one in ranks]
        if sum(slices) == 0:
            return None
        name = f"{self._name}.{self._fetched}.{reader}"
        return ShardDescription(name, sum(slices), Type.BYTES, None, ranks=ranks, slices=slices)

    def _bytes_of(self, index: int) -> int:
        return sum(int(self.sizes[name][index]) * dtype.itemsize for name, dtype in self._fields.items())

    def _bytes(self, sample: Sample) -> torch.Tensor:
        return torch.cat([sample[name].contiguous().view(torch.uint8) for name in self._fields])

    def _everyones_rows(self) -> tuple[torch.Tensor, list[int]]:
        """For each sample of all ranks its number and the sizes of its fields, and the rank that made it."""
        text = repr([(name, str(dtype)) for name, dtype in self._fields.items()])
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
        size, width = self._context.size, 8 * (1 + len(self._fields))
        heads = self._from_all("counts", [16] * size, torch.tensor([[len(self._own), digest]]))
        counts, digests = heads.view(torch.int64).view(size, 2).T.tolist()
        if other := [rank for rank in range(size) if digests[rank] != digests[0]]:
            raise MismatchError(
                f"ranks 0 and {other[0]} give a pool other fields; rank {self._context.rank} has {text}"
            )
        own = [[number, *(one[name].numel() for name in self._fields)] for number, one in self._own.items()]
        sizes = [count * width for count in counts]
        mine = torch.tensor(own, dtype=torch.int64)
        table = self._from_all("rows", sizes, mine).view(torch.int64).view(-1, width // 8)
        makers = [rank for rank, count in enumerate(counts) for _ in range(count)]
        order = sorted(range(len(makers)), key=lambda row: int(table[row, 0]))
        for one, next_one in pairwise(order):
            if table[one, 0] == table[next_one, 0]:
                raise ArgumentError(
                    f"ranks {makers[one]} and {makers[next_one]} both have a sample of number {int(table[one, 0])}; "
                    "numbers must differ over all ranks"
                )
        return table[order], [makers[row] for row in order]

    def _from_all(self, what: str, sizes: list[int], mine: torch.Tensor) -> torch.Tensor:
        """All ranks' bytes, in rank order. `sizes`: of each."""
        if sum(sizes) == 0:
            return torch.empty(0, dtype=torch.uint8)
        shard = self._context.register(f"{self._name}.{what}", sum(sizes), Type.BYTES, None, slices=sizes)
        self._publish(shard, [mine.view(-1).view(torch.uint8)])
        return _gathered(shard)

    def _publish(self, shard: Shard, parts: Sequence[torch.Tensor]) -> None:
        self._context._handle.spent.append(shard.release)
        if parts and (part := shard.slice.parameters) is not None:
            from_dlpack(part).copy_(torch.cat(list(parts)))
        shard.publish()


def _nothing() -> None:
    """Whoever has a Context publishes by itself."""


def _gathered(shard: Shard) -> torch.Tensor:
    full = torch.empty(shard.numel, dtype=torch.uint8)
    shard.gather(full)
    return full


def _checked(number: int, sample: Sample, fields: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    if not 0 <= number < 2**63:
        raise ArgumentError(f"a sample has the number {number}, must be in 0..2**63 - 1")
    if sample.keys() != fields.keys():
        raise ArgumentError(f"sample {number} has the fields {sorted(sample)}, the pool {sorted(fields)}")
    for name, dtype in fields.items():
        one = sample[name]
        if one.dtype != dtype or one.ndim != 1:
            raise ArgumentError(
                f'"{name}" of sample {number} is {one.dtype} of shape {tuple(one.shape)}; it must be {dtype}, '
                "of one dimension"
            )
    return {name: sample[name].detach().to("cpu", copy=True) for name in fields}
