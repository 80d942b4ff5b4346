# SPDX-License-Identifier: Apache-2.0
"""What a sync says of the minibatch that it has ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MinibatchReport:
    """What sync_gradients returns."""

    minibatch: int
    """The number of this call, from 0."""
    microbatches: list[int]
    """Of each rank: the backward passes that the parameter with most of them took part in."""
    waited: float
    """Seconds that this rank waited since the last report: for publishes, for another's addition, and in syncs."""
    slowest: int
    """The rank that arrived last."""
    divisor: float | None
    """What the sums were divided by; None: by each group's default."""
    sums: dict[str, float]
    """Over ranks, of every name that any rank has given so far; 0 where none has in this call."""
    maxima: dict[str, float]
    """The same of maxima; -inf where none has."""
    discarded: bool
    """A rank called with valid=False: every .grad is as if no microbatch had run. Skip the step."""
