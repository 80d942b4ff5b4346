# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver by ctypes: the functions that these programs call, in the versions that libodc uses."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from ctypes import (
    POINTER,
    Array,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import Any

FUNCTIONS = {
    "cuInit": 2000,
    "cuDriverGetVersion": 2020,
    "cuGetErrorName": 6000,
    "cuGetErrorString": 6000,
    "cuDeviceGetCount": 2000,
    "cuDeviceGet": 2000,
    "cuDeviceGetName": 2000,
    "cuDeviceGetAttribute": 2000,
    "cuDeviceGetP2PAttribute": 8000,
    "cuDeviceGetP2PAtomicCapabilities": 13000,
    "cuFuncLoad": 12040,
    "cuDevicePrimaryCtxRetain": 7000,
    "cuCtxPushCurrent": 4000,
    "cuMemGetInfo": 3020,
    "cuMemGetAllocationGranularity": 10020,
    "cuMemCreate": 10020,
    "cuMemRelease": 10020,
    "cuMemExportToShareableHandle": 10020,
    "cuMemImportFromShareableHandle": 10020,
    "cuMemAddressReserve": 10020,
    "cuMemMap": 10020,
    "cuMemSetAccess": 10020,
    "cuMemHostRegister": 6050,
    "cuMemHostGetDevicePointer": 3020,
    "cuMemcpyAsync": 4000,
    "cuMemsetD8Async": 3020,
    "cuMemcpyBatchAsync": 13000,
    "cuStreamCreate": 2000,
    "cuStreamQuery": 2000,
    "cuStreamWriteValue64": 11070,
    "cuStreamWaitValue64": 11070,
    "cuModuleLoadData": 2000,
    "cuModuleGetFunction": 2000,
    "cuLaunchKernel": 4000,
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": 6050,
}
NOT_READY = 600
MULTIPROCESSORS = 16  # attributes of a device
MAJOR, MINOR = 75, 76
NATIVE_ATOMICS, PEER_ACCESS = 3, 2  # of a pair
BLOCKING, NON_BLOCKING = 0, 1


class CudaError(Exception):
    pass


class Location(Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class Properties(Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("compression", c_char),
        ("gpu_direct_rdma_capable", c_char),
        ("usage", c_ushort),
        ("reserved", c_char * 4),
    )


class Access(Structure):
    _fields_ = (("location", Location), ("flags", c_int))


class Driver:
    """Raises CudaError with CUDA's error text for failed calls and missing functions."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"there is no driver: {error}") from None
        self._get = self._library.cuGetProcAddress_v2
        self._get.argtypes = (c_char_p, POINTER(c_void_p), c_int, c_uint64, c_void_p)
        self._found: dict[str, Any] = {}
        self.call("cuInit", c_uint(0))

    @property
    def fake(self) -> bool:
        """Whether the driver is tests/fakes/cuda, also when it is disguised."""
        return self.count() > 0 and self.name(0).startswith("Fake GPU")

    def has(self, name: str) -> bool:
        if name not in self._found:
            address = c_void_p()
            result = self._get(name.encode(), byref(address), FUNCTIONS[name], 1, None)
            prototype = ctypes.CFUNCTYPE(c_int)
            self._found[name] = prototype(address.value) if result == 0 and address.value else None
        return self._found[name] is not None

    def result(self, name: str, *arguments: Any) -> int:
        """Arguments must be ctypes objects: without a prototype nothing else has the right width."""
        if not self.has(name):
            raise CudaError(f"the driver lacks {name} {FUNCTIONS[name]}")
        return int(self._found[name](*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        if (result := self.result(name, *arguments)) != 0:
            raise CudaError(f"{name} failed: {self.words(result)}")

    def words(self, result: int) -> str:
        texts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            known = self.has(function) and self._found[function](c_int(result), byref(text)) == 0
            texts.append(text.value.decode() if known and text.value else str(result))
        return f"{texts[0]} ({texts[1]})"

    def version(self) -> int:
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def count(self) -> int:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def name(self, ordinal: int) -> str:
        device, text = c_int(), ctypes.create_string_buffer(128)
        self.call("cuDeviceGet", byref(device), c_int(ordinal))
        self.call("cuDeviceGetName", text, c_int(128), device)
        return text.value.decode()


class Gpu:
    """One GPU; makes its primary context current in the thread."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self._device = c_int()
        context = c_void_p()
        driver.call("cuDeviceGet", byref(self._device), c_int(ordinal))
        driver.call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        driver.call("cuCtxPushCurrent", context)

    def attribute(self, which: int) -> int:
        value = c_int()
        self.driver.call("cuDeviceGetAttribute", byref(value), c_int(which), self._device)
        return value.value

    def memory(self) -> tuple[int, int]:
        """Bytes: free, total."""
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    # ---- memory that can be shared ----

    def _properties(self) -> Properties:
        return Properties(type=1, handle_types=1, location=Location(1, self.ordinal))

    def granule(self) -> int:
        granule = c_size_t()
        self.driver.call("cuMemGetAllocationGranularity", byref(granule), byref(self._properties()), c_int(0))
        return granule.value

    def create(self, nbytes: int) -> c_uint64:
        handle = c_uint64()
        self.driver.call("cuMemCreate", byref(handle), c_size_t(nbytes), byref(self._properties()), c_uint64(0))
        return handle

    def export(self, handle: c_uint64) -> int:
        descriptor = c_int(-1)
        self.driver.call("cuMemExportToShareableHandle", byref(descriptor), handle, c_int(1), c_uint64(0))
        return descriptor.value

    def take(self, descriptor: int) -> c_uint64:
        """Memory exported by another process."""
        handle = c_uint64()
        self.driver.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), c_int(1))
        return handle

    def map(self, handle: c_uint64, nbytes: int) -> int:
        """Its device address."""
        address = c_uint64()
        self.driver.call("cuMemAddressReserve", byref(address), c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
        self.driver.call("cuMemMap", address, c_size_t(nbytes), c_size_t(0), handle, c_uint64(0))
        access = Access(Location(1, self.ordinal), 3)
        self.driver.call("cuMemSetAccess", address, c_size_t(nbytes), byref(access), c_size_t(1))
        return address.value

    def new(self, nbytes: int) -> int:
        """The device address of at least so many bytes."""
        whole = -(-nbytes // self.granule()) * self.granule()
        return self.map(self.create(whole), whole)

    def register(self, host: int, nbytes: int) -> int:
        """Pins host memory and returns its device address. Its owner must outlive its use."""
        address = c_uint64()
        self.driver.call("cuMemHostRegister", c_void_p(host), c_size_t(nbytes), c_uint(3))
        self.driver.call("cuMemHostGetDevicePointer", byref(address), c_void_p(host), c_uint(0))
        return address.value

    # ---- streams ----

    def stream(self, flags: int = NON_BLOCKING) -> c_void_p:
        stream = c_void_p()
        self.driver.call("cuStreamCreate", byref(stream), c_uint(flags))
        return stream

    def copy(self, to: int, source: int, nbytes: int, stream: c_void_p) -> None:
        self.driver.call("cuMemcpyAsync", c_uint64(to), c_uint64(source), c_size_t(nbytes), stream)

    def fill(self, to: int, value: int, nbytes: int, stream: c_void_p) -> None:
        self.driver.call("cuMemsetD8Async", c_uint64(to), ctypes.c_ubyte(value), c_size_t(nbytes), stream)

    def write_word(self, to: int, value: int, stream: c_void_p) -> None:
        self.driver.call("cuStreamWriteValue64", stream, c_uint64(to), c_uint64(value), c_uint(0))

    def await_word(self, at: int, value: int, stream: c_void_p) -> None:
        self.driver.call("cuStreamWaitValue64", stream, c_uint64(at), c_uint64(value), c_uint(0))

    def is_done(self, stream: c_void_p) -> bool:
        result = self.driver.result("cuStreamQuery", stream)
        if result not in (0, NOT_READY):
            raise CudaError(f"cuStreamQuery failed: {self.driver.words(result)}")
        return result == 0

    def wait(self, stream: c_void_p, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not self.is_done(stream):
            if time.monotonic() > deadline:
                raise CudaError(f"a stream was not done after {seconds} s")

    def read(self, address: int, nbytes: int) -> bytes:
        """By way of pageable memory."""
        text: Array[c_char] = ctypes.create_string_buffer(nbytes)
        stream = self.stream()
        self.copy(ctypes.addressof(text), address, nbytes, stream)
        self.wait(stream)
        return text.raw

    # ---- kernels ----

    def load(self, ptx: bytes) -> c_void_p:
        module = c_void_p()
        self.driver.call("cuModuleLoadData", byref(module), c_char_p(ptx))
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        function = c_void_p()
        self.driver.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        return function

    def launch(self, function: c_void_p, blocks: int, threads: int, stream: c_void_p, *parameters: Any) -> None:
        """`parameters`: ctypes objects, copied by the call."""
        pointers = (c_void_p * max(1, len(parameters)))(*(ctypes.addressof(one) for one in parameters))
        shape = (c_uint(blocks), c_uint(1), c_uint(1), c_uint(threads), c_uint(1), c_uint(1), c_uint(0))
        self.driver.call("cuLaunchKernel", function, *shape, stream, pointers, None)


def p2p_attribute(driver: Driver, which: int, one: int, other: int) -> int:
    value = c_int()
    driver.call("cuDeviceGetP2PAttribute", byref(value), c_int(which), c_int(one), c_int(other))
    return value.value


def main() -> int:
    """What is available, as JSON."""
    try:
        driver = Driver()
        version = driver.version()
        gpus = [Gpu(driver, ordinal) for ordinal in range(driver.count())]
        each = [
            {"name": driver.name(gpu.ordinal), "capability": f"{gpu.attribute(MAJOR)}.{gpu.attribute(MINOR)}"}
            for gpu in gpus
        ]
    except CudaError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"gpus": each, "cuda": f"{version // 1000}.{version % 1000 // 10}", "fake": driver.fake}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
