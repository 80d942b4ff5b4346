# SPDX-License-Identifier: Apache-2.0
"""The minibatches of a run, divided over ranks and microbatches by each policy, and what is ideal for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from samples import Sample, shuffled_passes

import libodc
from libodc.torch import MinibatchSampler, fsdp2

Microbatches = list[list[int]]
"""One rank's microbatches in the order to run them: each a list of sample indices."""


@dataclass(frozen=True)
class CostModel:
    """A sample of s tokens costs a*x*x + b*x, x = s / 32000 (see libodc.plan_cost). `budget`: a microbatch's tokens."""

    name: str
    budget: int

    def of(self, length: int) -> float:
        a, b = libodc.plan_cost(self.name)
        x = length / 32000
        return a * x * x + b * x


@dataclass(frozen=True)
class Minibatch:
    """`plans[policy][rank]` are the rank's microbatches, `chosen` the samples of all."""

    chosen: list[int]
    tokens: int
    plans: dict[str, list[Microbatches]]

    @property
    def samples(self) -> int:
        return len(self.chosen)


class Workload:
    """`samples`, their `costs`, and `minibatches` over them. The same on all ranks."""

    def __init__(self, samples: Sequence[Sample], cost: CostModel, policies: Sequence[str]) -> None:
        self.samples = samples
        self.costs = [cost.of(sample.length) for sample in samples]
        self.minibatches: list[Minibatch] = []
        self._cost = cost
        self._policies = policies

    def add_minibatches(self, count: int, ranks: int, per_rank: int, seed: int) -> None:
        """`per_rank` samples for each rank, on average, in shuffled passes over the samples."""
        order = shuffled_passes(len(self.samples), seed)
        for _ in range(count):
            chosen = list(islice(order, ranks * per_rank))
            plans = {policy: self.divide(chosen, ranks, policy) for policy in self._policies}
            tokens = sum(len(self.samples[i].tokens) for i in chosen)
            self.minibatches.append(Minibatch(chosen, tokens, plans))

    def divide(self, chosen: Sequence[int], ranks: int, policy: str) -> list[Microbatches]:
        """Divides the chosen samples over ranks and microbatches."""
        lengths = [self.samples[i].length for i in chosen]
        plan = libodc.plan(lengths, ranks, max_tokens=self._cost.budget, policy=policy, cost=self._cost.name)
        return [[[chosen[i] for i in microbatch] for microbatch in rank] for rank in plan.ranks]

    def claims(self, job: fsdp2.Job) -> Iterator[Iterator[list[int]]]:
        """This rank's microbatches of each minibatch in turn, as MinibatchSampler.claims plans and claims them."""
        order = [i for minibatch in self.minibatches for i in minibatch.chosen]
        sampler = MinibatchSampler(
            lengths=[self.samples[i].length for i in order],
            minibatch_size=self.minibatches[0].samples,
            max_tokens=self._cost.budget,
            rank=job.context.rank,
            num_replicas=job.context.size,
            cost=self._cost.name,
            shuffle=False,
        )
        return (([order[i] for i in microbatch] for microbatch in mine) for mine in sampler.claims(job))

    def cost(self, microbatch: Sequence[int]) -> float:
        return sum(self.costs[i] for i in microbatch)

    def costs_of(self, plan: Sequence[Microbatches]) -> list[list[float]]:
        """By rank and microbatch."""
        return [[self.cost(microbatch) for microbatch in rank] for rank in plan]


def ideal(computed: Sequence[Sequence[float]], *, in_step: bool) -> float:
    """The time of a minibatch if nothing but compute took any; `computed`: by rank and microbatch. `in_step`: all ranks
    meet between microbatches, so each lasts as long as the longest of its step; otherwise they meet at the end only."""
    if in_step:
        return sum(max(step) for step in zip_longest(*computed, fillvalue=0.0))
    return max(sum(rank) for rank in computed)
