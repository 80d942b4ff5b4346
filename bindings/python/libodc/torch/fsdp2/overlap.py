# SPDX-License-Identifier: Apache-2.0
"""Communication behind compute: between hosts the network moves slices and gradients while the ranks compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from ..._abi import Memory
from ...errors import JobError, PhaseError
from ...route import Route
from ...shard import Operation, Shard

T = TypeVar("T")


class GatherWork(dist.Work):
    """A started gather. FSDP2 waits for it where it copies the parameters out, so what it prefetches (in backward the
    next block, in forward what set_modules_to_forward_prefetch names) is read while others are computed."""

    def __init__(self, operation: Operation, overlap: Overlap) -> None:
        super().__init__()
        self._operation = operation
        self._overlap = overlap

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """An interruption leaves the gather started, to be waited for again. `timeout` is the job's."""
        if not self._operation.complete:
            try:
                self._operation.wait()
            except JobError:
                if not self._overlap.left:
                    raise
        return True


class Overlap:
    """Starts a job's gathers and additions. Additions complete in the order of their starts, the last ones at the
    sync."""

    ADDITIONS = 2  # that are not complete, whose inputs take memory: as many as FSDP2 keeps of its reduce-scatters

    def __init__(self) -> None:
        self.left = False
        """The job ends: FSDP2 waits for what it has gathered ahead only to drop it."""
        self._additions: deque[Operation] = deque()
        self._told = False  # when microbatches begin
        self._last = False  # the minibatch's last microbatch is running
        self._counts: dict[Shard, int] = {}  # additions in this microbatch
        self._usual: dict[Shard, int] = {}  # in every one so far; 0: they differed

    def gather(self, shard: Shard, full: torch.Tensor) -> GatherWork:
        return GatherWork(shard.gather_start(full), self)

    def add(self, shard: Shard, full: torch.Tensor) -> None:
        """`full` is not changed until the addition is complete."""
        count = self._counts[shard] = self._counts.get(shard, 0) + 1
        usual = self._usual.get(shard, 0) if self._last else 0
        if 0 < usual < count:
            raise PhaseError(
                f'the last of job.microbatches() adds to shard "{shard.name}" {count} times, and those before added '
                f"{usual} times: run one forward and backward for each, or iterate the minibatch without it"
            )
        while len(self._additions) >= self.ADDITIONS:
            self._additions[0].wait()
            self._additions.popleft()
        self._additions.append(shard.scatter_add_start(full))
        if count == usual:
            shard.finish()

    def begin_microbatch(self) -> None:
        if self._last and self._counts:
            raise PhaseError(
                "another job.microbatches() in a minibatch: the last microbatch of the list before has ended this "
                "rank's additions; pass one list of all microbatches, or iterate without job.microbatches()"
            )
        self._end_microbatch()
        self._told = True
        self._last = False

    def _end_microbatch(self) -> None:
        for shard, count in self._counts.items() if self._told else ():
            if self._usual.setdefault(shard, count) != count:
                self._usual[shard] = 0
        self._counts.clear()

    def begin_last(self) -> None:
        """Also finishes each shard, behind its last addition, so that its host's sums are sent while others compute."""
        self.begin_microbatch()
        self._last = True

    def synced(self) -> None:
        """The sync has completed all additions."""
        self._additions.clear()
        self._end_microbatch()
        self._told = self._last = False


def overlap_of(routes: list[Route], memory: Memory) -> Overlap | None:
    """`routes`: to all ranks. None where nothing is to be hidden: inside a host a rank's own core copies and adds. On
    GPUs streams order gathers and additions behind compute."""
    if memory is not Memory.HOST:
        return None
    return Overlap() if any(route.between_hosts for route in routes) else None


def told_of_last(microbatches: Iterable[T], overlap: Overlap | None) -> Iterator[T]:
    """Yields them, and tells `overlap` which one is the last of a sequence. Reads none ahead: what claims them measures
    how long each is computed."""
    last = len(microbatches) - 1 if isinstance(microbatches, Sequence) else -1
    for number, microbatch in enumerate(microbatches):
        if overlap is not None:
            overlap.begin_last() if number == last else overlap.begin_microbatch()
        yield microbatch
