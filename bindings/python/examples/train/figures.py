# SPDX-License-Identifier: Apache-2.0
"""The results of the experiments in numbers, for the tables, the pictures and summary.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

from arms import COLLECTIVE, COLLECTIVE_ROWS, FSDP, ODC_CLAIMS, ODC_FLAT, ODC_MICRO, ODC_MINI, Arm
from experiment import ROUNDING, ArmRecord, Records
from load import resolution, resolved
from trainer import idle_share
from workload import Workload, ideal


@dataclass(frozen=True)
class ArmFigures:
    """An arm over a range of minibatches. `ideal_seconds`: with this arm's schedule and plan, and the compute that it
    took in this run, if nothing else took time; at most `seconds`, as no rank can be faster than its own compute.
    None, and `rank_idle` (shares of the time) empty, if unknown. `received`: bytes that came into a host in a
    minibatch, of several hosts, and `crossed`: as libodc counts them; None: nobody does."""

    arm: Arm
    seconds: float
    samples_per_second: float
    tokens_per_second: float
    ideal_seconds: float | None
    rank_idle: list[float]
    received: float | None = None
    crossed: float | None = None

    @property
    def idle(self) -> float:
        return sum(self.rank_idle) / len(self.rank_idle) if self.rank_idle else nan

    @property
    def reached(self) -> float | None:
        return None if self.ideal_seconds is None else self.ideal_seconds / self.seconds

    def summary(self, record: ArmRecord) -> dict[str, object]:
        return {
            "name": self.arm.name,
            "seconds": self.seconds,
            "ideal_seconds": self.ideal_seconds,
            "reached": self.reached,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "rank_idle": self.rank_idle,
            "bytes_into_a_host": self.received,
            "bytes_counted": self.crossed,
            "losses": record.losses(),
            "held_out_losses": record.held_out,
        }


@dataclass(frozen=True)
class Gain:
    """The speedup of `over` compared with `under` in each pair of turns."""

    of: str
    under: Arm
    over: Arm
    ratios: list[float]

    @property
    def median(self) -> float:
        return median(self.ratios)

    def __str__(self) -> str:
        return (
            f"{min(self.ratios):.2f} to {max(self.ratios):.2f}x, median {self.median:.2f}x of {len(self.ratios)} pairs"
        )

    def summary(self, verdict: str) -> dict[str, object]:
        return {
            "of": self.of,
            "over": self.over.name,
            "under": self.under.name,
            "median": self.median,
            "ratios": self.ratios,
            **resolution(verdict),
        }


def arm_figures(arm: Arm, record: ArmRecord, workload: Workload, minibatches: range) -> ArmFigures:
    blocks = [block for block in record.blocks if block.first in minibatches]
    seconds = sum(block.seconds for block in blocks)
    chosen = [workload.minibatches[number] for number in minibatches]
    idle = [idle_share([steps[number] for number in minibatches], seconds) for steps in record.steps]
    return ArmFigures(
        arm,
        seconds,
        sum(minibatch.samples for minibatch in chosen) / seconds,
        sum(minibatch.tokens for minibatch in chosen) / seconds,
        _ideal_seconds(arm, record, minibatches),
        [share for share in idle if not isnan(share)],
        _in_each([block.received for block in blocks], len(chosen)),
        _in_each([block.crossed for block in blocks], len(chosen)),
    )


def _in_each(counts: Sequence[float | None], minibatches: int) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / minibatches if len(known) == len(counts) else None


def _ideal_seconds(arm: Arm, record: ArmRecord, minibatches: range) -> float | None:
    if not any(step.spans for steps in record.steps for step in steps):
        return None
    computed = ([steps[number].computed for steps in record.steps] for number in minibatches)
    return sum(ideal(one, in_step=arm.in_step) for one in computed)


def step_gains(records: Records, minibatches: range) -> list[Gain]:
    """Of each step from one arm to the next, which changes one thing, and of several steps."""
    steps = (
        ("transport", FSDP, COLLECTIVE),
        ("plan of collectives", COLLECTIVE, COLLECTIVE_ROWS),
        ("schedule", COLLECTIVE, ODC_MICRO),
        ("transport, schedule", FSDP, ODC_MICRO),
        ("plan", ODC_MICRO, ODC_MINI),
        ("node cache", ODC_FLAT, ODC_MINI),
        ("schedule, plan", COLLECTIVE_ROWS, ODC_MINI),
        ("speeds, claims", ODC_MINI, ODC_CLAIMS),
        ("schedule, speeds, claims", COLLECTIVE_ROWS, ODC_CLAIMS),
        ("schedule, plan" if FSDP not in records else "all", next(iter(records)), next(reversed(records))),
    )
    present = (step for step in steps if step[1] in records and step[2] in records)
    return [_gain(of, under, over, records, minibatches) for of, under, over in present]


def _gain(of: str, under: Arm, over: Arm, records: Records, minibatches: range) -> Gain:
    pairs = zip(records[under].blocks, records[over].blocks, strict=True)
    return Gain(of, under, over, [slow.seconds / fast.seconds for slow, fast in pairs if slow.first in minibatches])


def arms_table(title: str, figures: Sequence[ArmFigures], records: Records, last: int, verdict: str) -> list[str]:
    """`last`: the minibatch whose loss is shown. There are no speedups where the verdict refuses them."""
    rows = [
        (
            figure.arm.name,
            f"{figure.tokens_per_second:.0f}",
            f"{figures[0].seconds / figure.seconds:.2f}x" if resolved(verdict) else "-",
            f"{figure.idle:.1%}" if figure.rank_idle else "-",
            f"{figure.seconds:.2f} s",
            "-" if figure.ideal_seconds is None else f"{figure.ideal_seconds:.2f} s",
            "-" if figure.reached is None else f"{figure.reached:.1%}",
            f"{records[figure.arm].losses()[last]:.6f}",
            "{:.4f} -> {:.4f}".format(*records[figure.arm].held_out),
        )
        for figure in figures
    ]
    header = (title, "tokens/s", "speedup", "idle", "time", "ideal", "reached", "last loss", "held-out loss")
    return table(header, rows)


def bytes_table(figures: Sequence[ArmFigures]) -> list[str]:
    """Of jobs on several hosts, in a minibatch."""
    if any(figure.received is None for figure in figures):
        return []
    rows = [(figure.arm.name, _megabytes(figure.received), _megabytes(figure.crossed)) for figure in figures]
    return ["", *table(("MB into a host, a minibatch", "at its interfaces", "as libodc counts"), rows)]


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count * 1e-6:.1f}"


def gains_table(gains: Sequence[Gain], verdict: str) -> list[str]:
    """Empty where the verdict refuses the gains."""
    if not resolved(verdict):
        return []
    rows = [
        (
            f"{gain.of}: {gain.over.name} over {gain.under.name}",
            f"{gain.median:.3f}x",
            f"{min(gain.ratios):.3f} to {max(gain.ratios):.3f}",
        )
        for gain in gains
    ]
    return ["", *table((f"gain of (median of {len(gains[0].ratios)} pairs)", "gain", "spread"), rows)]


NOTES = (
    "ideal: the same schedule and plan if nothing but its compute, as measured in this run, took time: of odc in each",
    "minibatch the slowest rank's, of collectives the sum of each microbatch's slowest; reached: ideal / time",
)


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


def ranks_of(size: int) -> str:
    return f"{size} rank{'s' if size > 1 else ''}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first one flush left, the others right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in (header, *rows)
    ]
