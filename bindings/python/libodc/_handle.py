# SPDX-License-Identifier: Apache-2.0
"""The C context shared by a context and its shards, and its callbacks."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ._abi import ALL_GATHER, INTERRUPTED, LOG, lib
from ._log import hand_over
from ._signals import Deferred
from .buffer import Buffer
from .errors import Error, PhaseError
from .recording import Recorder

AllGather = Callable[[bytes], Sequence[bytes]]
"""Called with this rank's bytes; returns every rank's, in rank order; collective."""


class Callbacks:
    """The callbacks for C. An exception cannot cross C, so it is kept, ends the call, and is raised after it."""

    def __init__(self, size: int, all_gather: AllGather | None, interrupted: Callable[[], bool] | None) -> None:
        self._size = size
        self._all_gather = all_gather
        self._interrupted = interrupted
        self._here = threading.local()
        self.all_gather = ALL_GATHER(self._gather) if all_gather is not None else ALL_GATHER()
        self.interrupted = INTERRUPTED(self._look)
        self.log = LOG(self._tell)

    def _gather(self, _: int, mine: int, all: int, nbytes: int) -> int:
        assert self._all_gather is not None
        try:
            parts = self._all_gather(ctypes.string_at(mine, nbytes))
            if len(parts) != self._size or any(len(part) != nbytes for part in parts):
                sizes = [len(part) for part in parts]
                raise ValueError(f"all_gather returned {sizes} bytes, not {nbytes} of each of {self._size} ranks")
            ctypes.memmove(all, b"".join(parts), nbytes * self._size)
        except BaseException as error:
            self._here.error = error
            return 1
        return 0

    def _look(self, _: int) -> int:
        try:
            deferred = getattr(self._here, "deferred", None)
            if deferred is not None:
                deferred.run()
            return 1 if self._interrupted is not None and self._interrupted() else 0
        except BaseException as error:
            self._here.error = error
            return 1

    def _tell(self, _: int, level: int, line: bytes) -> None:
        try:
            hand_over(level, line)
        except BaseException as error:  # of a handler of logging's
            self._here.error = error

    @contextmanager
    def around(self) -> Iterator[None]:
        """Wraps a C call: an exception of a callback or a signal handler in it replaces the error that it caused."""
        here = self._here
        with Deferred() as deferred:
            here.deferred, here.error = deferred, None
            try:
                yield
            except Error as error:
                if here.error is not None:
                    raise here.error from error
                raise
            finally:
                here.deferred = here.error = None


class Handle:
    """Owns the C context: Context.close leaves it; it is freed when no view of its memory is left."""

    def __init__(self, pointer: int, callbacks: Callbacks, device: int | None) -> None:
        self._pointer: int | None = pointer
        self._callbacks = callbacks
        self.device = device  # the number of this rank's GPU
        self.closed = False
        self.started: dict[int, Buffer] = {}  # buffers of started operations, in use by the library
        self.spent: list[Callable[[], None]] = []  # released shards, freed after the next sync
        self.recorder: Recorder | None = None  # while the context is traced

    @contextmanager
    def call(self, name: str = "", shard: str = "") -> Iterator[int]:
        """Wraps a C call. A call with a name is recorded while the context is traced."""
        if self.closed:
            raise PhaseError("this context has been closed")
        with self.call_after_close(name, shard) as context:
            yield context

    @contextmanager
    def call_after_close(self, name: str, shard: str) -> Iterator[int]:
        """The same for C functions that are also valid after odc_shutdown."""
        if self._pointer is None:
            raise PhaseError("this context has been freed")
        recorder = self.recorder if name else None
        with self._callbacks.around():
            if recorder is None:
                yield self._pointer
            else:
                with recorder.call(self._pointer, name, shard):
                    yield self._pointer

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._callbacks.around():
                lib.odc_shutdown(self._pointer)

    def __del__(self) -> None:
        if self._pointer is not None:
            lib.odc_destroy(self._pointer)
            self._pointer = None
            self.closed = True
