# SPDX-License-Identifier: Apache-2.0
"""GPUs for tests, by tests/fakes/cuda: a CUDA driver on host memory. It is loaded before libodc opens a driver, and
only in the processes of ranks."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libodc import Type
from libodc._dlpack import make_capsule

_BUILDS = Path(__file__).resolve().parents[3] / "build"
_FOUND = [one for build in ("dev", "release") for one in _BUILDS.glob(f"{build}/tests/fakes/cuda/libcuda.so.1")]

needs_fake_cuda = pytest.mark.skipif(not _FOUND, reason="the CUDA driver for tests is not built (preset dev)")

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "fake_cuda_set_device": (c_int, c_int),
    "fake_cuda_alloc": (c_ulonglong, c_int, c_size_t),
    "fake_cuda_free": (c_int, c_ulonglong),
    "fake_cuda_write": (c_int, c_ulonglong, c_void_p, c_size_t),
    "fake_cuda_read": (c_int, c_void_p, c_ulonglong, c_size_t),
    "fake_cuda_stream_create": (c_void_p, c_int, c_uint),
    "fake_cuda_stream_wait": (c_int, c_void_p),
    "fake_cuda_begin_capture": (c_int, c_void_p),
    "fake_cuda_end_capture": (c_int, c_void_p),
    "fake_cuda_fault": (c_int, c_void_p, c_int),
    "fake_cuda_fail": (None, c_char_p, c_uint, c_int),
}


class Gpu:
    """This process's GPU, one of `devices`."""

    def __init__(self, devices: int, device: int) -> None:
        os.environ["FAKE_CUDA_DEVICES"] = str(devices)
        self.device = device
        self._driver = ctypes.CDLL(str(_FOUND[0]), mode=ctypes.RTLD_GLOBAL)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(self._driver, name)
            function.restype, function.argtypes = result, arguments

    def call(self, name: str, *arguments: Any) -> Any:
        """The function fake_cuda_`name`."""
        return getattr(self._driver, f"fake_cuda_{name}")(*arguments)

    def choose(self) -> None:
        """Makes this GPU current for the default stream."""
        assert self.call("set_device", self.device) == 0

    def stream(self) -> Stream:
        handle = self.call("stream_create", self.device, 1)
        assert handle
        return Stream(handle)

    def wait(self, stream: Stream) -> None:
        assert self.call("stream_wait", stream.handle) == 0

    def array(self, values: np.ndarray[Any, Any]) -> Array:
        """A copy on the GPU."""
        values = np.ascontiguousarray(values)
        address = self.call("alloc", self.device, max(1, values.nbytes))
        assert address
        self.write(address, values)
        return Array(self.device, address, values.shape, values.dtype)

    def write(self, address: int, values: np.ndarray[Any, Any]) -> None:
        assert self.call("write", address, values.ctypes.data, values.nbytes) == 0

    def read(self, address: int, numel: int, dtype: Any) -> np.ndarray[Any, Any]:
        values = np.empty(numel, dtype)
        assert self.call("read", values.ctypes.data, address, values.nbytes) == 0
        return values

    def read_array(self, array: Array) -> np.ndarray[Any, Any]:
        return self.read(array.address, int(np.prod(array.shape)), array.dtype)


class Stream:
    """Implements __cuda_stream__."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class TorchStream:
    """The part of torch.cuda.Stream that libodc reads."""

    def __init__(self, handle: int, device: int) -> None:
        self.cuda_stream = handle
        self.device = type("Device", (), {"index": device})()


class Array:
    """Implements __cuda_array_interface__."""

    def __init__(self, device: int, address: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.device, self.address, self.shape, self.dtype = device, address, shape, np.dtype(dtype)
        self.strides: tuple[int, ...] | None = None
        self.readonly = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, self.readonly),
            "strides": self.strides,
        }


class Capsules:
    """Implements DLPack for an array; `type` is the reported type of the elements."""

    def __init__(self, array: Array, type: Type, kind: int = 2) -> None:
        self._array, self._type, self._kind = array, type, kind
        self.streams: list[Any] = []  # passed by consumers

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        numel = int(np.prod(self._array.shape))
        return make_capsule(self, self._array.address, numel, self._type, self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, self._array.device
