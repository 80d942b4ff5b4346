# SPDX-License-Identifier: Apache-2.0
"""Loops over memory, in the package's C file. They run without the GIL."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

from ._native import path

_library = ctypes.CDLL(path)


def _typed(name: str, *types: Any) -> Any:
    function = getattr(_library, name)
    function.argtypes = (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *types)
    function.restype = None
    return function


_copy = _typed("odc_copy_each")
_divide_f32 = _typed("odc_divide_each_f32", ctypes.c_float)
_divide_f64 = _typed("odc_divide_each_f64", ctypes.c_double)
_fingerprint = _library.odc_fingerprint
_fingerprint.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
_fingerprint.restype = None

FINGERPRINT_BYTES = 96


def copy_each(to: array[int], source: array[int], nbytes: array[int]) -> None:
    """All arrays are of type "Q"."""
    _copy(*_spans(to, source, nbytes))


def divide_each_f32(to: array[int], source: array[int], lengths: array[int], divisor: float) -> None:
    """`lengths`: in elements. `to` may be `source`."""
    _divide_f32(*_spans(to, source, lengths), divisor)


def divide_each_f64(to: array[int], source: array[int], lengths: array[int], divisor: float) -> None:
    _divide_f64(*_spans(to, source, lengths), divisor)


def fingerprint_at(address: int, nbytes: int, into: int) -> None:
    """`into`: the address of FINGERPRINT_BYTES, by which the memory as it is now can be told from most others."""
    _fingerprint(address, nbytes, into)


def _spans(*arrays: array[int]) -> tuple[int, ...]:
    assert len({len(one) for one in arrays}) == 1
    return len(arrays[0]), *(one.buffer_info()[0] for one in arrays)
