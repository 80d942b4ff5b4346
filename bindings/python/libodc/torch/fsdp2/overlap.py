# SPDX-License-Identifier: Apache-2.0
"""Communication behind compute: between hosts the network moves slices and gradients while the ranks compute."""

from __future__ import annotations

from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist

from ..._abi import Memory
from ...context import Context
from ...shard import Operation, Shard


class GatherWork(dist.Work):
    """A started gather. FSDP2 waits for it where it copies the parameters out, so what it prefetches (in backward the
    next block, in forward what set_modules_to_forward_prefetch names) is read while others are computed."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """An interruption leaves the gather started, to be waited for again. `timeout` is the job's."""
        if not self._operation.complete:
            self._operation.wait()
        return True


class Overlap:
    """Starts a job's gathers and additions. Additions complete in the order of their starts, the last ones at the
    sync."""

    ADDITIONS = 2  # that are not complete, whose inputs take memory: as many as FSDP2 keeps of its reduce-scatters

    def __init__(self) -> None:
        self._additions: deque[Operation] = deque()

    def gather(self, shard: Shard, full: torch.Tensor) -> GatherWork:
        return GatherWork(shard.gather_start(full))

    def add(self, shard: Shard, full: torch.Tensor) -> None:
        """`full` is not changed until the addition is complete."""
        while len(self._additions) >= self.ADDITIONS:
            self._additions[0].wait()
            self._additions.popleft()
        self._additions.append(shard.scatter_add_start(full))

    def synced(self) -> None:
        """The sync has completed all additions."""
        self._additions.clear()


def overlap_of(context: Context, memory: Memory) -> Overlap | None:
    """None where nothing is to be hidden: inside a host a rank's own core copies and adds. On GPUs streams order
    gathers and additions behind compute already."""
    if memory is not Memory.HOST:
        return None
    here = all(context.route(rank).transport == "shm" for rank in range(context.size))
    return None if here else Overlap()
