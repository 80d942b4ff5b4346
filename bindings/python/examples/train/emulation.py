# SPDX-License-Identifier: Apache-2.0
"""An emulated device: each block's forward and backward takes the time of a cost model, its span, by sleeping to an
absolute deadline after the real, tiny compute.

As with FSDP2's prefetch on a GPU, the parameters of a block are gathered, and the gradients of the one before are
reduced, beside its compute: a span begins when the one before has ended and its own parameters are there. What fits
beside a span takes no time; what does not, and all that is no block, takes what it takes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from stopwatch import Span, watch
from torch import nn
from torch.distributed.fsdp import FSDPModule

WARNING = "EMULATED DEVICES: compute padded by sleep; not a GPU measurement"
_PR_SET_TIMERSLACK = 29
_MOST_OVERRUN = 0.01


@dataclass(frozen=True)
class Overruns:
    """The number of spans that real compute exceeded."""

    spans: int
    longer: int

    @property
    def share(self) -> float:
        return self.longer / max(1, self.spans)

    def doubt(self, remedies: str) -> str | None:
        """Why the figures are not those of the device; None: they are."""
        if self.share <= _MOST_OVERRUN:
            return None
        return (
            f"real compute was longer than {self.share:.2%} of the emulated spans, more than {_MOST_OVERRUN:.0%} "
            f"({remedies}, or run on a quieter machine)"
        )

    def __str__(self) -> str:
        return (
            f"real compute was longer than {self.longer} of {self.spans} emulated spans, {self.share:.2%} (at most "
            f"{_MOST_OVERRUN:.0%})"
        )


def overruns(spans: Iterable[Span]) -> Overruns:
    excess = [span.excess > 0 for span in spans]
    return Overruns(len(excess), sum(excess))


@dataclass
class Device:
    """One rank's device. `clock` and `sleep` are time's own, except in tests."""

    blocks: int
    seconds_per_cost: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spans: list[Span] = field(default_factory=list)
    computed: float = 0.0
    """Seconds of all spans."""

    def __post_init__(self) -> None:
        # Linux may wake a sleeper 50 us late by default, as long as a short span.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._forward = 0.0  # seconds of a forward span
        self._begun = 0.0  # when real compute began: everything needed for the next block was there
        self._begin = 0.0  # of the span
        self._end = 0.0

    def start_microbatch(self, cost: float) -> None:
        """Sets the cost in all; backward takes twice as long as forward. 0: compute is not padded."""
        self._forward = cost * self.seconds_per_cost / (3 * self.blocks)

    def begin(self, *, first: bool) -> None:
        """A block's compute begins; the parameters of the next one are there, too. `first`: its own were not
        prefetched."""
        now = self.clock()
        self._begin = max(self._end, now if first else self._begun)
        self._begun = now

    def end(self, *, backward: bool) -> None:
        """Its compute has ended. Returns at the end of its span."""
        if self._forward == 0:
            return
        duration = self._forward * (2 if backward else 1)
        now = self.clock()
        excess = max(0.0, now - self._begun - duration)
        self._end = self._begin + duration + excess
        self.spans.append(Span(backward, self._begin, self._end, excess))
        self.computed += duration + excess
        if self._end > now:
            self.sleep(self._end - now)


def pad(blocks: nn.ModuleList, device: Device) -> None:
    """Runs blocks prepared by fully_shard on `device`."""
    watch(blocks, device)
    for block, following in pairwise(blocks):
        assert isinstance(block, FSDPModule) and isinstance(following, FSDPModule)
        block.set_modules_to_forward_prefetch([following])
