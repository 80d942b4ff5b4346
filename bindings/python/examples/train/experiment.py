# SPDX-License-Identifier: Apache-2.0
"""Trains the arms in turn on the same minibatches, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

from arms import Arm
from decoder import Packed
from load import MachineLoad
from progress import Progress, idle_words
from torch import distributed
from trainer import Step, Trainer, idle_share
from workload import Workload, ideal

import libodc

ROUNDING = 1e-5  # relative difference of losses
_MOST_REDUCED = 64  # values of an all_reduce


class ExperimentError(RuntimeError):
    """The run has ended without a result, since something was wrong."""


@dataclass(frozen=True)
class Block:
    """`seconds` between two barriers, in which one arm trained minibatches `first`, `first` + 1, ..."""

    first: int
    count: int
    seconds: float


@dataclass
class ArmRecord:
    """One arm. `steps[rank]`: each minibatch of each rank, complete after `gather` on rank 0."""

    blocks: list[Block] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)

    def losses(self) -> list[float]:
        return [step.loss for step in self.steps[0]]


Records = dict[Arm, ArmRecord]


class Experiment:
    """This rank's part. All ranks make the same calls."""

    def __init__(self, context: libodc.Context, trainers: Sequence[Trainer], workload: Workload) -> None:
        self._context = context
        self._trainers = trainers
        self._workload = workload
        self._rank = context.rank
        self._idle = ""
        costs = (ideal_cost(trainer.arm, workload, range(len(workload.minibatches))) for trainer in trainers)
        self._progress = Progress(len(trainers) * len(workload.minibatches), sum(costs))
        self._load, self._cpu = MachineLoad(), _own_seconds()
        self.others: float | None = None  # share of the processors, on rank 0 after `gather`
        self.records: Records = {trainer.arm: ArmRecord(steps=[[]]) for trainer in trainers}

    def run(self, first: int, count: int, *, turn: int) -> None:
        """Trains each arm on these minibatches; `turn` rotates the order."""
        arms = list(self._trainers)
        start = turn % len(arms)
        for trainer in arms[start:] + arms[:start]:
            self._idle = self._idle_so_far(trainer.arm)
            begin = time.monotonic()
            self._context.sync()  # no rank computes before `begin`
            for number in range(first, first + count):
                self._train(trainer, number)
            trainer.finish()
            self._context.sync()
            self.records[trainer.arm].blocks.append(Block(first, count, time.monotonic() - begin))

    def _train(self, trainer: Trainer, number: int) -> None:
        arm = trainer.arm
        step = trainer.train(trainer.microbatches(number))
        self.records[arm].steps[0].append(step)
        if self._rank == 0:
            cost = ideal_cost(arm, self._workload, range(number, number + 1))
            self._progress.step(cost, step.end - step.begin, step.loss, self._idle, warm_up=number == 0)

    def _idle_so_far(self, arm: Arm) -> str:
        """Collective. Every rank's share of the time of this arm's turns, but the first, which warms up."""
        record = self.records[arm]
        seconds = sum(block.seconds for block in record.blocks[1:])
        mine = idle_share(record.steps[0][1:], seconds) if seconds else nan
        shares: list[float] = []
        for begin in range(0, self._context.size, _MOST_REDUCED):
            ranks = range(begin, min(begin + _MOST_REDUCED, self._context.size))
            shares += self._context.all_reduce([mine if rank == self._rank else 0.0 for rank in ranks])
        known = not isnan(mine)
        return f"  {idle_words(shares)} ({arm.name})" if known else f"  ({arm.name})"

    def evaluate(self, batches: Sequence[Packed]) -> None:
        """The mean loss of all ranks' batches by arm; all ranks have equally many."""
        for trainer in self._trainers:
            total, learnt = self._context.sync(trainer.evaluate(batches))
            self.records[trainer.arm].held_out.append(total / learnt)

    def gather(self) -> None:
        """Collects the ranks' steps on rank 0, and what other programs took of its machine. Training is over."""
        self._progress.clear()
        own = [_own_seconds() - self._cpu, platform.node()]
        owns = [own] * self._context.size
        distributed.all_gather_object(owns, own)
        self.others = self._load.others(sum(seconds for seconds, node in owns if node == own[1]))
        for record in self.records.values():
            everyone: Any = [None] * self._context.size if self._rank == 0 else None
            distributed.gather_object(record.steps[0], everyone)
            if everyone is not None:
                record.steps = everyone


def _own_seconds() -> float:
    """On a core, of this process and its ended children."""
    return sum(os.times()[:4])


def ideal_cost(arm: Arm, workload: Workload, minibatches: range) -> float:
    """By the cost model."""
    plans = (workload.minibatches[number].plans[arm.policy] for number in minibatches)
    return sum(ideal(workload.costs_of(plan), in_step=arm.in_step) for plan in plans)


def check_losses(records: Records) -> None:
    """Checks that the arms' losses differ by rounding only. Raises ExperimentError."""
    (first, reference), *others = records.items()
    for arm, record in others:
        pairs = zip(reference.losses(), record.losses(), strict=True)
        for number, (wanted, loss) in enumerate(pairs):
            if not abs(loss - wanted) <= ROUNDING * wanted:
                raise ExperimentError(
                    f"in minibatch {number} {arm.name} has loss {loss:.9g} and {first.name} {wanted:.9g}, which differ "
                    f"by more than rounding"
                )
