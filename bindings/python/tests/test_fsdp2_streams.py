# SPDX-License-Identifier: Apache-2.0
"""Requirements of GPU memory beyond the contract: the order of streams and events. On a CPU, with stand-ins that record
which stream waited for what; also training with them. Tests that need a GPU are in test_fsdp2_cuda.py."""

from __future__ import annotations

import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Net,
    adamw,
    assert_equal_steps,
    by_one_process,
    edited,
    mesh_of,
    over_odc,
    reshard,
    run_microbatches,
    sample,
    shard_blocks,
)
from torch_ranks import run_torch_ranks, torch

from libodc import Context, Memory, NoMemoryError, PhaseError, Route, UnsupportedError
from libodc.torch.fsdp2 import attach, streams
from libodc.torch.fsdp2.group import Add
from libodc.torch.fsdp2.streams import GpuStreams, HostStreams


class Stream:
    def __init__(self, priority: int = 0) -> None:
        self.seen: set[str] = set()  # work that is before what is enqueued next

    def wait_event(self, event: Event) -> None:
        self.seen |= event.seen

    def wait_stream(self, other: Stream) -> None:
        self.seen |= other.seen

    def record_event(self) -> Event:
        event = Event(self)
        event.record()
        return event


class Event:
    def __init__(self, default: Stream) -> None:
        self.seen: set[str] = set()
        self.reached = True
        self.records = 0
        self._default = default

    def record(self, stream: Stream | None = None) -> None:
        self.records += 1
        self.seen = set((stream or self._default).seen)

    def query(self) -> bool:
        return self.reached


class Cuda:
    """What is used of torch.cuda, and by FSDP2 of torch.cpu, where streams do nothing."""

    Stream = Stream

    def __init__(self) -> None:
        self.main = self.current = Stream()
        self.events: list[Event] = []
        self.cached = 5 << 20

    def Event(self) -> Event:
        self.events.append(Event(self.current))
        return self.events[-1]

    def current_stream(self, device: Any = None) -> Stream:
        return self.current

    def empty_cache(self) -> None:
        self.cached = 0

    def memory_allocated(self, device: Any) -> int:
        return 3 << 20

    def memory_reserved(self, device: Any) -> int:
        return (3 << 20) + self.cached

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.current = self.current, stream
        yield
        self.current = before


CPU = torch.device("cpu")


def test_a_comparison_is_behind_the_publish() -> None:
    cuda, gathering = Cuda(), Stream()
    mine = GpuStreams(CPU, cuda)
    cuda.main.seen.add("publish")
    mine.published()
    with cuda.stream(gathering):
        mine.wait_published()
        mine.compare(torch.zeros(1), torch.zeros(1), lambda: None)
    assert "publish" in gathering.seen


def test_differences_are_told_at_once_or_after_the_sync() -> None:
    one, other = torch.arange(5), torch.arange(5) + 1
    error = PhaseError("they differ")
    for mine in (HostStreams(), GpuStreams(CPU, Cuda())):
        mine.compare(one, one.clone(), lambda: error)
        mine.compare(one, other, lambda: None)
        mine.check()
        with pytest.raises(PhaseError, match="they differ"):
            mine.compare(one, other, lambda: error)
            assert mine.memory is Memory.GPU
            mine.check()
        mine.check()


def test_differences_are_told_as_soon_as_the_device_has_found_them() -> None:
    mine, stream = GpuStreams(CPU, cuda := Cuda()), Stream()
    with cuda.stream(stream):
        for number in range(3):
            mine.compare(torch.zeros(1), torch.ones(1), lambda number=number: PhaseError(f"{number} differs"))
    events = [event for _, _, event in mine._compared]
    events[1].reached = False
    with pytest.raises(PhaseError, match="0 differs"):
        mine.check_completed()
    mine.check_completed()
    events[1].reached = True
    with pytest.raises(PhaseError, match="1 differs"):
        mine.check_completed()
    mine.check()


def test_a_comparison_is_read_although_an_exception_has_ended_the_first_reading(monkeypatch: Any) -> None:
    mine = GpuStreams(CPU, Cuda())
    mine.compare(torch.zeros(1), torch.ones(1), lambda: PhaseError("they differ"))

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(torch, "stack", interrupted)
        mine.check()
    with pytest.raises(PhaseError, match="they differ"):
        mine.check()


def reads(rank: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in(monkeypatch)
        model = Case().sharded(mesh_of(size))
        with attach(model) as job, torch.no_grad():
            model(sample(0, rank, 0))
            model.reshard()
            model.first.bias.data.to_local().add_(1)
            with pytest.raises(PhaseError, match=r'parameter "first\.bias" of FSDP group .* has changed since it was'):
                for _ in range(2):  # the first one may be over before the device has compared
                    model(sample(0, rank, 0))
            model.reset_iter_state()
            job.publish()


def test_edits_of_a_reference_are_told_by_the_next_forward() -> None:
    run_torch_ranks(2, reads)


def test_devices_that_do_not_fit() -> None:
    one_device = attach.__globals__["_one_device"]

    def group(name: str, device: str) -> Any:
        return SimpleNamespace(name=name, device=torch.device(device))

    assert one_device([group("a", "cuda:1"), group("b", "cuda:1")]) == torch.device("cuda:1")
    with pytest.raises(UnsupportedError, match='"a" computes on cuda:0, "b" on cuda:1; attach needs one device'):
        one_device([group("a", "cuda:0"), group("b", "cuda:1")])
    with pytest.raises(UnsupportedError, match='"a" computes on xpu:0; attach needs host memory or that of CUDA GPUs'):
        one_device([group("a", "xpu:0")])


def test_finish_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_GIVE_BACK_SECONDS", 0.05)
    assert HostStreams().finish()
    cuda = Cuda()
    mine = GpuStreams(CPU, cuda)
    assert mine.finish()
    _, added = cuda.events[:2]
    added.reached = False
    assert not mine.finish()

    def broken() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    added.query = broken  # type: ignore[method-assign]
    assert not mine.finish()


class StandIn(GpuStreams):
    """The order of a GPU's streams over host memory."""

    memory = Memory.HOST


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    made: list[StandIn] = []

    def streams_of(device: torch.device) -> StandIn:
        made.append(StandIn(device, Cuda()))
        return made[-1]

    monkeypatch.setitem(attach.__globals__, "streams_of", streams_of)
    return made


def trains(rank: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = stand_in(monkeypatch)
        expected = by_one_process(Case(), UNEVEN[size])
        copies = {"parameters": "copy", "gradients": "copy"}  # the default on a GPU
        for options in ({}, copies, {"check": True}):  # the last keeps gradients
            made.clear()
            assert_equal_steps(over_odc(Case(), mesh_of(size), UNEVEN[size], **options), expected)
        assert len(made) == 1
        publishes, additions, end = made[0]._cuda.events
        assert publishes.records == len(UNEVEN[size]) + 1
        backwards = sum(counts[rank] for counts in UNEVEN[size])
        groups = 3 if size > 1 else 0  # a single rank reduces nothing
        assert additions.records == groups * backwards and end.records == 1


@pytest.mark.parametrize("size", [1, 3])
def test_training(size: int) -> None:
    run_torch_ranks(size, trains)


def keeps_inputs(rank: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        cuda, allocate, add = Cuda(), Add.allocate, Add.__call__
        for name in ("Stream", "Event", "current_stream", "stream"):
            monkeypatch.setattr(torch.cpu, name, getattr(cuda, name))
        allocated, dropped = [], []

        def drop(stream: Stream, name: str) -> None:
            dropped.append(name in stream.seen)

        def allocating(hook: Add, *args: Any, **options: Any) -> Any:
            made = allocate(hook, *args, **options)
            if hook._group.next_output is not None:  # it is an input
                allocated.append(f"addition {len(allocated)}")
                weakref.finalize(made, drop, cuda.current, allocated[-1])
            return made

        def adding(hook: Add, *args: Any, **options: Any) -> None:
            add(hook, *args, **options)
            assert cuda.current is not cuda.main
            cuda.current.seen.add(allocated[-1])

        monkeypatch.setattr(Add, "allocate", allocating)
        monkeypatch.setattr(Add, "__call__", adding)
        over_odc(Case(), mesh_of(size), UNEVEN[size])
        assert dropped == [True] * len(allocated) and len(allocated) >= 3  # of three groups


def test_fsdp2_keeps_an_input_until_its_stream_is_behind_the_addition() -> None:
    """Another allocation on that stream may have its memory then."""
    run_torch_ranks(2, keeps_inputs)


def edits(rank: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in(monkeypatch)
        edited(rank, size)


def test_edits_are_told_at_the_sync() -> None:
    run_torch_ranks(2, edits)


def one_edits(rank: int, size: int) -> None:
    """It learns of it behind the publish, when all have made the same calls, so the job goes on."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in(monkeypatch)
        for kept in ("slice", "copy"):
            model = Case().sharded(mesh_of(size))
            optimizer = adamw(model)
            with attach(model, optimizer, timeout=LIMIT, parameters=kept) as job:
                with torch.no_grad():
                    if rank == 0:
                        model.first.weight.mul_(2)
                    model(sample(0, rank, 0))
                reshard(model)
                with pytest.raises(PhaseError, match="since it was published") if rank == 0 else nullcontext():
                    job.publish()
                run_microbatches(Case(), model, 0, (1,) * size)
                job.sync_gradients()
                optimizer.step()


def test_an_edit_of_one_rank_leaves_the_others_in_the_job() -> None:
    run_torch_ranks(2, one_edits)


def lacks_memory(rank: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = stand_in(monkeypatch)
        cached = []

        def register_all(context: Context, descriptions: Any) -> None:
            cached.append(made[0]._cuda.cached)
            made[0]._cuda.cached = 2 << 20  # torch has cached something again
            raise NoMemoryError("there is no memory for 7 bytes")

        monkeypatch.setattr(Context, "register_all", register_all)
        model = Net(8)
        shard_blocks(model, mesh_of(size))
        with pytest.raises(NoMemoryError, match="no memory for 7 bytes; torch holds 5 MiB on cpu, 2 MiB of it unused"):
            attach(model, adamw(model))
        assert cached == [0]


def test_torch_gives_back_what_it_has_cached_and_tells_what_it_holds() -> None:
    run_torch_ranks(2, lacks_memory)


def is_staged(rank: int, size: int) -> None:
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        words = ("shm", "", "", "", "the same host", "cuda: hidden")
        direct, staged = Route(*words, "direct"), Route(*words, "staged")
        monkeypatch.setattr(Context, "route", lambda self, to, memory=Memory.HOST: staged if to == 2 else direct)
        monkeypatch.setattr(attach.__globals__["logger"], "warning", lambda text, *args: seen.append(text % args))
        model = Net(8)
        shard_blocks(model, mesh_of(size))
        attach(model, adamw(model)).close()
    told = "odc: 1 ranks of this host are reached through host memory, which is slow; rank 2 by shm: the same host"
    assert seen == ([f"{told}; not cuda: hidden"] if rank == 0 else [])


def test_staging_inside_the_host_is_warned_of_once() -> None:
    run_torch_ranks(3, is_staged)
