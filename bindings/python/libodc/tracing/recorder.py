# SPDX-License-Identifier: Apache-2.0
"""The events of a traced context: its calls, and its user's spans; and the records of a rank."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from .._abi import lib, odc_stats


class Event(NamedTuple):
    """A call or a span. Times are of CLOCK_MONOTONIC, in nanoseconds."""

    call: str  # gather, gather_start, gather_wait, the same of scatter_add, publish, sync, all_reduce; "": a span
    name: str  # of the span, or of the call's shard; "": the call concerns no single shard
    minibatch: int
    thread: int
    begin_ns: int
    end_ns: int
    waited_ns: int  # the time in which the call waited for a publish, a sync or a lock
    error: str  # the exception that ended it; "": none


@dataclass(frozen=True)
class RankTrace:
    """What one rank recorded between `begin_ns` and `end_ns` of CLOCK_MONOTONIC. An event's `thread` is an index of
    `threads`; the first thread is the one that traced."""

    rank: int
    host: str
    pid: int
    begin_ns: int
    end_ns: int
    threads: list[str]
    events: list[Event]

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RankTrace:
        fields = json.loads(data)
        fields["events"] = [Event(*event) for event in fields["events"]]
        return RankTrace(**fields)


def _waited_ns(context: int) -> int:
    raw = odc_stats()
    lib.odc_get_stats(context, ctypes.byref(raw))
    return int(raw.publish_wait_ns + raw.sync_wait_ns + raw.lock_wait_ns)


class Recorder:
    """The events of one context, from its creation on. Any thread may record."""

    def __init__(self, minibatch: int) -> None:
        self.events: list[Event] = []
        self.threads = {threading.get_ident(): threading.current_thread().name}  # the creator's is the first
        self.begin_ns = time.monotonic_ns()
        self._minibatch = minibatch

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        minibatch, begin_ns, error = self._minibatch, time.monotonic_ns(), ""
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._add("", str(name), minibatch, begin_ns, 0, error)

    @contextmanager
    def call(self, context: int, call: str, shard: str) -> Iterator[None]:
        waited_ns, error = _waited_ns(context), ""
        minibatch, begin_ns = self._minibatch, time.monotonic_ns()
        try:
            yield
            if call == "sync":
                self._minibatch += 1
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._add(call, shard, minibatch, begin_ns, _waited_ns(context) - waited_ns, error)

    def _add(self, call: str, name: str, minibatch: int, begin_ns: int, waited_ns: int, error: str) -> None:
        end_ns, thread = time.monotonic_ns(), threading.get_ident()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        # Includes waits of other threads in the meantime.
        waited_ns = max(0, min(waited_ns, end_ns - begin_ns))
        self.events.append(Event(call, name, minibatch, thread, begin_ns, end_ns, waited_ns, error))
