# SPDX-License-Identifier: Apache-2.0
"""Shards: 1-D tensors divided over ranks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ._abi import Memory, Status, Summation, Type, lib, odc_shard_desc, odc_slice
from ._arguments import INT32, UINT64, c_enum, c_float, c_integer, c_integers, c_string
from ._handle import Handle, finish
from ._loops import note_wait
from ._native import take_kept
from ._streams import stream_handle
from .buffer import Buffer
from .errors import ArgumentError, Error, check
from .memory import View


@dataclass(frozen=True)
class ShardDescription:
    """A shard as all listed ranks register it. `parameters` or `gradients` None: the shard lacks that half.

    `ranks` None: all ranks of the job. `slices`: elements of each listed rank; None: equal, as torch.chunk divides.
    `memory`: of the slices and of the buffers that are given with them; GPU needs a context with a device.
    `sum`: "exact" makes the sums' bits independent of order, ranks, hosts and slices (ODC_SUM_EXACT in odc.h), of
    gradients of F32, BF16 or F16. `largest`: all gradients of the first minibatch are below; 0: the default. In a
    checkpoint save the maximum over the ranks of Slice.largest, and hand that in.
    """

    name: str
    numel: int
    parameters: Type | None = Type.F32
    gradients: Type | None = Type.F32
    ranks: Sequence[int] | None = None
    slices: Sequence[int] | None = None
    memory: Memory = Memory.HOST
    sum: Literal["exact"] | None = None
    largest: float = 0

    def __post_init__(self) -> None:
        """Converts plain integers to enums."""
        c_string("the name of a shard", self.name)
        of = f'of shard "{self.name}"'
        for half in ("parameters", "gradients"):
            if (given := getattr(self, half)) is not None:
                object.__setattr__(self, half, c_enum(f"the type of {half} {of}", given, Type))
        object.__setattr__(self, "memory", c_enum(f"memory {of}", self.memory, Memory))
        if self.sum not in (None, "exact"):
            raise ArgumentError(f'sum {of} is {self.sum!r}, must be None or "exact"')

    def _to_c(self, size: int) -> odc_shard_desc:
        """`size`: ranks of the job."""
        name = c_string("the name of a shard", self.name)
        of = f'of shard "{self.name}"'
        ranks = None if self.ranks is None else c_integers(f"ranks {of}", self.ranks, INT32)
        slices = None if self.slices is None else c_integers(f"slices {of}", self.slices, UINT64)

        listed = size if ranks is None else len(ranks)
        if slices is not None and len(slices) != listed:
            raise ValueError(f'shard "{self.name}" has {len(slices)} slices for {listed} ranks')
        return odc_shard_desc(
            name=name,
            numel=c_integer(f"numel {of}", self.numel, UINT64),
            parameter_type=self.parameters or 0,
            gradient_type=self.gradients or 0,
            ranks=None if ranks is None else (ctypes.c_int32 * len(ranks))(*ranks),
            slices=None if slices is None else (ctypes.c_uint64 * len(slices))(*slices),
            rank_count=0 if ranks is None else len(ranks),
            memory=self.memory,
            sum=Summation.EXACT if self.sum == "exact" else 0,
            largest=c_float(f"largest {of}", self.largest),
        )


@dataclass(frozen=True)
class Slice:
    """This rank's part of a shard. Parameters may be written, and gradients read, between sync and publish only.

    `largest`: what exact sums of this slice ask for in the next minibatch; negative: nothing was added; 0: not exact.
    """

    parameters: View | None
    gradients: View | None
    offset: int
    numel: int
    largest: float


class Operation:
    """A started gather or addition. Its buffer belongs to the library until `wait` or the next sync has returned; in
    GPU memory until its stream has passed it, too. After Context.close `wait` raises PhaseError with the buffer given
    back."""

    def __init__(self, handle: Handle, start: object, number: int, call: str, shard: str) -> None:
        self._handle = handle
        self._start = start
        self._number = number
        self._call = call
        self._shard = shard
        self._status = ctypes.c_int32(Status.ERROR_INTERRUPTED)

    @property
    def complete(self) -> bool:
        """Whether `wait` or a sync has given the buffer back."""
        return self._start not in self._handle.started

    def wait(self) -> None:
        handle = self._handle
        with handle.call_after_close(f"{self._call}_wait", self._shard) as context:
            try:
                if self._status.value != Status.OK:  # a signal's handler may have raised as it returned
                    check(note_wait(self._status, lib.odc_wait, context, self._number))
            finally:
                status = self._status.value
                left = status == Status.ERROR_PHASE and handle.closed
                if left or status == Status.OK or status <= Status.ERROR_PEER_LOST:  # otherwise it is still pending
                    handle.started.pop(self._start, None)


class Shard:
    """Made by Context.register.

    Of a shard in GPU memory `stream` is where a call takes effect: a handle, a torch.cuda.Stream, an object with
    __cuda_stream__, or None for torch's current stream of the context's GPU (the legacy default stream without torch).
    The host waits for owners whose streams have not reached their publishes and for nothing else, so what is enqueued
    before a publish must need nothing that another rank does after a gather (no collective, for one). A buffer may be
    used on its stream at once, on others as after any work on that stream.
    """

    def __init__(self, handle: Handle, pointer: int, description: ShardDescription) -> None:
        self._handle = handle
        self._pointer = pointer
        self._device = handle.device if description.memory is Memory.GPU else None
        self.description = description

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def numel(self) -> int:
        return self.description.numel

    @property
    def slice(self) -> Slice:
        """Views of this rank's memory, without a copy; they keep it alive, also after Context.close."""
        raw = odc_slice()
        with self._handle.call():
            check(lib.odc_get_slice(self._pointer, ctypes.byref(raw)))

        def view(address: int | None, type: int) -> View | None:
            return None if not address else View(self._handle, address, raw.numel, Type(type), self._device)

        return Slice(
            view(raw.parameters, raw.parameter_type),
            view(raw.gradients, raw.accumulator_type),
            raw.offset,
            raw.numel,
            raw.largest,
        )

    def publish(self, stream: Any = None) -> None:
        """Declares that this rank's slice holds the minibatch's parameters."""
        on = self._stream(stream)
        with self._handle.call("publish", self.name):
            check(lib.odc_publish(self._pointer, on))

    def gather(self, full: Any, stream: Any = None) -> None:
        """Fills `full` with the whole shard."""
        buffer, on = self._buffer(full, self.description.parameters, writable=True), self._stream(stream)
        self._move("gather", lib.odc_gather, buffer.address, buffer.numel, on)

    def scatter_add(self, full: Any, stream: Any = None) -> None:
        """Adds `full` into the owners' accumulators."""
        buffer, on = self._buffer(full, self.description.gradients, writable=False), self._stream(stream)
        self._move("scatter_add", lib.odc_scatter_add, buffer.address, buffer.numel, on)

    def gather_at(self, address: int, numel: int) -> None:
        """As gather, on the current stream, of memory that the caller has checked."""
        self._move("gather", lib.odc_gather, address, numel, self._stream(None))

    def scatter_add_at(self, address: int, numel: int) -> None:
        self._move("scatter_add", lib.odc_scatter_add, address, numel, self._stream(None))

    def gather_start(self, full: Any, stream: Any = None) -> Operation:
        buffer = self._buffer(full, self.description.parameters, writable=True)
        return self._start("gather", lib.odc_gather_start, buffer, self._stream(stream))

    def scatter_add_start(self, full: Any, stream: Any = None) -> Operation:
        buffer = self._buffer(full, self.description.gradients, writable=False)
        return self._start("scatter_add", lib.odc_scatter_add_start, buffer, self._stream(stream))

    def finish(self, stream: Any = None) -> None:
        """Ends this rank's additions in this minibatch: its host's sums for other hosts may then go before the sync."""
        on = self._stream(stream)
        with self._handle.call():
            check(lib.odc_finish(self._pointer, on))

    def release(self) -> None:
        """Frees the slices' memory: views of it must not be used any more, and GPUs must be done with it."""
        with self._handle.call():
            check(lib.odc_release_shard(self._pointer))

    def _move(self, call: str, function: Any, address: int, numel: int, on: int | None) -> None:
        handle = self._handle
        if handle.closed or handle.recorder is not None:
            with handle.call(call, self.name):
                check(function(self._pointer, address, numel, on))
        else:
            try:
                finish(function(self._pointer, address, numel, on))
            except BaseException:
                take_kept()  # a second signal came before the first was taken
                raise

    def _start(self, call: str, start: Any, buffer: Buffer, stream: int | None) -> Operation:
        number, handle = ctypes.c_uint64(), self._handle
        begun = object()
        with handle.call(f"{call}_start", self.name):
            handle.started[begun] = buffer  # before the call: a signal's handler may raise as it returns
            try:
                check(start(self._pointer, buffer.address, buffer.numel, stream, ctypes.byref(number)))
            except Error:
                handle.started.pop(begun)
                raise
        return Operation(handle, begun, number.value, call, self.name)

    def _stream(self, given: Any) -> int | None:
        return stream_handle(given, self._device)

    def _buffer(self, given: Any, type: Type | None, *, writable: bool) -> Buffer:
        # The library reports it better if the shard lacks the half.
        what = f'the buffer for shard "{self.name}"'
        return Buffer(given, type or Type.BYTES, self._device, writable=writable, what=what)

    def __repr__(self) -> str:
        return f'<libodc.Shard "{self.name}" of {self.numel} elements>'
