# SPDX-License-Identifier: Apache-2.0
"""The results of the experiments in numbers, for the tables, the pictures and summary.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

from arms import Arm
from experiment import ROUNDING, ArmRecord, Records
from workload import Workload


@dataclass(frozen=True)
class ArmFigures:
    """An arm over a range of minibatches. `ideal_cost`: if communication took no time; `rank_idle`: shares of the time,
    empty if unknown."""

    arm: Arm
    seconds: float
    samples_per_second: float
    tokens_per_second: float
    ideal_cost: float
    rank_idle: list[float]

    @property
    def idle(self) -> float:
        return sum(self.rank_idle) / len(self.rank_idle) if self.rank_idle else nan

    def summary(self, record: ArmRecord) -> dict[str, object]:
        return {
            "name": self.arm.name,
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "rank_idle": self.rank_idle,
            "losses": record.losses(),
            "held_out_losses": record.held_out,
        }


@dataclass(frozen=True)
class Gain:
    """The speedup of `over` compared with `under`: in each pair of turns, and by the cost model if communication took
    no time."""

    of: str
    under: Arm
    over: Arm
    ratios: list[float]
    ideals: list[float]

    @property
    def median(self) -> float:
        return median(self.ratios)

    @property
    def ideal(self) -> float:
        return median(self.ideals)

    def summary(self) -> dict[str, object]:
        return {
            "of": self.of,
            "over": self.over.name,
            "under": self.under.name,
            "median": self.median,
            "ratios": self.ratios,
            "ideals": self.ideals,
            "ideal": self.ideal,
        }


def arm_figures(arm: Arm, record: ArmRecord, workload: Workload, minibatches: range) -> ArmFigures:
    blocks = [block for block in record.blocks if block.first in minibatches]
    seconds = sum(block.seconds for block in blocks)
    chosen = [workload.minibatches[number] for number in minibatches]
    busy = [sum(steps[number].busy for number in minibatches) for steps in record.steps]
    return ArmFigures(
        arm,
        seconds,
        sum(minibatch.samples for minibatch in chosen) / seconds,
        sum(minibatch.tokens for minibatch in chosen) / seconds,
        ideal_cost(arm, workload, minibatches),
        [max(0.0, 1 - one / seconds) for one in busy if not isnan(one)],
    )


def ideal_cost(arm: Arm, workload: Workload, minibatches: range) -> float:
    ideal = workload.ideal_in_step if arm.in_step else workload.ideal_free
    return sum(ideal(workload.minibatches[number].plans[arm.policy]) for number in minibatches)


def gain(of: str, under: Arm, over: Arm, records: Records, workload: Workload, minibatches: range) -> Gain:
    ratios, ideals = [], []
    for slow, fast in zip(records[under].blocks, records[over].blocks, strict=True):
        if slow.first in minibatches:
            turn = range(slow.first, slow.first + slow.count)
            ratios.append(slow.seconds / fast.seconds)
            ideals.append(ideal_cost(under, workload, turn) / ideal_cost(over, workload, turn))
    return Gain(of, under, over, ratios, ideals)


def loss_differences(records: Records, reference: Arm) -> dict[Arm, list[float]]:
    """For each other arm, the relative difference to `reference` in each minibatch."""
    wanted = records[reference].losses()
    return {
        arm: [abs(a - b) / b for a, b in zip(record.losses(), wanted, strict=True)]
        for arm, record in records.items()
        if arm is not reference
    }


def largest(differences: dict[Arm, list[float]]) -> float:
    return max(max(values) for values in differences.values())


def loss_sentence(differences: dict[Arm, list[float]]) -> str:
    return f"losses of the arms differ by {largest(differences):.1g} at most (relative; {ROUNDING:.0g} is allowed)"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first one flush left, the others right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in (header, *rows)
    ]
