# SPDX-License-Identifier: Apache-2.0
"""Between hosts FSDP2's gathers and additions are started, and complete while the rank computes."""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from interrupting import Interruption, needs_tables  # noqa: E402
from torch_ranks import run_torch_ranks  # noqa: E402

import libodc  # noqa: E402
from libodc.torch import fsdp2  # noqa: E402
from libodc.torch.fsdp2.overlap import told_of_last  # noqa: E402

nn = torch.nn
fsdp = pytest.importorskip("torch.distributed.fsdp")
BLOCKS = 4
Span = Callable[[str], AbstractContextManager[None]]


class Block(nn.Module):
    """Its forward and its backward are spans."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.linear = nn.Linear(8, 8)
        self.span: Span

    def forward(self, x: Any) -> Any:
        with self.span(f"forward {self.number}"):
            return Traced.apply(self.linear(x).tanh(), self)


class Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, block: Block) -> Any:
        ctx.block = block
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx.block.span(f"backward {ctx.block.number}"):
            return gradients[0].clone(), None


def sharded(size: int) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(number) for number in range(BLOCKS)))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    for block in model:
        fsdp.fully_shard(block, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    for block, following in pairwise(model):
        block.set_modules_to_forward_prefetch([following])
    return model


def traced(rank: int, size: int, folder: str) -> None:
    model = sharded(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fsdp2.attach(model, optimizer, timeout=60) as job, job.trace(folder) as trace:
        for block in model:
            block.span = trace.span
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
        job.sync_gradients()
        optimizer.step()
        optimizer.zero_grad()


Times = dict[str, list[tuple[float, float]]]


def times_of(folder: Path, rank: int) -> Times:
    """Begins and ends by name, in microseconds."""
    times: Times = {}
    for one in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        if one["ph"] == "X" and one["pid"] == rank + 1:
            times.setdefault(one["name"], []).append((one["ts"], one["ts"] + one["dur"]))
    return times


def halves(times: Times, number: int) -> list[list[tuple[float, float]]]:
    """The starts and the waits of a block's gathers."""
    return [times[f"gather_{half} parameters of {number}"] for half in ("start", "wait")]


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODC_TEST_HOSTS", "2")


@pytest.fixture
def between_hosts(two_hosts: None, tmp_path: Path) -> list[Times]:
    """What `traced` did, by rank."""
    run_torch_ranks(2, traced, str(tmp_path))
    return [times_of(tmp_path, rank) for rank in range(2)]


@pytest.mark.filterwarnings("ignore:libodc.trace")
def test_what_is_prefetched_is_read_while_another_block_computes(between_hosts: list[Times]) -> None:
    for times in between_hosts:
        assert not any(name.startswith(("gather parameters", "scatter_add gradients")) for name in times)
        for number in range(1, BLOCKS):
            starts, waits = halves(times, number)
            assert len(starts) == len(waits) >= 3  # two forwards and at least one backward
            begin, end = times[f"forward {number - 1}"][0]
            assert starts[0][1] < begin and end < waits[0][0]
        for number in range(1, BLOCKS - 1):  # in backward FSDP2 prefetches by itself
            starts, waits = halves(times, number)
            begin, end = times[f"backward {number + 1}"][0]
            assert starts[1][1] < end and begin < waits[1][0]


@pytest.mark.filterwarnings("ignore:libodc.trace")
def test_additions_complete_at_the_sync_and_two_at_most_are_started(between_hosts: list[Times]) -> None:
    for times in between_hosts:
        calls = sorted(
            (*time, name.split()[0])
            for name, all_times in times.items()
            if name.startswith("scatter_add") and "gradients of" in name
            for time in all_times
        )
        assert [call for _, _, call in calls].count("scatter_add_start") == 2 * BLOCKS
        open_calls = 0
        for _, _, call in calls:
            open_calls += 1 if call == "scatter_add_start" else -1
            assert open_calls <= 2
        assert open_calls == 2  # the sync completes these


@pytest.mark.filterwarnings("ignore:libodc.trace")
def test_inside_a_host_calls_are_complete_when_they_return(tmp_path: Path) -> None:
    run_torch_ranks(2, traced, str(tmp_path))
    names = times_of(tmp_path, 0)
    assert not any(name.startswith(("gather_", "scatter_add_")) for name in names)
    assert len(names["gather parameters of 1"]) >= 3


def untraced(size: int) -> Any:
    model = sharded(size)
    for block in model:
        block.span = nullcontext
    return model


def sends(rank: int, size: int, told: bool, sent: Any, all_looked: Any) -> None:
    """Ranks 0 and 2, and 1 and 3, are on a host. `sent`: bytes by rank; `told`: what the last microbatch is."""
    model = untraced(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    crossing = sum(parameter.numel() for parameter in model.parameters()) * 4  # each sum, once to its owner
    with fsdp2.attach(model, optimizer, timeout=60) as job:

        def sent_in(minibatch: int) -> float:
            sent[rank] = job.context.stats().sent_bytes
            return float(sum(sent)) - minibatch * crossing

        for minibatch, known in enumerate([False, told, told]):
            for _ in job.microbatches(range(3)) if known else range(3):
                model(torch.ones(2, 8)).sum().backward()
            deadline = time.monotonic() + 60
            while known and sent_in(minibatch) < crossing:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            assert sent_in(minibatch) == (crossing if known else 0)
            all_looked.wait(60)
            job.sync_gradients()
            sent_in(minibatch)
            all_looked.wait(60)
            assert sent_in(minibatch) == crossing
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("told", [True, False])
def test_a_hosts_sums_are_sent_behind_the_last_microbatch_where_it_is_known(told: bool) -> None:
    run_torch_ranks(4, sends, told, multiprocessing.Array("d", 4), multiprocessing.Barrier(4))


def adds_unlike(rank: int, size: int) -> None:
    model = untraced(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        for backwards in ([1, 2, 1], [2, 1, 3]):  # they differ, so nothing ends before the sync
            for _, times in zip(job.microbatches(range(3)), backwards, strict=True):
                for _ in range(times):
                    model(torch.ones(2, 8)).sum().backward()
            job.sync_gradients()
            optimizer.step()
            optimizer.zero_grad()


def adds_too_often(rank: int, size: int) -> None:
    model = untraced(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = r"the last of job\.microbatches\(\) adds to shard .* 2 times"
    with pytest.raises((libodc.PhaseError, libodc.AbortedError), match=told):  # the later ranks read it of the first
        with fsdp2.attach(model, optimizer, timeout=60) as job:
            for number in job.microbatches(range(2)):
                for _ in range(1 + number):
                    model(torch.ones(2, 8)).sum().backward()


def accumulates_lists(rank: int, size: int, before: Any, refused: bool) -> None:
    """The forwards before are only read. They and microbatches of unknown number end nothing."""
    model = untraced(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        for _ in range(2):
            for _ in job.microbatches(range(2)):
                with torch.no_grad():
                    model(torch.ones(2, 8))
            for _ in job.microbatches(before if refused else iter(before)):
                model(torch.ones(2, 8)).sum().backward()
            if refused:
                with pytest.raises(libodc.PhaseError, match=r"another job\.microbatches\(\) .* pass one list of all"):
                    next(job.microbatches(range(2)))
            else:
                for _ in job.microbatches(range(2)):
                    model(torch.ones(2, 8)).sum().backward()
            job.sync_gradients()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("before", [range(1), range(2)])
@pytest.mark.parametrize("refused", [True, False])
def test_a_list_behind_the_last_microbatch_is_refused(before: range, refused: bool) -> None:
    run_torch_ranks(4, accumulates_lists, before, refused)


@pytest.mark.usefixtures("two_hosts")
def test_microbatches_of_several_backwards() -> None:
    run_torch_ranks(4, adds_unlike)
    run_torch_ranks(4, adds_too_often)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_microbatches_are_all_yielded_in_order(count: int) -> None:
    assert list(told_of_last(range(count), None)) == list(range(count))


def test_what_ranks_claim_is_not_read_ahead() -> None:
    """Whose microbatch is computed is what has been claimed last: its seed and its cost are that one's."""
    claimed: list[int] = []

    class Claims:
        def __iter__(self) -> Iterator[int]:
            for number in range(3):
                claimed.append(number)
                yield number

        def __len__(self) -> int:
            raise TypeError("as that of a DataLoader of an IterableDataset")

    assert [(number, claimed[-1]) for number in told_of_last(Claims(), None)] == [(0, 0), (1, 1), (2, 2)]


def asks_and_syncs(rank: int, size: int) -> None:
    """A gather that is started, and not waited for before the minibatch ends."""
    model = untraced(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        model(torch.ones(2, 8)).sum().backward()
        asked = model[2].unshard(async_op=True)
        job.sync_gradients()
        asked.wait()
        model[2].reshard()
        optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        job.sync_gradients()


@pytest.mark.usefixtures("two_hosts")
def test_a_gather_may_be_waited_for_after_the_sync() -> None:
    run_torch_ranks(2, asks_and_syncs)


def refuse(module: Any, inputs: Any) -> None:
    raise ValueError("bad sample 17")


def raises_behind_a_prefetch(rank: int, size: int) -> None:
    model = sharded(size)
    for block in model:
        block.span = lambda name: nullcontext()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="bad sample 17") if rank == 0 else pytest.raises(libodc.AbortedError):
        with fsdp2.attach(model, optimizer, timeout=60) as job:
            if rank == 0:
                model[1].register_forward_pre_hook(refuse)
            model(torch.ones(2, 8)).sum().backward()
            job.sync_gradients()
    assert all(hasattr(one, "to_local") for one in model.parameters())  # sharded


@pytest.mark.usefixtures("two_hosts")
def test_the_error_of_a_block_ends_the_job_though_a_gather_is_open() -> None:
    run_torch_ranks(2, raises_behind_a_prefetch)


def is_interrupted(rank: int, size: int, ended: Any) -> None:
    model = untraced(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        model(torch.ones(2, 8)).sum().backward()
        job.sync_gradients()
        if rank == 1:  # publishes when rank 0 has been interrupted
            assert ended.wait(60)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(2, 8))
            ended.set()
            model.reset_iter_state()
        model(torch.ones(2, 8)).sum().backward()
        job.sync_gradients()


needs_reset = pytest.mark.skipif(
    not hasattr(fsdp.FSDPModule, "reset_iter_state"), reason="torch before 2.13 has no reset_iter_state"
)


@needs_reset
@pytest.mark.usefixtures("two_hosts")
def test_an_interrupted_gather_is_waited_for_again() -> None:
    run_torch_ranks(2, is_interrupted, multiprocessing.Event())


def are_interrupted_anywhere(rank: int, size: int) -> None:
    model = untraced(size)
    model.set_modules_to_forward_prefetch([model[0], model[2]])
    with fsdp2.attach(model, timeout=60), torch.no_grad():
        expected, places, where = model(torch.ones(2, 8)), 0, "none"
        while rank == 0 and where:
            with Interruption(places) as interruption:
                model(torch.ones(2, 8))
            places, where = places + 1, interruption.where
            model.reset_iter_state()
            assert torch.equal(model(torch.ones(2, 8)), expected), where
        assert rank != 0 or places > 50


@needs_reset
@needs_tables
@pytest.mark.usefixtures("two_hosts")
def test_gathers_interrupted_anywhere() -> None:
    run_torch_ranks(2, are_interrupted_anywhere, seconds=300)
