# SPDX-License-Identifier: Apache-2.0
"""What a sync returns."""

from __future__ import annotations

from dataclasses import dataclass

from ...context import Context
from .exchange import Exchanged


@dataclass(frozen=True)
class MinibatchReport:
    """What sync_gradients returns."""

    minibatch: int
    """The number of this call, from 0."""
    microbatches: list[int]
    """By rank: the largest number of backward passes in which a parameter took part."""
    waited_s: float
    """Seconds that this rank waited since the last report: for publishes, for locks of other additions, and in syncs.
    """
    slowest: int
    """The rank that arrived last."""
    divisor: float | None
    """The divisor of the sums; None: each group's default."""
    sums: dict[str, float]
    """Sums over ranks, for every name that any rank has passed so far; 0 if none did in this call."""
    maxima: dict[str, float]
    """Maxima over ranks; -inf if none did in this call."""
    discarded: bool
    """A rank called with valid=False: every .grad is as if no microbatch had run. Skip the step."""
    claimed: list[int]
    """By rank: how many of the microbatches it claimed, as MinibatchSampler.claims does."""
    speeds: list[float]
    """By rank, relative to their mean; 1.0: not measured yet. See Context.speeds."""

    @property
    def planned(self) -> list[int]:
        """By rank: the microbatches that it did not claim."""
        return [ran - claimed for ran, claimed in zip(self.microbatches, self.claimed, strict=True)]


class Reports:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._waited = 0  # nanoseconds, up to the last sync

    def of(self, minibatch: int, done: Exchanged, divisor: float | None) -> MinibatchReport:
        stats = self._context.stats()
        waited = stats.publish_wait_ns + stats.lock_wait_ns + stats.sync_wait_ns
        report = MinibatchReport(
            minibatch,
            done.summary.microbatches,
            (waited - self._waited) * 1e-9,
            stats.sync_last_rank,
            divisor,
            done.combined.sums,
            done.combined.maxima,
            done.summary.vetoes > 0,
            done.summary.claimed,
            self._context.speeds(),
        )
        self._waited = waited
        return report
