# SPDX-License-Identifier: Apache-2.0
"""Calls into libodc that are repeated after an exception, of a signal's handler for example, until they have succeeded
once. It may come as libodc returns, before Python knows the status, so the package's C file notes that."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ._abi import Reduction, Status, lib
from ._arguments import c_enum
from ._handle import Handle
from ._loops import note_combination, note_publication
from ._streams import stream_handle
from .errors import check


class Publication:
    """Of every shard that is not published yet."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._status = ctypes.c_int32(Status.ERROR_INTERRUPTED)

    @property
    def done(self) -> bool:
        return self._status.value == Status.OK

    def run(self, stream: Any = None) -> None:
        """`stream`: for shards in GPU memory, see Shard."""
        on = stream_handle(stream, self._handle.device)
        with self._handle.call("publish") as context:
            if not self.done:
                check(note_publication(self._status, lib.odc_publish_all, context, on))


class Combination:
    """Of values over all ranks, by a function of odc.h that has the arguments of odc_all_reduce."""

    def __init__(self, handle: Handle, name: str, function: Any, values: Sequence[float], op: Reduction) -> None:
        self._handle, self._name, self._function = handle, name, function
        self._values = (ctypes.c_double * len(values))(*values)
        self._op = c_enum("op", op, Reduction)
        self._status = ctypes.c_int32(Status.ERROR_INTERRUPTED)

    def run(self) -> list[float]:
        with self._handle.call(self._name) as context:
            if self._status.value != Status.OK:
                check(note_combination(self._status, self._function, context, self._values, self._op))
        return list(self._values)


class Sync(Combination):
    """Waits for all ranks, once per minibatch."""

    def __init__(self, handle: Handle, values: Sequence[float], op: Reduction = Reduction.SUM) -> None:
        super().__init__(handle, "sync", lib.odc_minibatch_sync_reduce, values, op)

    def run(self) -> list[float]:
        combined = super().run()
        self._handle.started.clear()
        while self._handle.spent:
            self._handle.spent.pop()()
        return combined


class AllReduce(Combination):
    """Between sync and publish."""

    def __init__(self, handle: Handle, values: Sequence[float], op: Reduction = Reduction.SUM) -> None:
        super().__init__(handle, "all_reduce", lib.odc_all_reduce, values, op)
