# SPDX-License-Identifier: Apache-2.0
"""Callers' buffers: their addresses, without a copy and without waiting for a stream."""

import ctypes
from typing import Any

from . import _dlpack
from ._abi import Type
from .memory import FORMATS, View, place

_NAMES = {"float32": Type.F32, "float64": Type.F64, "bfloat16": Type.BF16, "float16": Type.F16}
_TYPESTRS = {"<f4": Type.F32, "<f8": Type.F64, "<f2": Type.F16, "|u1": Type.BYTES}
_NO_SYNCHRONISATION = -1  # a consumer's stream in DLPack


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_READ = 0x0004 | 0x0018  # PyBUF_FORMAT | PyBUF_ND | PyBUF_STRIDES without _WRITABLE
_WRITE = _READ | 0x0001


class Buffer:
    """A caller's buffer of a shard's elements: its address, held until this object is dropped.

    Contiguous, of the shard's type, and where the shard is: `device` None is host memory (anything with the buffer
    protocol, a View, a torch tensor), a number that GPU's memory (a torch tensor, a View, anything with
    __cuda_array_interface__ or DLPack). No stream is waited for.
    """

    def __init__(self, given: Any, type: Type, device: int | None, *, writable: bool, what: str) -> None:
        self._view: _PyBuffer | None = None
        self.hold: Any = given
        self._device = device
        self._what = what
        if hasattr(given, "data_ptr"):
            nbytes = self._take_tensor(given, type)
        elif isinstance(given, View):
            nbytes = self._take_view(given, type)
        elif hasattr(given, "__cuda_array_interface__") and type is not Type.BF16:  # the interface has no bf16
            nbytes = self._take_array(given.__cuda_array_interface__, type, writable=writable)
        elif device is not None or _is_on_gpu(given):
            nbytes = self._take_capsule(given, type)
        else:
            nbytes = self._take_buffer(given, type, writable=writable)
        if nbytes % type.itemsize != 0:
            raise ValueError(f"{what} has {nbytes} bytes, which is not a whole number of {type.name}")
        self.numel = nbytes // type.itemsize

    def _check_place(self, given: str) -> None:
        if given != place(self._device):
            raise ValueError(f"{self._what} is in {given}, the shard in {place(self._device)}")

    def _check_type(self, type: Type, given: Type | None, name: str) -> None:
        """Raw bytes may have any type."""
        if type is not Type.BYTES and given is not type:
            raise ValueError(f"{self._what} has {name}, the shard {type.name}")

    def _check_contiguous(self, is_contiguous: bool) -> None:
        if not is_contiguous:
            raise ValueError(f"{self._what} is not contiguous: give one that is")

    def _take_tensor(self, tensor: Any, type: Type) -> int:
        """A torch tensor, without importing torch."""
        on = tensor.device
        if on.type not in ("cpu", "cuda"):
            raise ValueError(f"{self._what} is on {on}, the shard in {place(self._device)}")
        self._check_place(place(on.index if on.type == "cuda" else None))
        self._check_contiguous(tensor.is_contiguous())
        self._check_type(type, _NAMES.get(str(tensor.dtype).removeprefix("torch.")), str(tensor.dtype))
        self.address = tensor.data_ptr()
        return int(tensor.numel() * tensor.element_size())

    def _take_view(self, view: View, type: Type) -> int:
        if view.type is not type:
            raise ValueError(f"{self._what} is a view of {view.type.name}, the shard has {type.name}")
        self._check_place(place(view.device))
        self.address = view.address
        return view.nbytes

    def _take_array(self, array: dict[str, Any], type: Type, *, writable: bool) -> int:
        """An array in GPU memory; C finds out which GPU."""
        if self._device is None:
            raise ValueError(f"{self._what} is in GPU memory, the shard in {place(None)}")
        typestr, shape = str(array["typestr"]), tuple(array["shape"])
        itemsize = int(typestr[2:])
        strides = None if array.get("strides") is None else tuple(one // itemsize for one in array["strides"])
        self._check_contiguous(_is_contiguous(shape, strides))
        self._check_type(type, _TYPESTRS.get(typestr), f'elements of type "{typestr}"')
        self.address, readonly = array["data"]
        if readonly and writable:
            raise ValueError(f"{self._what} is read-only")
        return _product(shape) * itemsize

    def _take_capsule(self, given: Any, type: Type) -> int:
        if not hasattr(given, "__dlpack_device__"):
            raise ValueError(
                f"{self._what} is {given.__class__.__name__}, the shard is in {place(self._device)}: give a tensor or "
                "an array there (torch's, or anything with __cuda_array_interface__ or DLPack)"
            )
        kind, number = given.__dlpack_device__()
        if kind not in (_dlpack.CPU, _dlpack.CUDA):
            raise ValueError(
                f"{self._what} is on device {number} of DLPack's type {int(kind)}, the shard in {place(self._device)}"
            )
        self._check_place(place(number if kind == _dlpack.CUDA else None))
        capsule = given.__dlpack__(stream=_NO_SYNCHRONISATION)
        self.hold = (given, capsule)
        seen = _dlpack.read_capsule(capsule)
        self._check_contiguous(_is_contiguous(seen.shape, seen.strides))
        self._check_type(type, seen.type, seen.kind)
        self.address = seen.address
        return _product(seen.shape) * seen.itemsize

    def _take_buffer(self, given: Any, type: Type, *, writable: bool) -> int:
        view = _PyBuffer()
        ctypes.pythonapi.PyObject_GetBuffer(
            ctypes.py_object(given), ctypes.byref(view), ctypes.c_int(_WRITE if writable else _READ)
        )
        self._view = view
        with memoryview(given) as seen:
            self._check_contiguous(seen.c_contiguous)
            form = seen.format.lstrip("<=@")
        if type is not Type.BYTES and form not in (FORMATS[type], "B"):
            raise ValueError(f'{self._what} has elements of format "{form}", the shard {type.name} ("{FORMATS[type]}")')
        self.address = view.buf or 0
        return int(view.len)

    def __del__(self) -> None:
        if self._view is not None:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._view))
            self._view = None


def _is_on_gpu(given: Any) -> bool:
    if hasattr(given, "__dlpack_device__"):
        return bool(given.__dlpack_device__()[0] != _dlpack.CPU)
    return hasattr(given, "__cuda_array_interface__")


def _product(shape: tuple[int, ...]) -> int:
    numel = 1
    for length in shape:
        numel *= length
    return numel


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether the elements are contiguous, row by row. `strides`: in elements."""
    if strides is None or _product(shape) == 0:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
