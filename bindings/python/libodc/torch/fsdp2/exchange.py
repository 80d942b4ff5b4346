# SPDX-License-Identifier: Apache-2.0
"""The sync of a minibatch, on which all that ranks tell each other travels, and the reductions right after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..._abi import Reduction
from ..._resumable import AllReduce, Sync
from ...context import Context
from ...errors import ArgumentError, MismatchError
from .steps import Steps
from .summary import JobSummary, RankSummary, Summaries
from .totals import VALUES, Combined, Given, Names, Totals


@dataclasses.dataclass(frozen=True)
class Exchanged:
    summary: JobSummary
    total_weight: float
    combined: Combined


class Exchange:
    """Its steps are some of the job's calls."""

    def __init__(self, context: Context, steps: Steps, parameters: int) -> None:
        self._context = context
        self._steps = steps
        self._summaries = Summaries(parameters, context.rank, context.size)
        self._totals = Totals()

    def has_new(self, numbers: Given) -> bool:
        """Whether there are names that no rank has passed before."""
        return self._totals.has_new(numbers)

    def sync(
        self,
        own: Callable[[], RankSummary],
        weight: float,
        numbers: Given,
        arrived: Callable[[JobSummary], None],
    ) -> Exchanged:
        """`own` is called once for a minibatch: a repeated call uses what it returned, though it would differ by then.
        `arrived` is called when the minibatch has ended, also where this then raises that ranks disagree."""
        step = self._steps.run
        mine = step(own)
        known, names, started = step(lambda: self._start(mine, weight, numbers))
        total_weight, *synced = self._steps.send(started.run)
        summary = self._summaries.complete(mine, synced[names:], self.reduce)
        if summary.other_callers:
            step(lambda: arrived(summary))
            raise MismatchError(
                f"rank {self._context.rank} ended the minibatch with {mine.call}, but ranks {summary.other_callers} "
                "with something else: all call the same, with the same divisor"
            )
        try:
            combined = self._totals.complete(
                known,
                numbers,
                synced[:names],
                self.reduce,
                self._context.rank,
                new_names=summary.new_names > 0,
                any_maxima=summary.maxima > 0,
            )
        except ArgumentError:
            step(lambda: arrived(summary))
            raise
        step(lambda: arrived(summary))
        return Exchanged(summary, total_weight, combined)

    def _start(self, mine: RankSummary, weight: float, numbers: Given) -> tuple[Names, int, Sync]:
        """The names that are known, how many of them ride on the sync, and the sync."""
        room = VALUES - 1
        names = self._totals.riding(numbers, room - self._summaries.length)
        values = [weight, *names, *self._summaries.riding(mine, room - len(names))]
        return self._totals.known, len(names), Sync(self._context._handle, values)

    def reduce(self, values: list[float], op: Reduction) -> list[float]:
        """Within a call: two of its steps."""
        started = self._steps.run(lambda: AllReduce(self._context._handle, values, op))
        return self._steps.send(started.run)
