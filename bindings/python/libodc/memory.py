# SPDX-License-Identifier: Apache-2.0
"""Views of slices: the library's memory, without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _dlpack
from ._abi import Type

# The buffer protocol has no bf16, so it exposes the bits.
FORMATS: dict[Type, Any] = {Type.F32: "f", Type.F64: "d", Type.F16: "e", Type.BYTES: "B", Type.BF16: "H"}
_TYPESTRS = {Type.F32: "<f4", Type.F64: "<f8", Type.F16: "<f2", Type.BYTES: "|u1"}


def place(device: int | None) -> str:
    """The name of a kind of memory. `device`: a GPU's number; None: host memory."""
    return "host memory" if device is None else f"the memory of cuda:{device}"


class View:
    """One half of a slice: memory of the library, seen without a copy.

    In host memory (`device` None) `memoryview(view)` and NumPy read it by the buffer protocol's types (bf16 as its 16
    bits), `torch.from_dlpack(view)` by its own. In the memory of a GPU `torch.from_dlpack(view)`, and CuPy and others
    by __cuda_array_interface__ (which has no bf16). Whatever is made of it keeps the context's memory alive; a GPU
    must be done with it before the last of them is dropped.
    """

    def __init__(self, owner: object, address: int, numel: int, type: Type, device: int | None = None) -> None:
        self.type = type
        self.numel = numel
        self.address = address
        self.device = device
        self._memory: Any = owner if device is not None else _array(owner, address, numel * type.itemsize)

    def __len__(self) -> int:
        return self.numel

    @property
    def nbytes(self) -> int:
        return self.numel * self.type.itemsize

    def part(self, begin: int, numel: int, type: Type | None = None) -> View:
        """From byte `begin` on, `numel` elements of `type` (None: its own), as a view of their own."""
        type = self.type if type is None else type
        if begin < 0 or begin % type.itemsize != 0 or begin + numel * type.itemsize > self.nbytes:
            raise ValueError(f"{numel} {type.name} from byte {begin} on are not in a slice of {self.nbytes} bytes")
        return View(self._memory, self.address + begin, numel, type, self.device)

    def memory(self) -> memoryview:
        """A writable memoryview of the elements."""
        self._check_host()
        elements: Any = memoryview(self._memory).cast("B")
        seen: memoryview = elements.cast(FORMATS[self.type])
        return seen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy  # only if the caller uses it

        self._check_host()
        array = numpy.frombuffer(self._memory, dtype=FORMATS[self.type])
        if dtype is not None and numpy.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a slice of {self.type.name} cannot be seen as {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # Without a stream: between sync and publish no pending work concerns the slice.
        if self.device is None or self.type not in _TYPESTRS:
            raise AttributeError(f"{self!r} has no __cuda_array_interface__")
        return {
            "version": 3,
            "shape": (self.numel,),
            "typestr": _TYPESTRS[self.type],
            "data": (self.address, False),
            "strides": None,
        }

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return _dlpack.make_capsule(self._memory, self.address, self.numel, self.type, self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CPU, 0) if self.device is None else (_dlpack.CUDA, self.device)

    def _check_host(self) -> None:
        if self.device is not None:
            raise TypeError(
                f"this slice is in {place(self.device)}, which the host cannot read: torch.from_dlpack sees it"
            )

    def __repr__(self) -> str:
        where = "" if self.device is None else f" of cuda:{self.device}"
        return f"<libodc.View of {self.numel} {self.type.name} at {self.address:#x}{where}>"


def _array(owner: object, address: int, nbytes: int) -> Any:
    """Keeps `owner` alive with a ctypes array made from an address, which owns nothing itself."""
    array: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    array._owner = owner
    return array
