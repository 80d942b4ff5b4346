# SPDX-License-Identifier: Apache-2.0
"""How near the update phase on emulated devices comes to its ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from emulation import Overruns, overruns
from figures import table
from learner import Record
from load import resolution, resolved
from workload import ideal

BAR = 0.95  # the share of its ideal that ODC with free counts must reach
NOTES = (
    "update: seconds of all rollouts but the first, which warms up; ideal: the same schedule and plan if nothing but",
    "its compute, as measured in this run, took time: of ODC in each minibatch the slowest rank's, of collectives the",
    "sum of each pass's slowest; reached: ideal / update; speedup: of compute done in a second, at equal speeds, over",
    "the first arm",
)


@dataclass(frozen=True)
class Update:
    """Of an arm, over all rollouts but the first. `computed`: seconds of compute, mean over ranks; `done`: the same if
    all devices had the speed 1."""

    seconds: float
    ideal_seconds: float
    computed: float
    done: float
    overruns: Overruns

    @property
    def reached(self) -> float:
        return self.ideal_seconds / self.seconds

    @property
    def busy(self) -> float:
        """Share of the time."""
        return self.computed / self.seconds

    def speedup_over(self, other: Update) -> float:
        return self.done / self.seconds / (other.done / other.seconds)

    def summary(self, verdict: str) -> dict[str, object]:
        return {**asdict(self), "reached": self.reached, "busy": self.busy, **resolution(verdict)}


def update_of(records: Sequence[Sequence[Record]], *, in_step: bool) -> Update:
    """`records[rank]`: of each rollout. `in_step`: all ranks meet between passes."""
    rollouts = list(zip(*(ranks[1:] for ranks in records), strict=True))
    minibatches = [one for ranks in rollouts for one in zip(*(record.computed for record in ranks), strict=True)]
    return Update(
        sum(max(record.seconds[-1] for record in ranks) for ranks in rollouts),
        sum(ideal(ranks, in_step=in_step) for ranks in minibatches),
        fmean(sum(sum(minibatch[rank]) for minibatch in minibatches) for rank in range(len(records))),
        fmean(sum(map(_done, ranks[1:])) for ranks in records),
        overruns(span for ranks in rollouts for record in ranks for span in record.compute_spans),
    )


def _done(record: Record) -> float:
    """Seconds of compute at speed 1."""
    return sum(speed * sum(seconds) for speed, seconds in zip(record.speeds, record.computed, strict=True))


def update_table(updates: Mapping[str, Update], verdict: str) -> list[str]:
    """There are no speedups where the verdict refuses them."""
    first = next(iter(updates.values()))
    rows = [
        (
            name,
            f"{one.seconds:.2f} s",
            f"{one.ideal_seconds:.2f} s",
            f"{one.reached:.1%}",
            f"{1 - one.busy:.1%}",
            f"{one.speedup_over(first):.2f}x" if first.done > 0 and resolved(verdict) else "-",
        )
        for name, one in updates.items()
    ]
    return table(("emulated devices", "update", "ideal", "reached", "idle", "speedup"), rows)


def together(updates: Mapping[str, Update]) -> Overruns:
    return Overruns(
        sum(one.overruns.spans for one in updates.values()), sum(one.overruns.longer for one in updates.values())
    )


def sentence(updates: Mapping[str, Update]) -> str:
    """The shares of the arms, and whether the one with free counts has reached its bar."""
    free = "odc-free"
    shares = [f"{name} {one.reached:.1%}" for name, one in updates.items() if name != free]
    if free in updates:
        share = updates[free].reached
        shares.insert(0, f"{free} {share:.1%} (at least {BAR:.0%}: {'reached' if share >= BAR else 'missed'})")
    return f"of the update's ideal: {', '.join(shares)}"
