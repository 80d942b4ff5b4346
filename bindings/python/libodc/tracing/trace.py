# SPDX-License-Identifier: Apache-2.0
"""Traces: the events of all ranks in one file and one picture."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .._abi import Reduction, Type
from ..context import Context
from ..errors import Error, InterruptedWaitError, JobError, PhaseError
from .recorder import RankTrace, Recorder

_LENGTH_BYTES = 8


class Trace:
    """Made by trace."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def span(self, name: str) -> AbstractContextManager[None]:
        """`with trace.span("forward"):` is shown as computing, except the context's calls in it. Spans may be nested,
        and in any thread."""
        return self._recorder.span(name)


@contextmanager
def trace(context: Context, directory: str | os.PathLike[str]) -> Iterator[Trace]:
    """Records what this rank does in the block: gathers, additions, publishes, syncs, reductions, and spans. At the end
    rank 0 writes all ranks' records to `directory`: trace.json (opens at ui.perfetto.dev) and timeline.png.

    Every rank traces, and ends the block between sync and publish of the same minibatch; the ranks' records reach rank
    0 in a shard that is registered and published there, so context.all_reduce is over for that minibatch. A block that
    ends otherwise (elsewhere, by an exception, after a job error) waits for no other rank: it writes this rank's
    trace.rank3.json and warns. If only some ranks' blocks do, the others meet a job error. ImportError: matplotlib is
    missing. Records are kept in memory, some 200 bytes a call.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("libodc.trace draws with matplotlib, which is not installed; pip install 'libodc[trace]'")
    handle = context._handle
    if handle.recorder is not None:
        raise PhaseError("this context is traced already; end that trace first")
    rank, folder = context.rank, Path(directory)
    alone = folder / f"trace.rank{rank}.json"
    folder.mkdir(parents=True, exist_ok=True)
    everybodys = [folder / "trace.json", folder / "timeline.png"] if rank == 0 else []
    for stale in [alone, *everybodys]:
        stale.unlink(missing_ok=True)
    recorder = handle.recorder = Recorder(context.minibatch)

    def mine() -> RankTrace:
        handle.recorder = None
        return _rank_trace(rank, recorder)

    try:
        yield Trace(recorder)
        made = mine()
    except BaseException as error:
        _write_alone(alone, mine(), f"the traced block raised {type(error).__name__}: {error}")
        raise
    try:
        collected = _collect(context, made.to_bytes())
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, PhaseError):
            why += "; end the traced block between sync and publish, on every rank"
        _write_alone(alone, made, why)
        if isinstance(error, InterruptedWaitError) or not isinstance(error, Error):
            raise
        return  # a job error is permanent; the next call raises it
    if rank == 0:
        _write_all(folder, [RankTrace.from_bytes(one) for one in collected])


def _rank_trace(rank: int, recorder: Recorder) -> RankTrace:
    recorded = list(recorder.events)  # other threads may still be recording
    indices = {thread: index for index, thread in enumerate(list(recorder.threads))}
    events = [event._replace(thread=indices[event.thread]) for event in recorded]
    events.sort(key=lambda event: (event.begin_ns, -event.end_ns))
    return RankTrace(
        rank,
        socket.gethostname(),
        os.getpid(),
        recorder.begin_ns,
        time.monotonic_ns(),
        list(recorder.threads.values()),
        events,
    )


def _collect(context: Context, mine: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order, on rank 0; nothing elsewhere."""
    rank, size = context.rank, context.size
    (longest,) = context.all_reduce([len(mine)], Reduction.MAX)
    stride = _LENGTH_BYTES + int(longest)
    shard, refusal = None, None
    try:
        shard = context.register(f"libodc.trace.{context.minibatch}", stride * size, Type.BYTES, None)
    except JobError:
        raise
    except Error as error:
        refusal = error
    # No rank waits for a shard that another could not register.
    (refused,) = context.all_reduce([rank + 1 if refusal else 0], Reduction.MAX)
    if shard is None or refused:
        if shard is not None:
            shard.release()
        raise refusal or Error(
            f"rank {int(refused) - 1} could not register the shard of {stride * size} bytes of records"
        )
    part = shard.slice.parameters
    assert part is not None
    memory = part.memory()
    memory[:_LENGTH_BYTES] = len(mine).to_bytes(_LENGTH_BYTES, "little")
    memory[_LENGTH_BYTES : _LENGTH_BYTES + len(mine)] = mine
    context._handle.spent.append(shard.release)
    shard.publish()
    if rank != 0:
        return []
    full = bytearray(stride * size)
    shard.gather(full)
    parts = (full[begin : begin + stride] for begin in range(0, stride * size, stride))
    return [bytes(one[_LENGTH_BYTES:][: int.from_bytes(one[:_LENGTH_BYTES], "little")]) for one in parts]


def _write_alone(path: Path, made: RankTrace, why: str) -> None:
    """Never raises, which would hide the reason why the block ended."""
    text = f"odc: trace(): {path} has the records of rank {made.rank} only: {why}"
    try:
        _write_events(path, [made])
    except OSError as error:
        text = f"odc: trace(): the records of rank {made.rank} are lost ({error}): {why}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)  # the end of the user's block


def _write_all(folder: Path, ranks: list[RankTrace]) -> None:
    from .timeline import draw_timeline  # imports matplotlib

    _write_events(folder / "trace.json", ranks)
    draw_timeline(folder / "timeline.png", ranks)


def _write_events(path: Path, ranks: list[RankTrace]) -> None:
    """The trace event format: a process for each rank, its threads below."""
    origin_ns = min(one.begin_ns for one in ranks)
    about = {"clock": "CLOCK_MONOTONIC", "origin_ns": origin_ns}
    with path.open("w") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
        file.write(",\n".join(json.dumps(entry) for one in ranks for entry in _entries(one, origin_ns)))
        file.write("\n]}\n")


def _entries(one: RankTrace, origin_ns: int) -> Iterator[dict[str, Any]]:
    # Numbers begin at 1: Perfetto takes 0 for the kernel's idle process.
    def about(what: str, thread: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": one.rank + 1, "tid": thread + 1, "args": args}

    yield about("process_name", 0, name=f"rank {one.rank}")
    yield about("process_labels", 0, labels=f"{one.host}, pid {one.pid}")
    yield about("process_sort_index", 0, sort_index=one.rank)
    for thread, name in enumerate(one.threads):
        yield about("thread_name", thread, name=name)
        yield about("thread_sort_index", thread, sort_index=thread)
    for event in one.events:
        args: dict[str, Any] = {"minibatch": event.minibatch}
        if event.call:
            args |= {"shard": event.name, "waited_us": event.waited_ns / 1000}
        if event.error:
            args["error"] = event.error
        yield {
            "ph": "X",
            "name": f"{event.call} {event.name}".strip(),
            "cat": event.call or "span",
            "pid": one.rank + 1,
            "tid": event.thread + 1,
            "ts": (event.begin_ns - origin_ns) / 1000,
            "dur": (event.end_ns - event.begin_ns) / 1000,
            "args": args,
        }
