# SPDX-License-Identifier: Apache-2.0
"""One rank's membership in one job."""

from __future__ import annotations

import ctypes
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

from ._abi import Memory, Reduction, Status, Type, lib, odc_config, odc_peer_stats, odc_route, odc_shard_desc, odc_stats
from ._arguments import INT32, UINT64, c_enum, c_integer, c_string, told
from ._handle import AllGather, Callbacks, Handle, raising_kept
from ._log import wanted_level
from ._resumable import AllReduce, Publication, Sync
from .errors import JobError, PhaseError, check
from .route import Route
from .shard import Shard, ShardDescription
from .statistics import ContextStats, PeerStats, Report, Stats

_contexts: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Context:
    """Made by init. A context manager: leaves the job at its end, and aborts it if the block raised."""

    def __init__(self, handle: Handle, group: str) -> None:
        self._handle = handle
        self.group = group
        _contexts[next(_numbers)] = self

    @property
    def rank(self) -> int:
        with self._handle.call() as context:
            return int(lib.odc_rank(context))

    @property
    def size(self) -> int:
        with self._handle.call() as context:
            return int(lib.odc_size(context))

    @property
    def minibatch(self) -> int:
        """The number of the current minibatch, from 0."""
        with self._handle.call() as context:
            return int(lib.odc_minibatch(context))

    def register(
        self,
        name: str,
        numel: int,
        parameters: Type | None = Type.F32,
        gradients: Type | None = Type.F32,
        *,
        ranks: Sequence[int] | None = None,
        slices: Sequence[int] | None = None,
        memory: Memory = Memory.HOST,
        sum: Literal["exact"] | None = None,
        largest: float = 0,
    ) -> Shard:
        """Allocates this rank's slices (zeros) and lists them for the others; waits for none. See ShardDescription."""
        one = ShardDescription(name, numel, parameters, gradients, ranks, slices, memory, sum, largest)
        return self.register_all([one])[0]

    def register_all(self, descriptions: Sequence[ShardDescription]) -> list[Shard]:
        """Registers all of them or none, in one allocation."""
        count, size = len(descriptions), self.size
        converted = (odc_shard_desc * count)(*(one._to_c(size) for one in descriptions))
        pointers = (ctypes.c_void_p * count)()
        with self._handle.call() as context:
            check(lib.odc_register_shards(context, converted, count, pointers))
        return [Shard(self._handle, pointers[i] or 0, one) for i, one in enumerate(descriptions)]

    def publish(self, stream: Any = None) -> None:
        """Publishes every shard not published yet; `stream` is for those in GPU memory, see Shard."""
        Publication(self._handle).run(stream)

    def sync(self, values: Sequence[float] = (), op: Reduction = Reduction.SUM) -> list[float]:
        """Waits for all ranks, once per minibatch. `values` are combined over all ranks on the way."""
        return Sync(self._handle, values, op).run()

    def all_reduce(self, values: Sequence[float], op: Reduction = Reduction.SUM) -> list[float]:
        """Combines up to 64 values over all ranks; all get the same bits; between sync and publish."""
        return AllReduce(self._handle, values, op).run()

    def claim(self, count: int) -> int | None:
        """The next of the minibatch's `count` items (0, 1, ...; each is handed out to one rank of the job), or None if
        all are taken. All ranks that claim name the same count. Waits for no rank's calls; several threads may claim.
        """
        index = ctypes.c_uint64()
        with self._handle.call("claim") as context:
            status = lib.odc_claim(context, c_integer("count", count, UINT64), ctypes.byref(index))
            if status != Status.DONE:
                check(status)
        return None if status == Status.DONE else index.value

    def claims(self, minibatch: int | None = None) -> list[int]:
        """The items that this rank claimed in the running minibatch (None) or the one before, in order: with them a run
        can be repeated."""
        found = ctypes.c_size_t()
        number = self.minibatch if minibatch is None else c_integer("minibatch", minibatch, UINT64)
        with self._handle.call() as context:
            check(lib.odc_get_claims(context, number, None, 0, ctypes.byref(found)))
            indices = (ctypes.c_uint64 * found.value)()
            check(lib.odc_get_claims(context, number, indices, len(indices), ctypes.byref(found)))
        return list(indices)

    def report_cost(self, cost: float) -> None:
        """What this rank computes in the running minibatch, in plan's units; the last value before sync counts."""
        with self._handle.call() as context:
            check(lib.odc_report_cost(context, cost))

    def speeds(self) -> list[float]:
        """Each rank's speed relative to their mean, from the costs that it reported and its time from publish to sync
        without waiting for publishes; the newest minibatch counts 0.3. 1.0: not measured yet. The same on all ranks."""
        speeds = (ctypes.c_double * self.size)()
        with self._handle.call() as context:
            check(lib.odc_get_speeds(context, speeds, len(speeds)))
        return list(speeds)

    def stats(self) -> Stats:
        raw = odc_stats()
        with self._handle.call() as context:
            check(lib.odc_get_stats(context, ctypes.byref(raw)))
        return Stats(**{name: getattr(raw, name) for name in Stats.__dataclass_fields__})

    def peer_stats(self, rank: int) -> PeerStats:
        raw = odc_peer_stats()
        with self._handle.call() as context:
            check(lib.odc_get_peer_stats(context, c_integer("rank", rank, INT32), ctypes.byref(raw)))
        return PeerStats(**{name: getattr(raw, name) for name in PeerStats.__dataclass_fields__})

    def route(self, rank: int, memory: Memory = Memory.HOST) -> Route:
        """The route to a rank's memory of one kind and why it was chosen."""
        raw = odc_route()
        to, of = c_integer("rank", rank, INT32), c_enum("memory", memory, Memory)
        with self._handle.call() as context:
            check(lib.odc_get_route(context, to, of, ctypes.byref(raw)))
        texts = {name: getattr(raw, name) or b"" for name in Route.__dataclass_fields__}
        return Route(**{name: text.decode(errors="replace") for name, text in texts.items()})

    def abort(self, text: str = "") -> None:
        """Ends every rank's waits with an AbortedError with this `text`."""
        with self._handle.call() as context:
            check(lib.odc_abort(context, c_string("the text of abort", text)))

    def close(self) -> None:
        """Leaves the job without waiting. Views of slices stay valid; calls raise PhaseError."""
        self._handle.close()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is not None and not isinstance(error, (JobError, GeneratorExit)) and not self._handle.closed:
                self.abort(told(error))
        finally:
            self.close()


def stats() -> Report:
    """The statistics of every open context of this process, as an object that prints as tables."""
    made = []
    for reference in _contexts.valuerefs():
        context = reference()
        if context is None:
            continue
        try:
            size, totals = context.size, context.stats()
            peers = [context.peer_stats(rank) for rank in range(size)]
            made.append(ContextStats(context.group, context.rank, size, context.minibatch, totals, peers))
        except PhaseError:  # closed, or another process's
            continue
    return Report(made)


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    job: str | None = None,
    group: str | None = None,
    rendezvous: str | None = None,
    secret: str | None = None,
    timeout: float | timedelta | None = None,
    all_gather: AllGather | None = None,
    interrupted: Callable[[], bool] | None = None,
    host: str | None = None,
    device: Any = None,
) -> Context:
    """Joins the job and waits for all its ranks. What is None comes from the environment (odc run, torchrun, mpirun,
    Slurm). `timeout` of every wait: seconds or a timedelta. `interrupted` is asked by waiting calls; true ends the wait
    with InterruptedWaitError. Ctrl-C ends waits in the main thread without it. `all_gather` is called once, or more
    often if the ranks are on several hosts. `host` names what shares memory: equal for the ranks of one host; None:
    this machine. `device`: this rank's GPU for shards in GPU memory, as "cuda:0" or a torch.device; None: ODC_DEVICE,
    or none. The library's log goes to logging's logger "libodc", whose level counts as it is now, and is set to
    ODC_LOG's where there is one."""
    if (rank is None) != (size is None):
        raise ValueError("give rank and size, or neither")
    if all_gather is not None and size is None:
        raise ValueError("all_gather needs rank and size")
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise TypeError(f"timeout is {timeout!r}, must be seconds or a timedelta")
    if timeout is not None and not 0.001 <= timeout <= 1e9:
        raise ValueError(f"timeout is {timeout} s, must be 0.001 to 1e9")

    def encoded(what: str, text: str | None) -> bytes | None:
        return None if text is None else c_string(what, text)

    number_of_ranks = c_integer("size", size or 0, INT32)
    callbacks = Callbacks(number_of_ranks, all_gather, interrupted)
    config = odc_config(
        rank=c_integer("rank", rank or 0, INT32),
        size=number_of_ranks,
        job=encoded("job", job),
        group=encoded("group", group),
        rendezvous=encoded("rendezvous", rendezvous),
        secret=encoded("secret", secret),
        timeout_ms=0 if timeout is None else int(timeout * 1000),
        log_level=wanted_level(),
        host=encoded("host", host),
        device=encoded("device", None if device is None else str(device)),
    )
    callbacks.set_in(config)
    named = str(device) if device is not None else os.environ.get("ODC_DEVICE", "")
    # A signal's handler that raises as odc_init returns must leave an owner of what it has made.
    handle = Handle(callbacks)
    try:
        with raising_kept():
            check(lib.odc_init(ctypes.byref(config), ctypes.byref(handle.pointer)))
    except BaseException:
        if handle.pointer:  # a traceback must not keep this rank in the job
            handle.close()
        raise
    handle.device = int(named.partition(":")[2]) if named else None  # as C has checked
    return Context(handle, group or "")
