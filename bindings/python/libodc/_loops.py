# SPDX-License-Identifier: Apache-2.0
"""The functions of the package's C file (native.c) that run without the GIL: loops over memory, and calls of libodc."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

from ._native import path

_library = ctypes.CDLL(path)


def _typed(name: str, *types: Any, returns: Any = None) -> Any:
    function = getattr(_library, name)
    function.argtypes = (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *types)
    function.restype = returns
    return function


_copy = _typed("odc_copy_each")
_same = _typed("odc_same_each", returns=ctypes.c_int)
_divide_f32 = _typed("odc_divide_each_f32", ctypes.c_float, ctypes.c_void_p)
_divide_f64 = _typed("odc_divide_each_f64", ctypes.c_double, ctypes.c_void_p)
_fingerprint = _library.odc_fingerprint
_fingerprint.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
_fingerprint.restype = None

_note_publication = _library.odc_note_publication
_note_publication.argtypes = (ctypes.c_void_p,) * 4
_note_combination = _library.odc_note_combination
_note_combination.argtypes = (*(ctypes.c_void_p,) * 4, ctypes.c_size_t, ctypes.c_int32)
_note_wait = _library.odc_note_wait
_note_wait.argtypes = (*(ctypes.c_void_p,) * 3, ctypes.c_uint64)

FINGERPRINT_BYTES = 96


def copy_each(to: array[int], source: array[int], nbytes: array[int]) -> None:
    """All arrays are of type "Q"."""
    _copy(*_spans(to, source, nbytes))


def same_each(a: array[int], b: array[int], nbytes: array[int]) -> bool:
    """Whether the memory is equal, pair by pair."""
    return bool(_same(*_spans(a, b, nbytes)))


def divide_each_f32(to: array[int], source: array[int], lengths: array[int], divisor: float, done: array[int]) -> None:
    """`lengths`: in elements. `to` may be `source`. `done`: one number, of those that are divided already; counts."""
    _divide_f32(*_spans(to, source, lengths), divisor, done.buffer_info()[0])


def divide_each_f64(to: array[int], source: array[int], lengths: array[int], divisor: float, done: array[int]) -> None:
    _divide_f64(*_spans(to, source, lengths), divisor, done.buffer_info()[0])


def fingerprint_at(address: int, nbytes: int, into: int) -> None:
    """`into`: the address of FINGERPRINT_BYTES, by which the memory as it is now can be told from most others."""
    _fingerprint(address, nbytes, into)


def _spans(*arrays: array[int]) -> tuple[int, ...]:
    assert len({len(one) for one in arrays}) == 1
    return len(arrays[0]), *(one.buffer_info()[0] for one in arrays)


def note_publication(status: ctypes.c_int32, function: Any, context: int, stream: int | None) -> int:
    """Calls a function of libodc. Its status is also in `status` as soon as it returns."""
    made: int = _note_publication(ctypes.addressof(status), ctypes.cast(function, ctypes.c_void_p), context, stream)
    return made


def note_wait(status: ctypes.c_int32, function: Any, context: int, operation: int) -> int:
    made: int = _note_wait(ctypes.addressof(status), ctypes.cast(function, ctypes.c_void_p), context, operation)
    return made


def note_combination(
    status: ctypes.c_int32, function: Any, context: int, values: ctypes.Array[ctypes.c_double], op: int
) -> int:
    at, to = ctypes.addressof(status), ctypes.cast(function, ctypes.c_void_p)
    made: int = _note_combination(at, to, context, ctypes.addressof(values), len(values), op)
    return made
