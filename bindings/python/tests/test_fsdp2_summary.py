# SPDX-License-Identifier: Apache-2.0
"""What all ranks learn of each other's minibatch at its sync, compared with what each of them knows: for real, and
simulated with up to 1,024 ranks, which also counts values and reductions."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fsdp2_models import LIMIT, mesh_of
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch.fsdp2 import attach
from libodc.torch.fsdp2.summary import Digits, JobSummary, RankSummary, Summaries

VALUES = 64  # in a sync or a reduction
CALLS = [
    "sync_gradients(divisor=None, weight=None)",
    "sync_gradients(divisor=2.0, weight=None)",
    "publish()",
    "close()",
]


class _Reduces(Exception):
    def __init__(self, values: list[float], op: libodc.Reduction) -> None:
        self.values, self.op = values, op


@dataclass
class Exchange:
    """What a sync of simulated ranks took."""

    riding: int  # values
    reductions: list[int]  # values of each


def combine(everyone: Sequence[Sequence[float]], op: libodc.Reduction) -> list[float]:
    assert len({len(one) for one in everyone}) == 1, "ranks combine different numbers of values"
    assert 1 <= len(everyone[0]) <= VALUES
    assert all(value == int(value) and 0 <= value <= 2**53 for one in everyone for value in one)
    return [float(max(column) if op is libodc.Reduction.MAX else sum(column)) for column in zip(*everyone, strict=True)]


def sync(ranks: list[Summaries], parts: list[RankSummary], room: int) -> tuple[list[JobSummary], Exchange]:
    """All ranks in step: each repeats its call, as after Ctrl-C, with one more reduction done."""
    riding = [one.riding(part, room) for one, part in zip(ranks, parts, strict=True)]
    assert len(riding[0]) <= room
    travelled, done = combine(riding, libodc.Reduction.SUM), []

    def resumed(one: Summaries, part: RankSummary) -> JobSummary | _Reduces:
        results = iter(done)

        def reduce(values: list[float], op: libodc.Reduction) -> list[float]:
            if (result := next(results, None)) is None:
                raise _Reduces(values, op)
            return result

        try:
            return one.complete(part, travelled, reduce)
        except _Reduces as stopped:
            return stopped

    while True:
        ends = [resumed(one, part) for one, part in zip(ranks, parts, strict=True)]
        if not isinstance(ends[0], _Reduces):
            assert all(isinstance(end, JobSummary) for end in ends), "ranks disagree on a reduction"
            return ends, Exchange(len(travelled), [len(one) for one in done])  # type: ignore[return-value]
        assert len({end.op for end in ends}) == 1  # type: ignore[union-attr]
        done.append(combine([end.values for end in ends], ends[0].op))  # type: ignore[union-attr]


def expected(parts: list[RankSummary]) -> list[JobSummary]:
    """Of each rank."""
    dropped = any(part.vetoes for part in parts)
    said = [part.call.partition("(")[0] if dropped else part.call for part in parts]
    others = {call: [rank for rank, other in enumerate(said) if other != call] for call in said}
    one = JobSummary(
        [not dropped and any(column) for column in zip(*(part.took_part for part in parts), strict=True)],
        [part.microbatches for part in parts],
        [part.claimed for part in parts],
        [],
        sum(part.vetoes for part in parts),
        sum(part.collectives for part in parts),
        sum(part.has_new_names for part in parts),
        sum(part.has_maxima for part in parts),
    )
    return [replace(one, other_callers=others[call]) for call in said]


def check(ranks: list[Summaries], parts: list[RankSummary], room: int = VALUES - 1) -> Exchange:
    found, exchange = sync(ranks, parts, room)
    assert found == expected(parts)
    return exchange


def job(size: int, parameters: int) -> list[Summaries]:
    return [Summaries(parameters, rank, size) for rank in range(size)]


def usual(parameters: int, microbatches: int = 4, claimed: int = 0) -> RankSummary:
    took_part = [microbatches > 0] * parameters
    return RankSummary(took_part, microbatches, claimed, CALLS[0], False, 0, False, False)


def drawn(source: random.Random, parameters: int, kind: dict[str, Any]) -> RankSummary:
    most = kind["most"]
    microbatches = most // 2 if kind["even"] else source.randrange(most)
    took_part = [microbatches > 0 and source.random() < kind["share"] for _ in range(parameters)]
    if microbatches > 0 and not any(took_part):
        took_part[source.randrange(parameters)] = True
    return RankSummary(
        took_part,
        microbatches,
        source.randint(0, microbatches) if kind["claims"] else 0,
        CALLS[0] if source.random() < kind["agree"] else source.choice(CALLS),
        source.random() < kind["veto"],
        source.choice([0, 0, 3]),
        source.random() < 0.2,
        source.random() < 0.2,
    )


@pytest.mark.parametrize("size", [*range(1, 9), 100, 333])
def test_any_minibatches_of_simulated_ranks(size: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    source = random.Random(seed)
    parameters = source.randint(1, 40)
    ranks = job(size, parameters)
    for _ in range(60 if size < 10 else 12):
        kind = {
            "most": source.choice([1, 4, 200, 256, 257, 300, 1 << 19]),
            "even": source.random() < 0.3,
            "share": source.choice([0.0, 0.1, 0.9, 1.0, 1.0]),
            "claims": source.random() < 0.3,
            "agree": source.choice([1.0, 1.0, 1.0, 1 - 1 / size, 0.0]),
            "veto": source.choice([0.0, 0.0, 1 / size]),
        }
        parts = [drawn(source, parameters, kind) for _ in range(size)]
        check(ranks, parts, source.randint(ranks[0].length, VALUES - 1))


def test_1000_parameters_of_1024_ranks() -> None:
    """In the common case nothing but an arrival goes from each rank to every other one, with 8 values: the sync's
    weight and 7 of the summary. Those of all other ranks, which a rank on a host of its own sends, are below 64 KiB."""
    size, parameters = 1024, 1000
    ranks = job(size, parameters)
    for microbatches in (4, 1, 0):
        exchange = check(ranks, [usual(parameters, microbatches)] * size)
        assert exchange.reductions == []
        assert (1 + exchange.riding) * 8 * (size - 1) <= 64 << 10
    # The same parameters never take part: told once.
    part = replace(usual(parameters), took_part=[index % 10 != 0 for index in range(parameters)])
    assert len(check(ranks, [part] * size).reductions) == 4
    assert check(ranks, [part] * size).reductions == []
    # Uneven counts, and claims.
    source = random.Random(1)
    counts = [source.randrange(16) for _ in range(size)]
    uneven = [replace(part, microbatches=n, took_part=part.took_part if n else [False] * parameters) for n in counts]
    assert len(check(ranks, uneven).reductions) <= 3
    claims = [replace(one, claimed=one.microbatches // 2) for one in uneven]
    assert len(check(ranks, claims).reductions) <= 6
    # Each uses parameters of its own, and one of them makes another call.
    spread = [replace(part, took_part=[index % size == rank for index in range(parameters)]) for rank in range(size)]
    assert len(check(ranks, spread).reductions) == 4
    assert len(check(ranks, [*[part] * 700, replace(part, call=CALLS[1]), *[part] * 323]).reductions) == 20


def test_typical_jobs_need_no_reduction() -> None:
    """Whatever the counts: up to 128 ranks, with 8 names of sums, and at 8 ranks with 50."""
    source = random.Random(2)
    for size, names in ((2, 50), (8, 50), (64, 24), (128, 8)):
        ranks = job(size, 5)
        for _ in range(5):
            counts = [source.randrange(256) for _ in range(size)]
            exchange = check(ranks, [usual(5, n, n // 3) for n in counts], VALUES - 1 - names)
            assert exchange.reductions == [] or sum(counts) == 0


@pytest.mark.parametrize("size", [2, 1024])
def test_calls_that_hardly_differ(size: int) -> None:
    # Of these divisors the 25 low bits of the calls' CRC32 are equal.
    calls = [f"sync_gradients(divisor={divisor}, weight=None)" for divisor in (17608.0, 210000.0)]
    parts = [replace(usual(3), call=calls[rank == size // 2]) for rank in range(size)]
    check(job(size, 3), parts)


@pytest.mark.parametrize("microbatches", [1, 2, 255, 256, 1000])
def test_one_rank_ran_all_microbatches(microbatches: int) -> None:
    ranks = job(8, 3)
    parts = [usual(3, microbatches if rank == 5 else 0) for rank in range(8)]
    for room in (ranks[0].length, VALUES - 1):
        check(ranks, parts, room)


@pytest.mark.parametrize("base", [2, 3, 9, 256, 1025, 1 << 26, (1 << 26) + 1, 1 << 53])
def test_digits(base: int) -> None:
    source = random.Random(base)
    digits = Digits(base)
    for count in (1, 2, 7, 60):
        numbers = [source.choice([0, base - 1, source.randrange(base)]) for _ in range(count)]
        values = digits.pack(numbers)
        assert len(values) == digits.values(count) and digits.unpack(values, count) == numbers
        alone = [digits.pack_one(index, number, count) for index, number in enumerate(numbers)]
        assert [sum(column) for column in zip(*alone, strict=True)] == values


class Pair(torch.nn.Module):
    """Two parameters, whose gradients are the numbers that they are multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))

    def forward(self, a: float, b: float) -> Any:
        return sum((one * factor).sum() for one, factor in ((self.a, a), (self.b, b)) if factor)


class Pairs(torch.nn.ModuleList):
    def forward(self, factors: list[float]) -> Any:
        taken = zip(self, factors[::2], factors[1::2], strict=True)
        return sum(pair(a, b) for pair, a, b in taken if a or b)


PAIRS = 3


def factors_of(source: random.Random, size: int) -> list[list[list[float]]]:
    """Of each rank's microbatches: a number for each parameter, 0 if it does not take part."""
    share, most = source.choice([0.2, 0.8, 1.0]), source.choice([1, 2, 4])
    made: list[list[list[float]]] = []
    for _ in range(size):
        microbatches = []
        for _ in range(source.randrange(most + 1)):
            factors = [float(source.randint(1, 9)) * (source.random() < share) for _ in range(2 * PAIRS)]
            microbatches.append(factors if any(factors) else [1.0, *factors[1:]])
        made.append(microbatches)
    return made


def microbatches_of(factors: list[list[float]]) -> int:
    """The most backwards in which one parameter took part."""
    return max((sum(factor != 0 for factor in column) for column in zip(*factors, strict=True)), default=0)


def minibatches(rank: int, size: int, seed: int) -> None:
    source = random.Random(seed)
    model = Pairs(Pair() for _ in range(PAIRS))
    for pair in model:
        torch.distributed.fsdp.fully_shard(pair, mesh=mesh_of(size))
    torch.distributed.fsdp.fully_shard(model, mesh=mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    many = [f"name {index}" for index in range(63)]
    known: set[str] = set()
    with attach(model, optimizer, timeout=LIMIT) as job:
        for _ in range(30):
            factors = factors_of(source, size)
            names = [source.sample(many, source.choice([0, 0, 1, 63])) for _ in range(size)]
            vetoes = [source.random() < 0.1 for _ in range(size)]
            claims = [source.choice([0, 0, 1, 5]) for _ in range(size)]
            for one in factors[rank]:
                model(one).backward()
            claimed = [job.context.claim(5 * size) for _ in range(claims[rank])]
            assert None not in claimed
            report = job.sync_gradients(divisor=2.0, sums=dict.fromkeys(names[rank], 1.0), valid=not vetoes[rank])
            known.update(*names)
            assert report.discarded == any(vetoes)
            assert report.microbatches == [microbatches_of(one) for one in factors]
            assert report.claimed == claims
            assert report.sums == {name: sum(name in one for one in names) for name in known}
            for index, parameter in enumerate(one for pair in model for one in (pair.a, pair.b)):
                used = [microbatch[index] for one in factors for microbatch in one if microbatch[index]]
                if report.discarded or not used:
                    assert parameter.grad is None
                else:
                    assert (parameter.grad.full_tensor() == sum(used) / 2).all()
            optimizer.step()
            optimizer.zero_grad()
        others = [source.random() < 0.5 for _ in range(size)]
        other_ranks = [peer for peer in range(size) if others[peer] != others[rank]]
        if other_ranks:
            with pytest.raises(libodc.MismatchError, match=rf"but ranks \[{', '.join(map(str, other_ranks))}\] with"):
                job.publish() if others[rank] else job.sync_gradients()
        job.publish()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_any_minibatches(size: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_torch_ranks(size, minibatches, seed)
