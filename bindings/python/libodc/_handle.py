# SPDX-License-Identifier: Apache-2.0
"""The C context shared by a context and its shards, and its callbacks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from . import _native
from ._abi import ALL_GATHER, INTERRUPTED, LOG, lib, odc_config
from ._log import hand_over
from ._native import take_kept
from .buffer import Buffer
from .errors import Error, PhaseError, check
from .tracing.recorder import Recorder

AllGather = Callable[[bytes], Sequence[bytes]]
"""Called with this rank's bytes; returns every rank's, in rank order; collective."""


class Callbacks:
    """The callbacks for C. An exception cannot cross C, so it is kept, ends the call, and is raised after it; so is one
    of a signal's handler, which a waiting call runs in the main thread."""

    def __init__(self, size: int, all_gather: AllGather | None, interrupted: Callable[[], bool] | None) -> None:
        def call_all_gather(mine: int, all: int, nbytes: int) -> None:
            assert all_gather is not None
            parts = all_gather(ctypes.string_at(mine, nbytes))
            if len(parts) != size or any(len(part) != nbytes for part in parts):
                sizes = [len(part) for part in parts]
                raise ValueError(f"all_gather returned {sizes} bytes, not {nbytes} of each of {size} ranks")
            ctypes.memmove(all, b"".join(parts), nbytes * size)

        self._used = call_all_gather, interrupted, hand_over  # by their addresses
        self._all_gather = all_gather is not None

    def set_in(self, config: odc_config) -> None:
        call_all_gather, interrupted, log = self._used
        if self._all_gather:
            config.all_gather, config.all_gather_arg = ctypes.cast(_native.all_gather, ALL_GATHER), id(call_all_gather)
        config.interrupted = ctypes.cast(_native.interrupted, INTERRUPTED)
        config.interrupted_arg = None if interrupted is None else id(interrupted)
        config.log, config.log_arg = ctypes.cast(_native.log, LOG), id(log)


@contextmanager
def raising_kept() -> Iterator[None]:
    """Wraps C calls: what a callback or a signal's handler has raised in one replaces the error that it caused."""
    try:
        yield
    except BaseException as error:
        kept = take_kept()
        if kept is not None and isinstance(error, Error):
            raise kept from error
        raise
    if (kept := take_kept()) is not None:
        raise kept


def finish(status: int) -> None:
    """After a C call, as raising_kept around check; for calls of which each microsecond counts."""
    kept = take_kept()
    if kept is None:
        check(status)
        return
    try:
        check(status)
    except Error as error:
        raise kept from error
    raise kept


class Handle:
    """Owns the C context: Context.close leaves it; it is freed when no view of its memory is left."""

    def __init__(self, callbacks: Callbacks) -> None:
        self.pointer = ctypes.c_void_p()  # NULL until odc_init has set it
        self._callbacks = callbacks
        self.device: int | None = None  # the number of this rank's GPU
        self.closed = False
        self.started: dict[object, Buffer] = {}  # by start: buffers of operations, in use by the library
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
        context = self.pointer.value
        if context is None:
            raise PhaseError("this context has been freed")
        recorder = self.recorder if name else None
        with raising_kept():
            if recorder is None:
                yield context
            else:
                with recorder.call(context, name, shard):
                    yield context

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with raising_kept():
                lib.odc_shutdown(self.pointer)

    def __del__(self) -> None:
        if self.pointer:
            try:
                with raising_kept():
                    lib.odc_destroy(self.pointer)
            finally:
                self.pointer.value = None
                self.closed = True
