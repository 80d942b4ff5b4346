# SPDX-License-Identifier: Apache-2.0
"""Shards in GPU memory through Python, on the GPUs of tests/fakes/cuda."""

import ctypes
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import Array, Capsules, Gpu, Stream, TorchStream, needs_fake_cuda
from ranks import run_ranks

import libodc
from libodc import Memory, Type
from libodc._dlpack import make_capsule, read_capsule

pytestmark = needs_fake_cuda

NUMEL = 1003


@pytest.fixture(autouse=True)
def no_driver_yet() -> None:
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        pytest.skip("another CUDA driver is loaded in this process already; run this file alone")


def join(rank: int, size: int, job: str, devices: int) -> tuple[Gpu, libodc.Context]:
    gpu = Gpu(devices, rank % devices)
    gpu.choose()
    return gpu, libodc.init(rank=rank, size=size, job=job, timeout=30, device=f"cuda:{gpu.device}")


def minibatches(rank: int, size: int, job: str, devices: int) -> None:
    gpu, context = join(rank, size, job, devices)
    streams: list[Any] = [gpu.stream(), gpu.stream().handle, TorchStream(gpu.stream().handle, gpu.device), None]
    with context:
        assert context.route(0, Memory.GPU).transport == "cuda"
        shards = [
            context.register("f32", NUMEL, Type.F32, Type.F32, memory=Memory.GPU),
            context.register("f64", NUMEL, Type.F64, Type.F64, memory=Memory.GPU),
        ]
        beside = context.register("host", 3 * size)
        kinds = [np.float32, np.float64]
        begins = [-(-NUMEL // size) * owner for owner in range(size)]
        owners = np.searchsorted(begins, np.arange(NUMEL), side="right") - 1
        kept = []
        for minibatch in range(4):
            for shard, kind in zip(shards, kinds, strict=True):
                mine = shard.slice
                assert mine.parameters is not None
                gpu.write(mine.parameters.address, np.full(mine.numel, 10 * minibatch + rank, kind))
            np.asarray(beside.slice.parameters)[:] = rank
            context.publish(streams[minibatch % 4])
            for microbatch in range((rank + minibatch) % size):
                for shard, kind in zip(shards, kinds, strict=True):
                    on = streams[(microbatch + minibatch) % 4]
                    full, gradient = gpu.array(np.zeros(NUMEL, kind)), gpu.array(np.arange(NUMEL, dtype=kind))
                    kept += [full, gradient]
                    if microbatch % 2:
                        shard.gather(full, on)
                        shard.scatter_add(Capsules(gradient, shard.description.gradients), on)
                    else:
                        shard.gather_start(Capsules(full, shard.description.parameters), stream=on).wait()
                        shard.scatter_add_start(gradient, stream=on).wait()
                    handle = on if isinstance(on, int) else getattr(on, "cuda_stream", None) or getattr(on, "handle", 0)
                    gpu.wait(Stream(handle))
                    assert (gpu.read_array(full) == 10 * minibatch + owners).all()
                whole = np.empty(3 * size, np.float32)
                beside.gather(whole)
                assert (whole == np.repeat(np.arange(size), 3)).all()
            context.sync()
            for shard, kind in zip(shards, kinds, strict=True):
                mine = shard.slice
                assert mine.gradients is not None
                sums = gpu.read(mine.gradients.address, mine.numel, kind)
                expected = np.arange(mine.offset, mine.offset + mine.numel) * (size * (size - 1) // 2)
                assert (sums == expected).all()
        assert context.stats().gather_calls > 0 or size == 1


@pytest.mark.parametrize(("size", "devices"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)])
def test_minibatches(size: int, devices: int) -> None:
    run_ranks(size, minibatches, devices)


def views(rank: int, size: int, job: str) -> None:
    gpu, context = join(rank, size, job, devices=2)
    with context:
        shard = context.register("x", 10 * size, Type.F16, Type.BF16, memory=Memory.GPU)
        half = context.register("half", 10 * size, Type.BF16, None, memory=Memory.GPU).slice.parameters
        parameters, sums = shard.slice.parameters, shard.slice.gradients
        assert parameters is not None and sums is not None and half is not None
        for view, kind, typestr in ((parameters, Type.F16, "<f2"), (sums, Type.F32, "<f4")):
            assert view.__dlpack_device__() == (2, gpu.device) and view.device == gpu.device
            seen = read_capsule(view.__dlpack__(stream=1, max_version=(1, 0)))
            assert (seen.address, seen.shape, seen.type) == (view.address, (10,), kind)
            array = view.__cuda_array_interface__
            assert array["data"] == (view.address, False) and array["typestr"] == typestr and array["shape"] == (10,)
        assert not hasattr(half, "__cuda_array_interface__")  # which has no bf16
        assert read_capsule(half.__dlpack__()).type is Type.BF16
        with pytest.raises(TypeError, match=f"in the memory of cuda:{gpu.device}, which the host cannot read"):
            np.asarray(parameters)
        with pytest.raises(TypeError, match="from_dlpack"):
            parameters.memory()
        with pytest.raises((RuntimeError, BufferError), match=r"^Unsupported device"):
            np.from_dlpack(parameters)
        on_host = context.register("host", size).slice.parameters
        assert on_host is not None and not hasattr(on_host, "__cuda_array_interface__")


def test_views_are_seen_by_dlpack_and_as_arrays() -> None:
    run_ranks(2, views)


def wrong_buffers(rank: int, size: int, job: str) -> None:
    gpu, context = join(rank, size, job, devices=2)
    other = Gpu(2, 1)
    with context:
        shard = context.register("x", 12, memory=Memory.GPU)
        halves = context.register("bf16", 12, Type.BF16, Type.BF16, memory=Memory.GPU)
        on_host = context.register("host", 12)
        context.publish()
        good = gpu.array(np.zeros(12, np.float32))
        shard.gather(Capsules(good, Type.F32))
        asked = Capsules(good, Type.F32)
        shard.scatter_add(asked)
        assert asked.streams == [-1]  # no stream waits for another

        for given, words in (
            (np.zeros(12, np.float32), "is in host memory, the shard in the memory of cuda:0"),
            (bytearray(48), "is bytearray, the shard is in the memory of cuda:0"),
            (Capsules(good, Type.F32, kind=10), "of DLPack's type 10"),
            (Capsules(other.array(np.zeros(12, np.float32)), Type.F32), "in the memory of cuda:1, the shard in the me"),
            (Capsules(good, Type.F64), "float64, the shard F32"),
            (gpu.array(np.zeros(12)), 'type "<f8", the shard F32'),
            (on_host.slice.parameters, "is in host memory, the shard in the memory of cuda:0"),
        ):
            with pytest.raises(ValueError, match=words):
                shard.gather(given)
        columns = Array(0, good.address, (3, 4), np.float32)
        columns.strides = (4, 12)
        with pytest.raises(ValueError, match="not contiguous"):
            shard.gather(columns)
        columns.strides = (16, 4)
        shard.gather(columns)
        columns.readonly = True
        shard.scatter_add(columns)
        with pytest.raises(ValueError, match="read-only"):
            shard.gather(columns)
        # Checks that only C can make: which memory an address is in.
        with pytest.raises(libodc.ArgumentError, match="is in the memory of cuda:1, the shard in that of cuda:0"):
            shard.gather(other.array(np.zeros(12, np.float32)))
        host = np.zeros(12, np.float32)
        with pytest.raises(libodc.ArgumentError, match="is in host memory"):
            shard.gather(Array(0, host.ctypes.data, (12,), np.float32))
        with pytest.raises(libodc.ArgumentError, match="11 elements"):
            shard.gather(gpu.array(np.zeros(11, np.float32)))
        with pytest.raises(ValueError, match="give a tensor or an array there"):
            halves.gather(good)
        halves.gather(Capsules(good, Type.BF16).__class__(Array(0, good.address, (12,), np.uint16), Type.BF16))
        for given in (good, Capsules(good, Type.F32), shard.slice.parameters):
            with pytest.raises(ValueError, match=r"in (GPU memory|the memory of cuda:0), the shard in host memory"):
                on_host.gather(given)
        on_host.gather(host)
        context.sync()


def test_wrong_buffers_are_told_in_words() -> None:
    run_ranks(1, wrong_buffers)


def streams(rank: int, size: int, job: str) -> None:
    """The stream that a call uses is found by a capture: C refuses only the captured one."""
    gpu, context = join(rank, size, job, devices=2)
    captured, free = gpu.stream(), gpu.stream()
    torch: Any = types.ModuleType("torch")
    current: list[Any] = [None]
    asked: list[int] = []

    def current_stream(device: int) -> Any:
        asked.append(device)
        return current[0]

    torch.cuda = types.SimpleNamespace(is_initialized=lambda: current[0] is not None, current_stream=current_stream)
    with context:
        shard = context.register("x", 8, memory=Memory.GPU)
        full = gpu.array(np.zeros(8, np.float32))
        assert gpu.call("begin_capture", captured.handle) == 0
        saved = sys.modules.pop("torch", None)
        try:
            shard.publish()  # without torch: the default stream
            sys.modules["torch"] = torch
            shard.gather(full)  # torch has not begun to use CUDA
            assert asked == []
            current[0] = TorchStream(free.handle, 0)
            shard.gather(full)
            current[0] = TorchStream(captured.handle, 0)
            for call in (shard.gather, shard.scatter_add, shard.gather_start, shard.scatter_add_start):
                with pytest.raises(libodc.ArgumentError, match="being captured"):
                    call(full)
                with pytest.raises(libodc.ArgumentError, match="being captured"):
                    call(full, stream=captured)
            assert asked == [0] * 5
            context.sync()
            for publish in (shard.publish, context.publish):
                with pytest.raises(libodc.ArgumentError, match="being captured"):
                    publish()
            shard.publish(free)
            context.register("late", 8, memory=Memory.GPU)
            context.publish(np.uint64(free.handle))
        finally:
            sys.modules.pop("torch")
            if saved is not None:
                sys.modules["torch"] = saved
        gpu.call("end_capture", captured.handle)
        with pytest.raises(ValueError, match="the stream is of cuda:1, the context's GPU is cuda:0"):
            shard.gather(full, TorchStream(0, 1))
        with pytest.raises(ValueError, match="the stream is str: give a handle"):
            shard.gather(full, "main")
        with pytest.raises(libodc.ArgumentError, match="the handle of the stream is -1, must be"):
            shard.gather(full, -1)
        with pytest.raises(libodc.ArgumentError, match="the stream does not belong to the primary context of cuda:0"):
            shard.gather(full, Gpu(2, 1).stream())
        newer = type("Newer", (), {"__cuda_stream__": lambda self: (1, 0)})()
        with pytest.raises(ValueError, match="version 1 of __cuda_stream__"):
            shard.gather(full, newer)
        context.sync()


def test_streams() -> None:
    run_ranks(1, streams)


def refusals(rank: int, size: int, job: str) -> None:
    Gpu(1, 0)
    with pytest.raises(libodc.ArgumentError, match="cuda:7 does not exist: this process sees 1 GPU "):
        libodc.init(rank=0, size=1, job=job, device="cuda:7")
    with pytest.raises(libodc.ArgumentError, match='the device is "cpu"; name one as cuda:0'):
        libodc.init(rank=0, size=1, job=job, device="cpu")
    with libodc.init(rank=0, size=1, job=job) as context:
        with pytest.raises(libodc.UnsupportedError, match=r"rank 0 has no GPU: name one by config\.device"):
            context.register("x", 8, memory=Memory.GPU)


def test_devices_are_refused_in_words() -> None:
    run_ranks(1, refusals)


def environment(rank: int, size: int, job: str) -> None:
    gpu = Gpu(2, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ODC_DEVICE", "cuda:1")
        context = libodc.init(rank=0, size=1, job=job)
    with context:
        shard = context.register("x", 8, memory=np.int64(2))
        assert shard.description.memory is Memory.GPU
        assert shard.slice.parameters is not None and shard.slice.parameters.device == 1
        shard.publish()
        shard.gather(gpu.array(np.zeros(8, np.float32)), TorchStream(gpu.stream().handle, 1))
        context.sync()


def test_the_environment_names_the_device() -> None:
    run_ranks(1, environment)


def failing(rank: int, size: int, job: str) -> None:
    gpu, context = join(rank, size, job, devices=2)
    shard = context.register("x", 8, memory=Memory.GPU)
    context.publish()
    stream, full = gpu.stream(), gpu.array(np.zeros(8, np.float32))
    if rank == 1:
        assert gpu.call("fault", stream.handle, 700) == 0
        assert gpu.call("stream_wait", stream.handle) == 700
        with pytest.raises(libodc.DeviceError, match=r"cuda:1.*most likely a kernel of the program"):
            shard.gather(full, stream)
    with pytest.raises(libodc.DeviceError, match=r"rank 1 .*cuda:1.*most likely a kernel of the program"):
        context.sync()
    with pytest.raises(libodc.DeviceError, match="rank 1"):
        shard.publish()
    context.close()


def test_a_broken_gpu_is_told_to_all_ranks() -> None:
    run_ranks(2, failing)


def disagree(rank: int, size: int, job: str) -> None:
    gpu, context = join(rank, size, job, devices=1)
    shard = context.register("x", 8 * size, memory=Memory.GPU if rank == 0 else Memory.HOST)
    context.publish()
    with pytest.raises(libodc.MismatchError, match="memory"):
        shard.gather(gpu.array(np.zeros(8 * size, np.float32)) if rank == 0 else np.zeros(8 * size, np.float32))
    context.close()


def test_ranks_that_disagree_about_the_memory() -> None:
    run_ranks(2, disagree)


def waits(rank: int, size: int, job: str) -> None:
    """A gather that waits for a publish leaves other threads running."""
    gpu, context = join(rank, size, job, devices=1)
    with context:
        shard = context.register("x", 8 * size, memory=Memory.GPU)
        ready = context.register("ready", size)
        if rank == 0:
            context.publish()
            full = gpu.array(np.zeros(8 * size, np.float32))
            waiting = threading.Thread(target=shard.gather, args=(full,))
            waiting.start()
            ready.scatter_add(np.ones(size, np.float32))  # waits, too, for what rank 1 publishes first
            waiting.join()
        else:
            ready.publish()
            while np.asarray(ready.slice.gradients)[0] == 0:  # so rank 0 runs while it waits
                pass
            shard.publish()
        context.sync()


def test_a_waiting_gather_leaves_other_threads_running() -> None:
    run_ranks(2, waits)


def test_capsules_of_others_are_read() -> None:
    for array in (np.zeros((2, 3), np.float32), np.zeros((4, 6))[1:, ::2], np.zeros(0, np.float16), np.zeros(5, "c8")):
        seen = read_capsule(array.__dlpack__())
        assert seen.address == array.ctypes.data or array.size == 0
        assert seen.shape == array.shape and seen.itemsize == array.itemsize
        if seen.strides is not None and array.size:
            assert tuple(stride * array.itemsize for stride in seen.strides) == array.strides
    assert read_capsule(np.zeros(5, "c8").__dlpack__()).kind == "complex64"


def test_an_offset_in_a_capsule_counts() -> None:
    capsule = make_capsule(None, 4096, 5, Type.F32, (1, 0))
    assert read_capsule(capsule).address == 4096
    raw = ctypes.pythonapi.PyCapsule_GetPointer
    raw.restype, raw.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    offset = ctypes.c_uint64.from_address(raw(capsule, b"dltensor") + 40)
    assert offset.value == 0
    offset.value = 12
    assert read_capsule(capsule).address == 4108
