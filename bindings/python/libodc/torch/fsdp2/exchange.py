# SPDX-License-Identifier: Apache-2.0
"""The sync of a minibatch, on which all that ranks tell each other travels, and the reductions right after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..._abi import Reduction
from ...context import Context
from ...errors import ArgumentError, MismatchError
from .steps import Steps
from .summary import JobSummary, RankSummary, Summaries
from .totals import VALUES, Combined, Given, Totals


@dataclasses.dataclass(frozen=True)
class Exchanged:
    summary: JobSummary
    total_weight: float
    combined: Combined


class Exchange:
    """An interrupted call can be repeated: it resumes where it was."""

    def __init__(self, context: Context, parameters: int) -> None:
        self._context = context
        self._summaries = Summaries(parameters, context.rank, context.size)
        self._totals = Totals()
        self._steps = Steps()

    def has_new(self, numbers: Given) -> bool:
        """Whether there are names that no rank has passed before."""
        return self._totals.has_new(numbers)

    def sync(
        self,
        own: Callable[[int], RankSummary],
        collectives: Callable[[], int],
        weight: float,
        numbers: Given,
        arrived: Callable[[JobSummary], None],
    ) -> Exchanged:
        """`own` is given the result of `collectives`, which is called once for a minibatch: others may begin until it
        is repeated. `arrived` is called when the minibatch has ended, also where this then raises that ranks disagree.
        """
        step = self._steps.run
        self._steps.begin()
        mine = own(step(collectives))
        room = VALUES - 1
        names = self._totals.riding(numbers, room - self._summaries.length)
        values = [weight, *names, *self._summaries.riding(mine, room - len(names))]
        total_weight, *synced = step(lambda: self._context.sync(values))

        def reduce(values: list[float], op: Reduction) -> list[float]:
            return step(lambda: self._context.all_reduce(values, op))

        summary = self._summaries.complete(mine, synced[len(names) :], reduce)
        if summary.other_callers:
            self._end(summary, arrived)
            raise MismatchError(
                f"rank {self._context.rank} ended the minibatch with {mine.call}, but ranks {summary.other_callers} "
                "with something else: all call the same, with the same divisor"
            )
        try:
            combined = self._totals.complete(
                numbers,
                synced[: len(names)],
                reduce,
                self._context.rank,
                new_names=summary.new_names > 0,
                any_maxima=summary.maxima > 0,
            )
        except ArgumentError:
            self._end(summary, arrived)
            raise
        self._end(summary, arrived)
        return Exchanged(summary, total_weight, combined)

    def _end(self, summary: JobSummary, arrived: Callable[[JobSummary], None]) -> None:
        self._steps.end()
        arrived(summary)
