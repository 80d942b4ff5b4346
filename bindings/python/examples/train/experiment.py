# SPDX-License-Identifier: Apache-2.0
"""Trains the arms in turn on the same minibatches, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from arms import Arm
from decoder import Packed
from emulation import Slot
from load import MachineLoad
from torch import distributed
from trainer import EmulatedTrainer, Step, Trainer
from workload import Workload

import libodc

ROUNDING = 1e-5  # relative difference of losses
_LINE_EVERY = 2.0  # seconds, without a terminal


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
    """One arm. `steps[rank]` and `slots[rank]`: each minibatch of each rank, complete after `gather` on rank 0."""

    blocks: list[Block] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)
    slots: list[list[list[Slot]]] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)

    def losses(self) -> list[float]:
        return [step.loss for step in self.steps[0]]


Records = dict[Arm, ArmRecord]


class LiveLine:
    """The progress, on one line of a terminal, or a line every other second."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        if self._terminal:
            print(f"\r\033[K{text[: os.get_terminal_size(2).columns - 1]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next:
            print(text, file=sys.stderr, flush=True)
            self._next = time.monotonic() + _LINE_EVERY

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Experiment:
    """This rank's part. All ranks make the same calls."""

    def __init__(self, context: libodc.Context, trainers: Sequence[Trainer], workload: Workload) -> None:
        self._context = context
        self._trainers = trainers
        self._workload = workload
        self._rank = context.rank
        self._line = LiveLine()
        self._load, self._cpu = MachineLoad(), time.process_time()
        self.others: float | None = None  # share of the processors, on rank 0 after `gather`
        self.records: Records = {trainer.arm: ArmRecord(steps=[[]], slots=[[]]) for trainer in trainers}

    def run(self, first: int, count: int, *, turn: int) -> None:
        """Trains each arm on these minibatches; `turn` rotates the order."""
        arms = list(self._trainers)
        start = turn % len(arms)
        for trainer in arms[start:] + arms[:start]:
            self._context.sync()
            begin = time.monotonic()
            for number in range(first, first + count):
                self._train(trainer, number)
            trainer.finish()
            self._context.sync()
            self.records[trainer.arm].blocks.append(Block(first, count, time.monotonic() - begin))
        self._line.clear()

    def _train(self, trainer: Trainer, number: int) -> None:
        minibatch = self._workload.minibatches[number]
        step = trainer.train(minibatch.plans[trainer.arm.policy][self._rank])
        record = self.records[trainer.arm]
        record.steps[0].append(step)
        record.slots[0].append(trainer.slots(step) if isinstance(trainer, EmulatedTrainer) else [])
        if self._rank == 0:
            seconds = step.end - step.begin
            idle = "" if isnan(step.busy) else f"  idle {max(0, 1 - step.busy / seconds):4.0%}"
            self._line.show(
                f"step {number + 1}/{len(self._workload.minibatches)}  {trainer.arm.name:<21}  loss {step.loss:.4f}  "
                f"{minibatch.tokens / seconds:6.0f} tokens/s{idle}"
            )

    def evaluate(self, batches: Sequence[Packed]) -> None:
        """The mean loss of all ranks' batches by arm; all ranks have equally many."""
        for trainer in self._trainers:
            total, learnt = self._context.sync(trainer.evaluate(batches))
            self.records[trainer.arm].held_out.append(total / learnt)

    def gather(self) -> None:
        """Collects the ranks' steps on rank 0, and what other programs took of its machine."""
        own = [time.process_time() - self._cpu, platform.node()]
        owns = [own] * self._context.size
        distributed.all_gather_object(owns, own)
        self.others = self._load.others(sum(seconds for seconds, node in owns if node == own[1]))
        for record in self.records.values():
            everyone = [None] * self._context.size if self._rank == 0 else None
            distributed.gather_object((record.steps[0], record.slots[0]), everyone)
            if everyone is not None:
                record.steps, record.slots = map(list, zip(*everyone, strict=True))


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
