# SPDX-License-Identifier: Apache-2.0
"""The compared arms beside GRPO over ODC with free counts: equal counts, lookahead, claims, collectives, and several
answers a pass."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import policy
import sorting
import torch
from collective import CollectiveJob
from devices import cost_of
from learner import FIELDS, Learner, Record, Sample, Totals, waited_of
from schedule import divide_gradients, fsdp_modules
from torch import distributed

import libodc
from libodc.torch import MinibatchSampler

NOTHING = "passes over nothing"


class EqualLearner(Learner):
    """As many answers on each rank, which is all that trainers for collectives allow."""

    plan = "lb-micro"


class AheadLearner(Learner):
    """All minibatches of a rollout are planned together; a few answers change places between them."""

    _MOST = 16  # minibatches of a window

    def lookahead(self, minibatches: int) -> int:
        return min(minibatches, self._MOST)


class ClaimingLearner(Learner):
    """Ranks claim prompts and answers one by one; any rank may run any answer, so all get all."""

    def prompts_of_rank(self, prompts: Sequence[Sequence[int]]) -> Iterable[int]:
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        while (item := self.context.claim(len(order))) is not None:
            yield order[item]

    def waited(self) -> float:
        return super().waited() + waited_of(self.context)

    def exchange(self, number: int, samples: dict[int, Sample]) -> tuple[MinibatchSampler | None, dict[int, Sample]]:
        made = super().exchange(number, samples)
        self.context.publish()
        self.context.sync()  # the next rollout's claims are others; every rank has come this far
        return made

    def budget(self, lengths: torch.Tensor) -> int:
        return int(lengths.max())  # what a rank claims is a microbatch

    def wanted(self, sampler: MinibatchSampler) -> list[list[int]]:
        return [list(range(sampler.samples))] * self.size

    def minibatches(self, sampler: MinibatchSampler) -> Iterable[Iterable[list[int]]]:
        return sampler.claims(self.job)


class FsdpLearner(EqualLearner):
    """FSDP2 as it is, over gloo: each layer of each pass is a wait for all, so ranks with fewer answers run passes over
    nothing, and all answers go to all ranks. Each runs its longest first, so that long ones meet."""

    in_step = True

    def _attach(self) -> None:
        self._nothing = policy.packed_answers([([0, 0], sorting.solution([0, 0]))])
        self._lengths: list[int] = []  # of the answers, with their prompts
        self._waited = 0.0

    def close(self) -> None:
        pass

    def waited(self) -> float:
        """Seconds so far in collectives that are no part of a pass: how long one waits is unknown."""
        return self._waited

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._waited += time.monotonic() - begin

    def waited_for_reference(self) -> float:
        return 0.0  # unknown

    @contextmanager
    def whole(self) -> Iterator[None]:
        with self._waiting():
            for module in fsdp_modules(self.policy):
                module.unshard()
        yield
        for module in fsdp_modules(self.policy):
            module.reshard()

    def padding_of(self, passes: int) -> int:
        most = torch.tensor([passes])
        with self._waiting():
            distributed.all_reduce(most, distributed.ReduceOp.MAX)
        return int(most) - passes

    def pad_scores(self, padding: int, record: Record) -> None:
        for _ in range(padding):
            policy.log_probabilities(self.policy, self._nothing)
            policy.log_probabilities(self.reference, self._nothing)
        record.padding += padding

    def exchange(self, number: int, samples: dict[int, Sample]) -> tuple[MinibatchSampler | None, dict[int, Sample]]:
        everyone: list[Any] = [None] * self.size
        with self._waiting():
            distributed.all_gather_object(everyone, samples)
        together = dict(sorted((number, one) for mine in everyone for number, one in mine.items()))
        if not together:
            return None, {}
        sizes = {name: torch.tensor([len(one[name]) for one in together.values()]) for name in FIELDS}
        self._lengths = sizes["tokens"].tolist()
        return self.sampler(number, sizes["tokens"], sizes["old"]), dict(enumerate(together.values()))

    def passes(self, minibatch: Iterable[list[int]]) -> list[list[int]]:
        mine = list(super().passes(minibatch))
        self._padding = self.padding_of(len(mine))  # passes over nothing in this minibatch
        return sorted(mine, key=lambda numbers: -sum(cost_of(self._lengths[index]) for index in numbers))

    def end_minibatch(self, divisor: float, count: int, totals: Totals, record: Record) -> None:
        with record.span(NOTHING):
            for _ in range(self._padding):
                nothing = policy.log_probabilities(self.policy, self._nothing).sum() * 0
                nothing.backward()  # type: ignore[no-untyped-call]
        record.padding += self._padding
        digits = torch.tensor([one.digits for one in totals.sums.values()], dtype=torch.float64)
        with record.waiting():
            distributed.all_reduce(digits)
        divide_gradients(self.policy, divisor)
        sums = {name: libodc.ExactSum.of_digits(row) for name, row in zip(totals.sums, digits.tolist(), strict=True)}
        self.step(sums, record)

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), policy.MOST_NORM)

    def refresh(self) -> None:
        for module in fsdp_modules(self.policy):
            module.reshard()
        for module in fsdp_modules(self.reference):
            module.reshard()
        policy.copy_parameters(self.policy, self.reference)


class CollectiveLearner(FsdpLearner):
    """The same schedule, with libodc's shared memory instead of gloo for parameters and gradients."""

    def _attach(self) -> None:
        super()._attach()
        both = (("policy", self.policy), ("reference", self.reference))
        self._jobs = [CollectiveJob(model, f"collective {name}") for name, model in both]

    def close(self) -> None:
        for job in self._jobs:
            job.close()


class Packing(Learner):
    """A microbatch is one pass over all of its answers, as many as have no more tokens together than the longest of the
    rollout: the least that memory must hold. Of collectives each pass is a wait, so they gain most; where the ranks do
    not divide a group's answers, equally many passes need room for two of the longest."""

    def budget(self, lengths: torch.Tensor) -> int:
        longest = int(lengths.max())
        return 2 * longest if self.in_step and self.settings.answers % self.size != 0 else longest

    def split(self, microbatch: list[int]) -> list[list[int]]:
        return [microbatch] if microbatch else []


class PackedFsdpLearner(Packing, FsdpLearner):
    pass


class PackedCollectiveLearner(Packing, CollectiveLearner):
    pass


SAME_BITS = ("odc-equal", "odc-free", "odc-claims")
"""The arms whose minibatches have the same answers, each in a pass of its own."""

ARMS: dict[str, type[Learner]] = {
    "fsdp2-equal": FsdpLearner,
    "fsdp2-packed": PackedFsdpLearner,
    "collective-packed": PackedCollectiveLearner,
    "collective-equal": CollectiveLearner,
    "odc-equal": EqualLearner,
    "odc-free": Learner,
    "odc-packed": Packing,
    "odc-ahead": AheadLearner,
    "odc-claims": ClaimingLearner,
}
