# SPDX-License-Identifier: Apache-2.0
"""Whether a gather between GPUs needs a multiprocessor: each of two ranks occupies its whole GPU with a kernel
(fill.cu) and gathers meanwhile: `odc run -n 2 python3 zero_sms.py fill.ptx`. Rank 0 prints JSON."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64
from pathlib import Path
from typing import Any

import libodc
from cuda_api import MULTIPROCESSORS, CudaError, Driver, Gpu

NUMEL = 64 << 20  # f32
THREADS = 1024
PAGE = mmap.PAGESIZE


class Buffer:
    """Implements __cuda_array_interface__."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (NUMEL,),
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
        }


class Filler:
    """A kernel that occupies every multiprocessor until stop()."""

    def __init__(self, gpu: Gpu, ptx: bytes) -> None:
        self._gpu = gpu
        self._page = mmap.mmap(-1, PAGE)
        self._words = (c_uint64 * 2).from_buffer(self._page)
        self._seen = gpu.register(ctypes.addressof(self._words), PAGE)
        self._kernel = gpu.function(gpu.load(ptx), "fill")
        self._stream = gpu.stream()
        fit = c_int()
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        gpu.driver.call(occupancy, byref(fit), self._kernel, c_int(THREADS), c_size_t(0))
        self.blocks = fit.value * gpu.attribute(MULTIPROCESSORS)

    def start(self) -> None:
        words = (c_uint64(self._seen), c_uint64(self._seen + 8))
        self._gpu.launch(self._kernel, self.blocks, THREADS, self._stream, *words)
        wait(lambda: self._words[1] == self.blocks, "the kernel does not fill the GPU")

    def runs(self) -> bool:
        return not self._gpu.is_done(self._stream)

    def stop(self) -> None:
        self._words[0] = 1
        self._gpu.wait(self._stream)


def wait(condition: Callable[[], bool], words: str, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{words} within {seconds} s")
    return True


def tried(context: libodc.Context, gpu: Gpu, ptx: bytes) -> dict[str, Any]:
    shard = context.register("full", NUMEL, gradients=None, memory=libodc.Memory.GPU)
    ready = context.register("ready", context.size, gradients=None)
    buffer, stream, filler = Buffer(gpu.new(4 * NUMEL)), gpu.stream(), Filler(gpu, ptx)
    context.publish()
    shard.gather(buffer, stream=stream.value)  # first-use set-up
    context.sync()
    shard.publish()
    gpu.wait(ctypes.c_void_p(0))
    filler.start()
    ready.publish()
    ready.gather((ctypes.c_float * context.size)())  # all GPUs are occupied
    begin = time.perf_counter()
    shard.gather(buffer, stream=stream.value)
    try:
        done = wait(lambda: gpu.is_done(stream), "the gather was not done", 5)
    except RuntimeError:
        done = False
    seconds = time.perf_counter() - begin
    beside = done and filler.runs()
    filler.stop()
    context.sync()
    figures = {"ms": 1e3 * seconds, "gbps": 4e-9 * NUMEL / seconds, "blocks": filler.blocks}
    reason = "" if beside else "the gather was done only when the kernel had left the GPU"
    return {
        "name": "zero multiprocessors",
        "outcome": "passed" if beside else "failed",
        "reason": reason,
        "figures": figures,
    }


def main() -> int:
    driver = Driver()
    with libodc.init(timeout=60) as context:
        rank = context.rank
    if driver.fake or driver.count() < 2:
        why = "the driver is fake" if driver.fake else "there is one GPU"
        result: dict[str, Any] = {"name": "zero multiprocessors", "outcome": "skipped", "reason": why}
    else:
        with libodc.init(group="gather", device=f"cuda:{rank}", timeout=60) as context:
            result = tried(context, Gpu(driver, rank), Path(sys.argv[1]).read_bytes() + b"\0")
    if rank == 0:
        print(json.dumps({"results": [result]}), flush=True)
    return 0


try:
    sys.exit(main())
except CudaError as error:
    sys.exit(f"zero_sms.py: {error}")
