# SPDX-License-Identifier: Apache-2.0
"""Trains the arms in turn on the same minibatches, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from arms import Arm
from decoder import Packed
from load import BUSY, MachineLoad
from progress import Progress, idle_text
from torch import distributed
from traffic import received
from trainer import Step, Trainer, idle_share
from workload import Workload, ideal

import libodc

ROUNDING = 1e-5  # relative difference of losses
_MOST_REDUCED = 64  # values of an all_reduce


class ExperimentError(RuntimeError):
    """The run has ended without a result, since something was wrong."""


@dataclass(frozen=True)
class Block:
    """`seconds` between two barriers, in which one arm trained minibatches `first`, `first` + 1, ... `received`: bytes
    that came into a host meanwhile, the mean over hosts, and `crossed`: as libodc counts them; None: nobody does."""

    first: int
    count: int
    seconds: float
    received: float | None = None
    crossed: float | None = None


@dataclass
class ArmRecord:
    """One arm. `steps[rank]`: each minibatch of each rank, complete after `gather` on rank 0."""

    blocks: list[Block] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)

    def losses(self) -> list[float]:
        return [step.loss for step in self.steps[0]]


Records = dict[Arm, ArmRecord]


@dataclass(frozen=True)
class Attempt:
    """Each arm's turn on the same minibatches: a pair of each two arms. `others`: the share of the processors of rank
    0's host that other programs used meanwhile; negative if unknown."""

    turn: int
    others: float
    blocks: dict[Arm, Block]
    steps: dict[Arm, list[Step]]


class Experiment:
    """This rank's part. All ranks make the same calls."""

    def __init__(self, context: libodc.Context, trainers: Sequence[Trainer], workload: Workload, hosts: int) -> None:
        self._context = context
        self._trainers = trainers
        self._workload = workload
        self._rank = context.rank
        self._idle: dict[Arm, str] = {}  # of all ranks, for the progress line
        costs = (ideal_cost(trainer.arm, workload, range(len(workload.minibatches))) for trainer in trainers)
        self._progress = Progress("step", len(trainers) * len(workload.minibatches), sum(costs))
        nodes = [platform.node()] * context.size
        distributed.all_gather_object(nodes, platform.node())
        self._beside_rank_0 = nodes[self._rank] == nodes[0]
        self._hosts = hosts
        self._attempts: list[Attempt] = []  # that are kept; the first warms up
        self.neighbour_seconds: Callable[[], float] = lambda: 0.0
        self.repeated = 0
        self.records: Records = {trainer.arm: ArmRecord(steps=[[]]) for trainer in trainers}

    @property
    def others(self) -> float | None:
        """The share of the processors that other programs used, the mean over the kept attempts."""
        shares = [attempt.others for attempt in self._attempts[1:]]
        return sum(shares) / len(shares) if shares and min(shares) >= 0 else None

    def run(self, first: int, count: int, *, turn: int) -> None:
        """Trains each arm on these minibatches; `turn` rotates the order. The first run warms up."""
        attempt = self._attempt(first, count, turn)
        self._attempts.append(attempt)
        for arm, record in self.records.items():
            record.blocks.append(attempt.blocks[arm])
            record.steps[0] += attempt.steps[arm]

    def repeat_disturbed(self) -> None:
        """Collective, after all runs. Trains once more on the minibatches that other programs disturbed most, at most
        half of the runs; the less disturbed attempt's times are kept, and the first one's losses."""
        while self.repeated < len(self._attempts) // 2:  # half of the runs that do not warm up, rounded up
            worst = max(range(1, len(self._attempts)), key=lambda number: self._attempts[number].others)
            kept = self._attempts[worst]
            if kept.others <= BUSY:
                return
            self.repeated += 1
            (block, *_) = kept.blocks.values()
            minibatches = range(block.first, block.first + block.count)
            self._progress.extend(
                len(self._trainers) * block.count,
                sum(ideal_cost(trainer.arm, self._workload, minibatches) for trainer in self._trainers),
            )
            again = self._attempt(block.first, block.count, kept.turn)
            if again.others < kept.others:
                self._attempts[worst] = again
                for arm, record in self.records.items():
                    record.blocks[worst] = again.blocks[arm]
                    for number, step in zip(minibatches, again.steps[arm], strict=True):
                        record.steps[0][number] = replace(step, loss=record.steps[0][number].loss)

    def _attempt(self, first: int, count: int, turn: int) -> Attempt:
        load, own = MachineLoad(), self._own_seconds()
        blocks, steps = {}, {}
        arms = list(self._trainers)
        start = turn % len(arms)
        for trainer in arms[start:] + arms[:start]:
            blocks[trainer.arm], steps[trainer.arm] = self._block(trainer, range(first, first + count))
        return Attempt(turn, self._others(load, own), blocks, steps)

    def _block(self, trainer: Trainer, minibatches: range) -> tuple[Block, list[Step]]:
        steps: list[Step] = []
        begin = time.monotonic()
        before = received(), trainer.crossed()
        self._context.sync()  # no rank computes before `begin`
        for number in minibatches:
            if steps:
                self._show(trainer.arm, number - 1, steps[-1])
            steps.append(trainer.train(trainer.microbatches(number)))
        trainer.finish()
        self._context.sync()
        block = Block(minibatches.start, len(minibatches), time.monotonic() - begin, *self._bytes(trainer, before))
        # The last line is shown after the block: the exchange of idle times for it is no part of the training.
        if self._attempts:
            self._idle[trainer.arm] = self._idle_so_far(trainer.arm, block, steps)
        self._show(trainer.arm, minibatches[-1], steps[-1])
        return block, steps

    def _bytes(self, trainer: Trainer, before: tuple[int, int | None]) -> tuple[float | None, float | None]:
        """Collective. Those of a host since `before`, by its interfaces and by libodc."""
        if self._hosts == 1:
            return None, None
        came = (received() - before[0]) / self._context.size
        counted = trainer.crossed()
        moved = counted - before[1] if counted is not None and before[1] is not None else -1.0
        all_came, all_moved = self._context.all_reduce([came, moved / self._hosts])
        return all_came, all_moved if all_moved >= 0 else None

    def _show(self, arm: Arm, number: int, step: Step) -> None:
        if self._rank == 0:
            cost = ideal_cost(arm, self._workload, range(number, number + 1))
            stage = self._idle.get(arm, "") if self._attempts else "warming up "
            result = f"loss {step.loss:.4f}  {stage}({arm.name})"
            self._progress.step(cost, step.end - step.begin, result, warm_up=not self._attempts)

    def _own_seconds(self) -> float:
        """On a core of rank 0's host, of this process, its ended children and its busy neighbour."""
        return sum(os.times()[:4]) + self.neighbour_seconds() if self._beside_rank_0 else 0.0

    def _others(self, load: MachineLoad, own_before: float) -> float:
        """Collective: what rank 0 reads decides for all ranks."""
        (own,) = self._context.all_reduce([self._own_seconds() - own_before])
        share = load.others(own)
        (shared,) = self._context.all_reduce([(-1.0 if share is None else share) if self._rank == 0 else 0.0])
        return shared

    def _idle_so_far(self, arm: Arm, block: Block, steps: Sequence[Step]) -> str:
        """Collective. Every rank's share of the time of this arm's turns but the warm-up, with this block of steps."""
        record = self.records[arm]
        seconds = sum(one.seconds for one in [*record.blocks[1:], block])
        mine = idle_share([*record.steps[0][1:], *steps], seconds)
        shares: list[float] = []
        for begin in range(0, self._context.size, _MOST_REDUCED):
            ranks = range(begin, min(begin + _MOST_REDUCED, self._context.size))
            shares += self._context.all_reduce([mine if rank == self._rank else 0.0 for rank in ranks])
        return "" if isnan(mine) else f"{idle_text(shares)} "

    def evaluate(self, batches: Sequence[Packed]) -> None:
        """The mean loss of all ranks' batches by arm; all ranks have equally many."""
        for trainer in self._trainers:
            total, learnt = self._context.sync(trainer.evaluate(batches))
            self.records[trainer.arm].held_out.append(total / learnt)

    def gather(self) -> None:
        """Collects the ranks' steps on rank 0. Training is over."""
        self._progress.clear()
        for record in self.records.values():
            everyone: Any = [None] * self._context.size if self._rank == 0 else None
            distributed.gather_object(record.steps[0], everyone)
            if everyone is not None:
                record.steps = everyone


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
