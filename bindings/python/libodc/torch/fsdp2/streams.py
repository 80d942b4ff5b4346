# SPDX-License-Identifier: Apache-2.0
"""A job's memory, and how work on it is ordered: in host memory by calls that return when they are done, on a GPU by
streams. FSDP2 calls its hooks on the host, with the stream for their work current."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..._abi import Memory

Complaint = Callable[[], Exception | None]
"""Describes a difference of two tensors; None: there is none."""

_GIVE_BACK_SECONDS = 10.0

_used: list[Any] = []  # forever, as far as can be told


class Streams(Protocol):
    """The memory and streams of one job."""

    memory: Memory
    device: torch.device

    def make_room(self) -> None:
        """Called before memory for slices is allocated: gives back what torch has cached on the device."""

    def held_by_torch(self) -> str:
        """For the words of an error: how much of the device's memory torch holds; empty: none."""

    def added(self) -> None:
        """Called when the current stream has enqueued an addition."""

    def published(self) -> None:
        """Called when the current stream has written and published the slices."""

    def wait_published(self) -> None:
        """What the current stream does next sees the slices as they were published."""

    def compare(self, mine: torch.Tensor, published: torch.Tensor, complaint: Complaint) -> None:
        """Behind wait_published(): raises `complaint` now, or in a check, if they differ."""

    def check(self) -> None:
        """After a sync: raises the differences that compare() has found."""

    def check_completed(self) -> None:
        """Raises those that the device has found by now; waits for no work behind them."""

    def finish(self) -> bool:
        """Waits a few seconds for the device to complete this job's work; returns whether it did."""


class HostStreams:
    memory = Memory.HOST
    device = torch.device("cpu")

    def make_room(self) -> None:
        pass

    def held_by_torch(self) -> str:
        return ""

    def added(self) -> None:
        pass

    def published(self) -> None:
        pass

    def wait_published(self) -> None:
        pass

    def compare(self, mine: torch.Tensor, published: torch.Tensor, complaint: Complaint) -> None:
        if not torch.equal(mine, published) and (error := complaint()) is not None:
            raise error

    def check(self) -> None:
        pass

    def check_completed(self) -> None:
        pass

    def finish(self) -> bool:
        return True


class GpuStreams:
    """Nothing here waits for the GPU but check(), behind a sync, and finish(). Comparisons that are
    done are read on a stream of their own, where nothing is before the reading.

    FSDP2 keeps the input of a reduction until the stream that has allocated it waits for an event behind the addition,
    and returns all-gather outputs to torch's allocator when its own streams have waited for their readers; all work on
    either is on those streams.
    """

    memory = Memory.GPU

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device = device
        self._cuda = cuda
        self._published, self._added = cuda.Event(), cuda.Event()
        self._reading = cuda.Stream(device)
        self._compared: list[tuple[torch.Tensor, Complaint, Any]] = []  # equal, what if not, and the event behind it

    def make_room(self) -> None:
        self._cuda.empty_cache()

    def held_by_torch(self) -> str:
        used, cached = self._cuda.memory_allocated(self.device), self._cuda.memory_reserved(self.device)
        return f"torch holds {cached / 2**20:.0f} MiB on {self.device}, {(cached - used) / 2**20:.0f} MiB of it unused"

    def added(self) -> None:
        self._added.record(self._cuda.current_stream(self.device))

    def published(self) -> None:
        self._published.record(self._cuda.current_stream(self.device))

    def wait_published(self) -> None:
        # A gather waits for the publish by itself.
        self._cuda.current_stream(self.device).wait_event(self._published)

    def compare(self, mine: torch.Tensor, published: torch.Tensor, complaint: Complaint) -> None:
        stream = self._cuda.current_stream(self.device)
        self._compared.append(((mine == published).all(), complaint, stream.record_event()))

    def check(self) -> None:
        # Those before gathers are done, which the sync waits for; those of check_unedited() are waited for here.
        self._read(len(self._compared))

    def check_completed(self) -> None:
        self._read(sum(1 for _ in itertools.takewhile(lambda one: one[2].query(), self._compared)))

    def _read(self, count: int) -> None:
        compared = self._compared[:count]
        if not compared:
            return
        with self._cuda.stream(self._reading):
            for _, _, event in compared:
                self._reading.wait_event(event)
            equal = torch.stack([one for one, _, _ in compared]).tolist()
        del self._compared[:count]  # only now, as an exception may have ended the reading
        for same, (_, complaint, _) in zip(equal, compared, strict=True):
            if not same and (error := complaint()) is not None:
                raise error

    def finish(self) -> bool:
        """With a deadline: a GPU may have failed, or wait forever."""
        deadline = time.monotonic() + _GIVE_BACK_SECONDS
        last = self._cuda.Event()
        try:
            last.record(self._cuda.current_stream(self.device))
            while not (last.query() and self._added.query()):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.001)
        except RuntimeError:  # an earlier kernel failed
            return False
        return True


def keep_while_used(streams: Streams, one: Any) -> None:
    """`one` has the slices of a job that ends, which the device may still use."""
    if not streams.finish():
        _used.append(one)


def streams_of(device: torch.device) -> Streams:
    return HostStreams() if device.type == "cpu" else GpuStreams(device)
