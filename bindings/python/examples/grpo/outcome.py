# SPDX-License-Identifier: Apache-2.0
"""What an arm has come to, and whether arms that must agree do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from learner import PHASES, Record
from ways import SAME_BITS


@dataclass(frozen=True)
class Outcome:
    """Of an arm. `records[rank]`: of each rollout; `held_out`: the reward of held-out prompts before and after;
    `digest`: of the last parameters."""

    records: list[list[Record]]
    held_out: tuple[float, float]
    seconds: float
    digest: str

    @property
    def rewards(self) -> list[float]:
        return [record.reward for record in self.records[0]]

    @property
    def phase_seconds(self) -> list[float]:
        """Of all rollouts, mean over ranks."""
        return [
            fmean(sum(record.seconds[phase] for record in records) for records in self.records)
            for phase in range(len(PHASES))
        ]

    @property
    def idle(self) -> float:
        """Share of the time not on a core, mean over ranks."""
        return max(0.0, 1 - fmean(sum(one.busy for one in records) for records in self.records) / self.seconds)

    def trained(self) -> tuple[int, int]:
        """The least and the most answers that a rank trained on in a rollout."""
        counts = [record.trained for records in self.records for record in records]
        return min(counts), max(counts)

    def total(self, name: str) -> float:
        return sum(float(getattr(record, name)) for records in self.records for record in records)

    def waited(self) -> dict[str, float]:
        """Seconds by what for, mean over ranks; of the reference with ODC only."""
        ranks = len(self.records)
        return {
            "parameters": self.total("parameters_waited") / ranks,
            "answers": self.total("answers_waited") / ranks,
            "reference": fmean(records[-1].reference_waited for records in self.records),
        }

    @property
    def steps(self) -> int:
        """Of all rollouts, on all ranks."""
        return sum(sum(record.steps) for records in self.records for record in records)

    @property
    def lock_steps(self) -> int:
        """How many they would be with the same prompts on each rank, if parameters were gathered by collectives in each
        step: all ranks step until the longest answer of the groups that they have at a time. Each takes its longest
        first: in no other order they are fewer."""
        rollouts = zip(*self.records, strict=True)
        steps = ([sorted(record.steps, reverse=True) for record in ranks] for ranks in rollouts)
        return sum(len(ranks) * max(group) for ranks in steps for group in zip_longest(*ranks, fillvalue=0))

    def summary(self) -> dict[str, object]:
        return {
            "rewards": self.rewards,
            "held_out_rewards": self.held_out,
            "divergences": [record.divergence for record in self.records[0]],
            "parameters": self.digest,
            "seconds": self.seconds,
            "phase_seconds": dict(zip(PHASES, self.phase_seconds, strict=True)),
            "idle": self.idle,
            "waited_seconds": self.total("waited") / len(self.records),
            **{f"{what}_waited_seconds": seconds for what, seconds in self.waited().items()},
            "rollout_steps": self.steps,
            "rollout_steps_in_lock_step": self.lock_steps,
            "groups": self.total("groups"),
            "kept_groups": self.total("kept"),
            "answers_by_rank": [[record.trained for record in records] for records in self.records],
            "passes_over_nothing": self.total("padding"),
            "most_ratio_off": max(record.most_off for records in self.records for record in records),
        }


def alike(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Those of the arms that must have the same bits."""
    return {name: one for name, one in outcomes.items() if name in SAME_BITS}


def difference(outcomes: Mapping[str, Outcome]) -> str | None:
    """Between the ODC arms, in rewards or parameters; None: they are the same, bit by bit."""
    ours = alike(outcomes)
    for name, outcome in ours.items():
        first, wanted = next(iter(ours.items()))
        for number, (a, b) in enumerate(zip(wanted.rewards, outcome.rewards, strict=True)):
            if a != b:
                return f"in rollout {number} {first} has the reward {a!r} and {name} {b!r}"
        if (wanted.digest, wanted.held_out) != (outcome.digest, outcome.held_out):
            return f"{first} and {name} end with other parameters"
    return None
