# SPDX-License-Identifier: Apache-2.0
"""The contract through Python: several ranks as processes."""

import array
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ranks import run_ranks

import libodc
from libodc import Type
from libodc._abi import lib
from libodc._loops import note_wait

PIPE = subprocess.PIPE


def minibatches(rank: int, size: int, job: str) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        assert (context.rank, context.size, context.minibatch) == (rank, size, 0)
        shards = [context.register(f"layer.{i}", 101, Type.F32, Type.F32) for i in range(3)]
        parameters = [np.asarray(s.slice.parameters) for s in shards]
        for minibatch in range(4):
            for mine in parameters:
                mine[:] = minibatch + rank
            context.publish()
            for _ in range((rank + minibatch) % size):  # uneven, possibly 0
                for shard in shards:
                    full = np.empty(101, np.float32)
                    shard.gather(full)
                    each = -(-101 // size)
                    assert (full == minibatch + np.arange(101) // each).all()
                    shard.scatter_add(np.full(101, 2, np.float32))
            assert context.sync([1.0, rank], libodc.Reduction.SUM) == [size, size * (size - 1) / 2]
            for shard in shards:
                assert (np.asarray(shard.slice.gradients) == size * (size - 1)).all()
            assert context.all_reduce([rank], libodc.Reduction.MAX) == [size - 1]
        stats = context.stats()
        assert stats.syncs == 4 and stats.gather_calls == stats.scatter_add_calls
        assert stats.gather_calls > 0 or size == 1
        assert context.peer_stats(0).sync_last >= 0
        assert not context.route(0).between_hosts and str(context.route(0)).startswith("shm: ")
        assert context.route(0).access == "direct"
        gpu = context.route(0, libodc.Memory.GPU)
        assert (gpu.transport, gpu.access) == ("", "none") and str(gpu).startswith(f"none: rank {rank} has no GPU")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_minibatches(size: int) -> None:
    run_ranks(size, minibatches)


def kinds_of_buffers(rank: int, size: int, job: str) -> None:
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        shard = context.register("x", 10, Type.F64, Type.F64, slices=[10, 0])
        raw = context.register("raw", 6, Type.BYTES, None)
        mine = shard.slice
        assert mine.numel == (10 if rank == 0 else 0) and mine.offset == (0 if rank == 0 else 10)
        if rank == 0:
            assert mine.parameters is not None
            mine.parameters.memory()[:] = array.array("d", range(10))
        else:
            assert mine.parameters is None and mine.gradients is None
        context.publish()
        for full in (bytearray(80), array.array("d", [0] * 10), np.zeros(10)):
            shard.gather(full)
            assert list(memoryview(full).cast("B").cast("d")) == list(range(10))
            operation = shard.gather_start(full)
            operation.wait()
        for gradient in (bytes(80), memoryview(array.array("d", [1] * 10)), np.ones(10)):
            shard.scatter_add(gradient)
        with pytest.raises(ValueError, match=r'^the buffer for shard "x" is not contiguous: give one that is$'):
            shard.gather(np.zeros(20)[::2])
        with pytest.raises(ValueError, match="F64"):
            shard.gather(np.zeros(10, np.float32))
        with pytest.raises((BufferError, TypeError)):
            shard.gather(bytes(80))
        with pytest.raises(libodc.ArgumentError, match="9 elements"):
            shard.gather(np.zeros(9))
        with pytest.raises(libodc.ArgumentError, match="has no gradients"):
            raw.scatter_add(bytes(6))
        with pytest.raises(libodc.PhaseError, match="published already"):
            shard.publish() if rank == 0 else raw.publish()
        operation = shard.scatter_add_start(np.ones(10))
        shard.finish()
        operation.wait()
        with pytest.raises(libodc.PhaseError, match="odc_finish"):
            shard.scatter_add(np.ones(10))
        with pytest.raises(libodc.ArgumentError, match='"raw" has no gradients'):
            raw.finish()
        context.sync()
        if rank == 0:
            assert list(shard.slice.gradients.memory()) == [6.0] * 10
        shard.release()
        with pytest.raises(libodc.PhaseError, match='"x" has been released'):
            shard.publish()
        with pytest.raises(ValueError, match="1 slices for 2 ranks"):
            context.register("y", 1, slices=[1])


def test_buffers_of_every_kind_and_wrong_ones() -> None:
    run_ranks(2, kinds_of_buffers)


def gives_buffers_back(rank: int, size: int, job: str, ends: Any, interrupted: Any, done: Any) -> None:
    def all_gather(mine: bytes) -> list[bytes]:
        ends[rank].send_bytes(mine)
        parts = [ends[rank].recv_bytes(), mine]
        return parts if rank == 1 else parts[::-1]

    stop = threading.Event()
    context = libodc.init(rank=rank, size=size, all_gather=all_gather, timeout=30, interrupted=stop.is_set)
    shard = context.register("w", 10)
    if rank == 1:
        assert interrupted.wait(60)
        context.publish()
        context.sync()
        assert done.wait(60)
        return
    context.publish()
    full, late, dropped = bytearray(40), bytearray(40), bytearray(40)
    operation = shard.gather_start(full)
    with pytest.raises(BufferError):  # it belongs to the library, so it cannot be resized
        full.append(0)
    stop.set()
    with pytest.raises(libodc.InterruptedWaitError):
        operation.wait()
    stop.clear()
    with pytest.raises(BufferError):  # still
        full.append(0)
    interrupted.set()
    operation.wait()
    full.append(0)
    context.sync()
    context.publish()
    operation = shard.gather_start(late)
    shard.gather_start(dropped)
    with pytest.raises(BufferError):
        late.append(0)
    context.close()
    for _ in range(2):
        with pytest.raises(libodc.PhaseError, match=r"^odc_wait: this rank has left the job \(odc_shutdown\)$"):
            operation.wait()  # returns, and the buffer is no longer used
        late.append(0)
    del context, shard
    gc.collect()
    with pytest.raises(libodc.PhaseError, match="has left the job"):
        operation.wait()
    with pytest.raises(BufferError):
        dropped.append(0)
    del operation
    gc.collect()
    dropped.append(0)  # with the context
    done.set()


@pytest.mark.parametrize("hosts", ["1", "2"])
def test_a_wait_gives_the_buffer_back_also_after_close(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODC_TEST_HOSTS", hosts)
    run_ranks(2, gives_buffers_back, multiprocessing.Pipe(), multiprocessing.Event(), multiprocessing.Event())


def is_signalled_in_starts(rank: int, size: int, job: str, started: Any) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    shard = context.register("w", 10)
    context.publish()
    if rank == 0:
        full = bytearray(40)
        library = mock.Mock(wraps=lib)
        library.odc_gather_start = signalled(lib.odc_gather_start)
        with mock.patch("libodc.shard.lib", library), pytest.raises(KeyboardInterrupt):
            shard.gather_start(full)
        gc.collect()
        with pytest.raises(BufferError):  # C uses it, whoever waits for it
            full.append(0)
        started.set()
        context.sync()
        full.append(0)
    else:
        assert started.wait(60)
        context.sync()


def signalled(function: Any) -> Any:
    """Ctrl-C arrives as the call returns."""

    def call(*arguments: Any) -> Any:
        status = function(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return status

    return call


def test_a_start_that_ctrl_c_ends_keeps_the_buffer() -> None:
    run_ranks(2, is_signalled_in_starts, multiprocessing.Event())


def is_signalled_in_init(rank: int, size: int, job: str) -> None:
    library = mock.Mock(wraps=lib)
    library.odc_init = signalled(lib.odc_init)
    patches = mock.patch("libodc.context.lib", library), mock.patch("libodc._handle.lib", library)
    with patches[0], patches[1], pytest.raises(KeyboardInterrupt):
        libodc.init(rank=rank, size=size, job=job, timeout=30)
    gc.collect()
    assert library.odc_destroy.call_count == 1


def test_a_context_that_ctrl_c_loses_is_destroyed() -> None:
    run_ranks(1, is_signalled_in_init)


def is_closed_meanwhile(rank: int, size: int, job: str, waited: Any) -> None:
    stop = threading.Event()
    context = libodc.init(rank=rank, size=size, job=job, timeout=30, interrupted=stop.is_set)
    shard = context.register("w", 10)
    if rank == 1:
        assert waited.wait(60)
        return
    context.publish()
    full = bytearray(40)
    operation = shard.gather_start(full)

    def wait_and_close(*arguments: Any) -> Any:
        status = note_wait(*arguments)
        closing = threading.Thread(target=context.close)
        closing.start()
        closing.join()
        return status

    stop.set()
    with mock.patch("libodc.shard.note_wait", wait_and_close), pytest.raises(libodc.InterruptedWaitError):
        operation.wait()
    with pytest.raises(BufferError):  # C still uses it
        full.append(0)
    with pytest.raises(libodc.PhaseError):
        operation.wait()
    full.append(0)
    waited.set()


def test_an_interrupted_wait_keeps_the_buffer_where_another_thread_closes() -> None:
    run_ranks(2, is_closed_meanwhile, multiprocessing.Event())


def gives_back_after_an_error(rank: int, size: int, job: str) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    shard = context.register("w", 10)
    context.publish()
    full = bytearray(40)
    operation = shard.gather_start(full)
    context.abort("enough")
    with pytest.raises(libodc.AbortedError, match="enough"):
        operation.wait()
    full.append(0)


def test_a_wait_gives_the_buffer_back_after_a_job_error() -> None:
    run_ranks(1, gives_back_after_an_error)


def keeps_views(rank: int, size: int, job: str) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    shard = context.register("w", 1000, Type.F32, None)
    view = np.asarray(shard.slice.parameters)
    view[:] = 5
    context.close()
    context.close()
    with pytest.raises(libodc.PhaseError, match="closed"):
        context.publish()
    del context, shard
    gc.collect()
    assert (view == 5).all()
    view[:] = 6
    mappings = Path("/proc/self/maps").read_text().count("memfd:odc")
    assert mappings > 0
    del view
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:odc") == 0


def test_views_keep_the_memory_alive_and_nothing_else_does() -> None:
    run_ranks(2, keeps_views)


def refused_capsules(rank: int, size: int, job: str) -> None:
    unraisable: list[Any] = []
    sys.unraisablehook = unraisable.append
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    view = context.register("w", 10, Type.BF16, None).slice.parameters
    with pytest.raises((RuntimeError, BufferError), match=r"^Unsupported dtype"):  # NumPy has no bf16
        np.from_dlpack(view)

    def refuse() -> None:
        raise KeyError("no such tensor")

    with pytest.raises(KeyError, match="no such tensor"):
        _ = [view.__dlpack__(), refuse()]  # the capsule is dropped while the error is raised
    float_view = context.register("f", 10).slice.parameters
    with pytest.raises(KeyError, match="no such tensor"):
        _ = [np.from_dlpack(float_view), refuse()]  # and here the array made from it
    context.close()
    del context, view, float_view
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:odc") == 0
    assert unraisable == []


def test_a_refused_capsule_leaves_its_consumers_error_and_no_memory() -> None:
    run_ranks(1, refused_capsules)


def meets_by_callback(rank: int, size: int, job: str, pipes: list[tuple[int, int]]) -> None:
    def all_gather(mine: bytes) -> list[bytes]:  # through pipes: each rank writes its bytes to every rank
        for to in range(size):
            os.write(pipes[to][1], bytes([rank]) + mine)
        parts = {}
        for _ in range(size):
            data = b""
            while len(data) < 1 + len(mine):
                data += os.read(pipes[rank][0], 1 + len(mine) - len(data))
            parts[data[0]] = data[1:]
        return [parts[r] for r in range(size)]

    with libodc.init(rank=rank, size=size, all_gather=all_gather, timeout=30) as context:
        assert context.all_reduce([rank]) == [size * (size - 1) / 2]


def callback_raises(rank: int, size: int, job: str) -> None:
    def all_gather(mine: bytes) -> list[bytes]:
        raise KeyError("no store")

    with pytest.raises(KeyError, match="no store"):
        libodc.init(rank=rank, size=size, all_gather=all_gather, timeout=30)
    with pytest.raises(ValueError, match="all_gather returned"):
        libodc.init(rank=rank, size=size, all_gather=lambda mine: [mine], timeout=30)


def test_ranks_meet_through_a_callback_and_its_exception_is_raised() -> None:
    pipes = [os.pipe() for _ in range(3)]
    run_ranks(3, meets_by_callback, pipes)
    for pipe in pipes:
        os.close(pipe[0])
        os.close(pipe[1])
    run_ranks(2, callback_raises)


def one_raises(rank: int, size: int, job: str) -> None:
    with (
        pytest.raises(ValueError if rank == 1 else libodc.AbortedError, match="bad sample 7"),
        libodc.init(rank=rank, size=size, job=job, timeout=30) as context,
    ):
        context.register("w", 10)
        context.publish()
        if rank == 1:
            raise ValueError("bad sample 7")
        context.sync()


def one_dies(rank: int, size: int, job: str) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=30)
    context.register("w", 10)
    context.publish()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(libodc.PeerLostError, match=r"rank 1 .* died") as caught:
        context.sync()
    assert isinstance(caught.value, libodc.JobError) and isinstance(caught.value, ConnectionError)
    assert caught.value.status is libodc.Status.ERROR_PEER_LOST


def misses_deadline(rank: int, size: int, job: str, done: Any) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=timedelta(seconds=2))
    context.register("w", 10)
    context.publish()
    if rank == 0:
        with pytest.raises(libodc.MissedDeadlineError, match="rank 1"):
            context.sync()
        done.set()
    else:
        assert done.wait(60)


def test_job_errors_are_exceptions_that_name_the_rank() -> None:
    run_ranks(3, one_raises)
    run_ranks(3, one_dies, mortal=(1,))
    run_ranks(2, misses_deadline, multiprocessing.Event())


def other_threads_run(rank: int, size: int, job: str, ran: Any) -> None:
    context = libodc.init(rank=rank, size=size, job=job, timeout=60)
    shard = context.register("w", 10)
    context.publish()
    if rank == 0:
        syncing = threading.Event()

        def tick() -> None:
            syncing.wait()
            for _ in range(50):
                time.sleep(0.001)
            ran.set()

        thread = threading.Thread(target=tick)
        thread.start()
        syncing.set()
        context.sync()
        thread.join()
    else:
        assert ran.wait(30)
        shard.gather(np.zeros(10, np.float32))
        context.sync()
    context.close()


def test_a_waiting_call_lets_other_threads_run() -> None:
    run_ranks(2, other_threads_run, multiprocessing.Event())


CTRL_C = """
import os, signal, sys, threading, libodc
context = libodc.init(rank=int(sys.argv[1]), size=2, job=sys.argv[2], timeout=60)
context.register("w", 10)
context.publish()
if sys.argv[1] == "0":
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        context.sync()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
sys.stdin.read()
context.sync()
print("synced", flush=True)
"""


@pytest.mark.parametrize("own_handler", [False, True])
def test_ctrl_c_ends_a_wait_which_may_be_taken_up_again(own_handler: bool) -> None:
    code = CTRL_C
    if own_handler:  # a handler that does not raise does not end the wait
        code = 'import signal; signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))\n' + code
    job = f"ctrl-c-{os.getpid()}-{own_handler}"
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), job], stdin=PIPE, stdout=PIPE, text=True, cwd="/")
        for rank in range(2)
    ]
    first = ranks[0].stdout.readline()
    assert first == ("handled\n" if own_handler else "interrupted\n")
    if own_handler:  # its first sync still waits for rank 1's
        ranks[1].stdin.close()
        assert ranks[1].wait(60) == 0
        ranks[0].kill()
        ranks[0].wait()
        return
    for rank in ranks:
        rank.stdin.close()
    assert [rank.stdout.read() for rank in ranks] == ["synced\n", "synced\n"]
    assert [rank.wait(60) for rank in ranks] == [0, 0]


def interrupted_by_callback(rank: int, size: int, job: str, ended: Any) -> None:
    stop = threading.Event()
    context = libodc.init(rank=rank, size=size, job=job, timeout=30, interrupted=stop.is_set)
    context.register("w", 10)
    context.publish()
    if rank == 0:
        stop.set()
        with pytest.raises(libodc.InterruptedWaitError):
            context.sync()
        stop.clear()
        ended.set()
    else:
        assert ended.wait(60)
    context.sync()
    context.close()


def test_interrupted_ends_a_wait() -> None:
    run_ranks(2, interrupted_by_callback, multiprocessing.Event())


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="rank and size"):
        libodc.init(rank=1)
    with pytest.raises(ValueError, match="timeout"):
        libodc.init(rank=0, size=1, timeout=-1)
    with pytest.raises(ValueError, match=r"timeout is 0\.0 s"):
        libodc.init(rank=0, size=1, timeout=timedelta())
    with pytest.raises(TypeError, match=r"timeout is '3', must be seconds or a timedelta"):
        libodc.init(timeout="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"timeout is True, must be seconds or a timedelta"):
        libodc.init(rank=0, size=1, timeout=True)
    with pytest.raises(libodc.ArgumentError, match=r"rank 3 is not in 0\.\.1"):
        libodc.init(rank=3, size=2, job="x")
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("ODC_R", "ODC_S", "RANK", "WORLD", "PMI", "OMPI"))
    }
    result = subprocess.run(
        [sys.executable, "-c", "import libodc; libodc.init()"], env=environment, capture_output=True, text=True, cwd="/"
    )
    assert "no launcher is found" in result.stderr
