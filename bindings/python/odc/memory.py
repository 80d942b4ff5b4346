# SPDX-License-Identifier: Apache-2.0
"""Memory on its way in and out: views of slices without a copy, and the addresses of callers' buffers."""

import ctypes
from typing import Any

from ._abi import Type
from ._dlpack import make_capsule

# The buffer protocol has no bf16, so it shows the bits.
_FORMATS: dict[Type, Any] = {Type.F32: "f", Type.F64: "d", Type.F16: "e", Type.BYTES: "B", Type.BF16: "H"}


class View:
    """One half of a slice: memory of the library, seen without a copy.

    `memoryview(view)` and NumPy read it by the buffer protocol's types (bf16 as its 16 bits), `torch.from_dlpack(view)`
    by its own. Whatever is made of it keeps the context's memory alive.
    """

    def __init__(self, owner: object, address: int, numel: int, type: Type) -> None:
        self.type = type
        self.numel = numel
        self.address = address
        # A ctypes array made from an address owns nothing; what holds the array now holds the owner, too.
        array: Any = (ctypes.c_ubyte * (numel * type.itemsize)).from_address(address)
        array._owner = owner
        self._array = array

    def __len__(self) -> int:
        return self.numel

    @property
    def nbytes(self) -> int:
        return self.numel * self.type.itemsize

    def memory(self) -> memoryview:
        """A writable memoryview of the elements."""
        elements: Any = memoryview(self._array).cast("B")
        seen: memoryview = elements.cast(_FORMATS[self.type])
        return seen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy  # only if the caller has it

        array = numpy.frombuffer(self._array, dtype=_FORMATS[self.type])
        if dtype is not None and numpy.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a slice of {self.type.name} cannot be seen as {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return make_capsule(self._array, self.address, self.numel, self.type)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __repr__(self) -> str:
        return f"<odc.View of {self.numel} {self.type.name} at {self.address:#x}>"


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

    Anything with the buffer protocol, a View, or a torch tensor in host memory; contiguous, of the shard's type.
    """

    def __init__(self, given: Any, type: Type, *, writable: bool, what: str) -> None:
        self._view: _PyBuffer | None = None
        self.hold: Any = given
        if hasattr(given, "data_ptr"):
            nbytes = self._take_tensor(given, type, what)
        elif isinstance(given, View):
            if given.type is not type:
                raise ValueError(f"{what} is a view of {given.type.name}, the shard has {type.name}")
            self.address, nbytes = given.address, given.nbytes
        else:
            nbytes = self._take_buffer(given, type, writable, what)
        if nbytes % type.itemsize != 0:
            raise ValueError(f"{what} has {nbytes} bytes, which is not a whole number of {type.name}")
        self.numel = nbytes // type.itemsize

    def _take_tensor(self, tensor: Any, type: Type, what: str) -> int:
        """A torch tensor, without importing torch."""
        if tensor.device.type != "cpu":
            raise ValueError(f"{what} is on {tensor.device}; this build moves host memory only")
        if not tensor.is_contiguous():
            raise ValueError(f"{what} is not contiguous; pass {what}.contiguous()")
        name = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "float16": "F16"}.get(
            str(tensor.dtype).removeprefix("torch."), "BYTES"
        )
        if type is not Type.BYTES and name != type.name:
            raise ValueError(f"{what} has {tensor.dtype}, the shard {type.name}")
        self.address = tensor.data_ptr()
        return int(tensor.numel() * tensor.element_size())

    def _take_buffer(self, given: Any, type: Type, writable: bool, what: str) -> int:
        view = _PyBuffer()
        ctypes.pythonapi.PyObject_GetBuffer(
            ctypes.py_object(given), ctypes.byref(view), ctypes.c_int(_WRITE if writable else _READ)
        )
        self._view = view
        with memoryview(given) as seen:
            if not seen.c_contiguous:
                raise ValueError(f"{what} is not contiguous")
            form = seen.format.lstrip("<=@")
        if type is not Type.BYTES and form not in (_FORMATS[type], "B"):
            raise ValueError(f'{what} has elements of format "{form}", the shard {type.name} ("{_FORMATS[type]}")')
        self.address = view.buf or 0
        return int(view.len)

    def __del__(self) -> None:
        if self._view is not None:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._view))
            self._view = None
