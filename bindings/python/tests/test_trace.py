# SPDX-License-Identifier: Apache-2.0
"""libodc.trace: the contents of the files, and how a trace ends."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import libodc

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from libodc.tracing.recorder import Event, RankTrace

NUMEL = 3000


def minibatch(context: libodc.Context, shards: list[libodc.Shard], microbatches: int, trace: libodc.Trace) -> None:
    full = np.zeros(NUMEL, np.float32)
    context.publish()
    for _ in range(microbatches):
        with trace.span("forward"):
            for shard in shards:
                with trace.span(f"layer of rank {context.rank}"):
                    shard.gather(full)
                    time.sleep(0.002)
        with trace.span("backward"):
            for shard in shards:
                operation = shard.gather_start(full)
                operation.wait()
                shard.scatter_add(full)
    context.sync()


def elsewhere(shard: libodc.Shard, trace: libodc.Trace) -> None:
    with trace.span("elsewhere"):
        shard.gather(np.zeros(NUMEL, np.float32))


def traced(rank: int, size: int, job: str, folder: Path) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        shards = [context.register(f"layer.{i}", NUMEL) for i in range(2)]
        context.publish()
        context.sync()
        before = context.stats()
        if rank == 0:
            time.sleep(0.02)  # its times count from another rank's begin
        with libodc.trace(context, folder / "report") as trace:
            for number in range(3):
                minibatch(context, shards, (rank + number) % size, trace)
                assert context.all_reduce([1.0]) == [size]
            thread = threading.Thread(target=elsewhere, args=(shards[0], trace), name="loader")
            context.publish()
            thread.start()
            thread.join()
            shards[0].scatter_add(np.ones(NUMEL, np.float32))
            context.sync()
            after = context.stats()
        assert (np.asarray(shards[0].slice.gradients) == size).all()  # may be read after the block
        slice_bytes = after.slice_bytes
        for shard in shards:  # one by one: the trace's own shard must not be counted
            shard.publish()
        context.sync()
        assert context.stats().slice_bytes == slice_bytes and context.minibatch == 6
        with libodc.trace(context, folder / "again"):
            context.publish()
            context.sync()
        counts = {name: getattr(after, name) - getattr(before, name) for name in libodc.Stats.__dataclass_fields__}
        (folder / f"stats{rank}.json").write_text(json.dumps(counts))


def check_nested(events: list[dict[str, Any]]) -> None:
    """In each thread, events are disjoint or inside one another."""
    open_until: dict[Any, list[float]] = {}
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        ends = open_until.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"] + 1e-6:
            ends.pop()
        assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
        ends.append(event["ts"] + event["dur"])


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(
        inner["pid"] == outer["pid"]
        and outer["ts"] <= inner["ts"] + 1e-3
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3
    )


def test_a_trace_has_every_ranks_calls_and_spans(tmp_path: Path) -> None:
    run_ranks(3, traced, tmp_path)
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["timeline.png", "trace.json"]
    events = json.loads((tmp_path / "report" / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "rank 0", 2: "rank 1", 3: "rank 2"}
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads == ["MainThread", "loader"] * 3
    assert all(event["pid"] > 0 and event["tid"] > 0 for event in events)  # 0 is the kernel's
    events = [event for event in events if event["ph"] == "X"]
    check_nested(events)
    assert min(event["ts"] for event in events) >= 0
    for rank in range(3):
        mine = [event for event in events if event["pid"] == rank + 1]
        calls = Counter(event["cat"] for event in mine)
        stats = json.loads((tmp_path / f"stats{rank}.json").read_text())
        microbatches = sum((rank + number) % 3 for number in range(3))
        assert calls["gather"] + calls["gather_start"] == stats["gather_calls"] == 4 * microbatches + 1
        assert calls["scatter_add"] == stats["scatter_add_calls"] == calls["gather_wait"] + 1 == 2 * microbatches + 1
        assert calls["sync"] == stats["syncs"] == calls["publish"] == calls["all_reduce"] + 1 == 4
        waited = sum(event["args"].get("waited_us", 0) for event in mine)
        assert waited == pytest.approx(
            1e-3 * (stats["publish_wait_ns"] + stats["sync_wait_ns"] + stats["lock_wait_ns"]), rel=0.01, abs=1
        )
        assert [event["args"]["minibatch"] for event in mine if event["name"] == "sync"] == [1, 2, 3, 4]
        layers = [event for event in mine if event["name"].startswith("layer")]
        assert {event["name"] for event in layers} == {f"layer of rank {rank}"}
        forward = [event for event in mine if event["name"] == "forward"]
        *gathers, last = (event for event in mine if event["cat"] == "gather")
        for gather in gathers:
            assert gather["name"] == f"gather {gather['args']['shard']}"
            assert sum(inside(gather, span) for span in layers) == sum(inside(gather, span) for span in forward) == 1
        (there,) = (event for event in mine if event["name"] == "elsewhere")
        assert inside(last, there) and there["tid"] == last["tid"] == 2
        assert {event["tid"] for event in mine if event not in (last, there)} == {1}
    for number in (1, 2, 3, 4):  # one clock: nobody leaves a sync before all have come
        syncs = [event for event in events if event["name"] == "sync" and event["args"]["minibatch"] == number]
        assert max(event["ts"] for event in syncs) <= min(event["ts"] + event["dur"] for event in syncs)
    assert (tmp_path / "again" / "timeline.png").stat().st_size > 5000


def pixels(path: Path) -> Any:
    from matplotlib.image import imread

    return (imread(path)[:, :, :3] * 255).round().astype(int)


def share(picture: Any, colour: str) -> float:
    """Of the part of the rows, left to right, which has this colour."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return float((abs(picture - wanted).max(axis=2) <= 2).mean())


def test_the_picture_shows_when_each_rank_computes_moves_and_waits(tmp_path: Path) -> None:
    from libodc.tracing.timeline import draw_timeline

    ms = 1_000_000
    calls = [
        Event("", "forward", 0, 0, 0, 400 * ms, 0, ""),
        Event("gather", "w", 0, 0, 0, 200 * ms, 100 * ms, ""),  # waits, then moves
        Event("scatter_add", "w", 0, 0, 400 * ms, 500 * ms, 0, ""),
        Event("sync", "", 0, 0, 500 * ms, 1000 * ms, 0, ""),
    ]
    busy = [Event("", "forward", 0, 0, 0, 1000 * ms, 0, "")]
    many = [Event("gather", "w", 0, 0, i * ms // 10, (2 * i + 1) * ms // 20, 0, "") for i in range(10_000)]
    ranks = [
        RankTrace(rank, "host", 1, 0, 1000 * ms, ["MainThread"], events)
        for rank, events in enumerate((calls, busy, many))
    ]
    draw_timeline(tmp_path / "timeline.png", ranks)
    picture = pixels(tmp_path / "timeline.png")
    rows = [y for y in range(picture.shape[0]) if share(picture[y : y + 1, 200:1600], "#2f5f9e") > 0.9]
    bottom, left, right = max(rows), 119, 1692  # of the row of rank 1; where the axis begins and ends
    height = len(rows)
    assert height > 30
    first, last = (picture[y : y + 1, left:right] for y in (min(rows) - height // 2, bottom + height // 2 + 10))
    for colour, expected in (("#2f5f9e", 0.2), ("#1f8a5b", 0.1), ("#8c4f9f", 0.1), ("#f7c9a9", 0.6)):
        assert share(first, colour) == pytest.approx(expected, abs=0.01)
    # Gathers that are shorter than a pixel: half of the time, so half of the colour.
    assert abs(last.reshape(-1, 3).mean(axis=0) - [(0x1F + 0xED) / 2, (0x8A + 0xF0) / 2, (0x5B + 0xF3) / 2]).max() < 2


def test_idle_is_what_is_in_no_span_or_in_a_call() -> None:
    from libodc.tracing.timeline import idle_share

    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(300):
        events, computing = [], set()
        for thread in range(3):
            spans: set[int] = set()
            calls: set[int] = set()
            for _ in range(draw.randrange(6)):
                begin, end = sorted((draw.randrange(101), draw.randrange(101)))
                call = draw.choice(["", "gather", "sync"])
                events.append(Event(call, "x", 0, thread, begin, end, 0, ""))
                (calls if call else spans).update(range(begin, end))
            computing |= spans - calls
        one = RankTrace(0, "host", 1, 0, 100, ["a", "b", "c"], events)
        assert idle_share(one) == pytest.approx(1 - len(computing) / 100)


def ends(
    rank: int, size: int, job: str, folder: Path, how: str, warned: tuple[str, ...], raised: tuple[Any, ...]
) -> None:
    """Each rank's warning matches its entry of `warned`, and its exception that of `raised`."""
    expected = raised[rank] if isinstance(raised[rank], tuple) else (raised[rank],) * (raised[rank] is not None)
    with pytest.warns(RuntimeWarning) as warnings:
        try:
            ends_itself(rank, size, job, folder, how)
        except BaseException as error:
            assert expected and isinstance(error, expected), error
        else:
            assert not expected
    (text,) = (str(one.message) for one in warnings)
    assert warnings[0].filename == __file__
    assert f"trace.rank{rank}.json has the records of rank {rank} only: " in text and warned[rank] in text, text


def ends_itself(rank: int, size: int, job: str, folder: Path, how: str) -> None:
    stopped = threading.Event()
    with libodc.init(rank=rank, size=size, job=job, timeout=30, interrupted=stopped.is_set) as context:
        shard = context.register("w", NUMEL)
        if how == "refused" and rank == 1:
            context.register = refuse  # type: ignore[method-assign]
        with libodc.trace(context, folder) as trace:
            minibatch(context, [shard], 1, trace)
            if how == "raises" and rank == 1:
                raise ValueError("bad sample 7")
            if how == "raises":
                context.publish()
                context.sync()
            elif how == "published" or (how == "one published" and rank == 1):
                context.publish()
            elif how == "died" and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "died":
                context.publish()
                with pytest.raises(libodc.PeerLostError):
                    context.sync()
            elif how == "closed":
                context.close()
            elif how == "interrupted" and rank == 0:
                stopped.set()
            elif how == "interrupted":
                while not (folder / "trace.rank0.json").exists():
                    time.sleep(0.01)
        if how in ("published", "refused"):  # the job goes on
            if how == "refused":
                context.publish()
            context.sync()
        if how == "one published":
            context.sync()


def refuse(*_: Any) -> libodc.Shard:
    raise libodc.NoMemoryError("8 GB are needed, 1 GB is left")


ABORTED = "the traced block raised AbortedError"
LOST = "PeerLostError: rank 1"
PHASE = "PhaseError: odc_all_reduce: only between odc_minibatch_sync and odc_publish"


@pytest.mark.parametrize(
    ("how", "warned", "raised"),
    [
        (
            "raises",
            (ABORTED, "the traced block raised ValueError: bad sample 7", ABORTED),
            (libodc.AbortedError, ValueError, libodc.AbortedError),
        ),
        ("published", (PHASE, PHASE, "end the traced block between sync and publish, on every rank"), (None,) * 3),
        ("one published", ("went on without it", PHASE, "went on without it"), (libodc.JobError,) * 3),
        ("died", (LOST, "", LOST), (None,) * 3),
        ("closed", ("PhaseError: this context has been closed",) * 3, (None,) * 3),
        ("refused", ("rank 1 could not", "NoMemoryError: 8 GB are needed", "rank 1 could not"), (None,) * 3),
        (
            "interrupted",
            ("InterruptedWaitError", "AbortedError: rank 0", "AbortedError: rank 0"),
            (libodc.InterruptedWaitError, None, None),
        ),
    ],
)
def test_a_block_that_ends_otherwise_writes_this_ranks_records_and_says_why(
    how: str, warned: tuple[str, ...], raised: tuple[Any, ...], tmp_path: Path
) -> None:
    (tmp_path / "trace.json").write_text("of an earlier trace")
    run_ranks(3, ends, tmp_path, how, warned, raised, mortal=(1,) if how == "died" else ())
    wrote = [0, 2] if how == "died" else [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"trace.rank{rank}.json" for rank in wrote]
    for rank in wrote:
        events = json.loads((tmp_path / f"trace.rank{rank}.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == {rank + 1}
        assert next(event["args"]["minibatch"] for event in events if event["name"] == "sync") == 0
    if how == "raises":
        assert events[-1]["args"]["error"] == "AbortedError"


ALONE = """
import sys, libodc
with libodc.init(rank=0, size=1, job=sys.argv[1]) as context:
    context.register("w", 10)
    with libodc.trace(context, sys.argv[2]):
        context.publish()
        context.sync()
        assert "matplotlib" not in sys.modules
    assert "matplotlib" in sys.modules
"""


def test_matplotlib_is_imported_at_the_end_but_missed_at_the_start(tmp_path: Path) -> None:
    arguments = [f"matplotlib-{os.getpid()}", str(tmp_path / "report")]
    subprocess.run([sys.executable, "-c", ALONE, *arguments], check=True, cwd="/")
    assert (tmp_path / "report" / "timeline.png").exists()
    missing = 'import sys; sys.modules["matplotlib"] = None\n' + ALONE.replace(
        "context.publish()", "raise AssertionError"
    )
    result = subprocess.run([sys.executable, "-c", missing, *arguments], capture_output=True, text=True, cwd="/")
    assert (
        "ImportError: libodc.trace draws with matplotlib, which is not installed; pip install 'libodc[trace]'"
        in result.stderr
    )
    assert "AssertionError" not in result.stderr


def starts(rank: int, size: int, job: str, folder: Path) -> None:
    with libodc.init(rank=rank, size=size, job=job) as context:
        (folder / "file").touch()
        with pytest.raises(FileExistsError), libodc.trace(context, folder / "file"):
            raise AssertionError
        with libodc.trace(context, folder / "a" / "b"):
            with pytest.raises(libodc.PhaseError, match="traced already"), libodc.trace(context, folder):
                raise AssertionError
            context.publish()
            context.sync()
    assert (folder / "a" / "b" / "trace.json").exists()


def test_what_is_wrong_is_said_at_the_start(tmp_path: Path) -> None:
    run_ranks(1, starts, tmp_path)
