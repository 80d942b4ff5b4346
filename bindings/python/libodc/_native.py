# SPDX-License-Identifier: Apache-2.0
"""The functions of the package's C file (native.c) that run with the GIL."""

import ctypes
from typing import Any

from ._abi import packaged

path = packaged("libodc_native.so")


def _load() -> ctypes.PyDLL:
    try:
        return ctypes.PyDLL(path)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded (install the package): {error}") from error


_native = _load()
delete_managed = ctypes.cast(_native.odc_delete_managed, ctypes.c_void_p)
drop_capsule = ctypes.cast(_native.odc_drop_capsule, ctypes.c_void_p)

# Callbacks for odc_config, each of which calls a Python function and keeps what it raises (take_kept).
interrupted = _native.odc_interrupted
all_gather = _native.odc_all_gather
log = _native.odc_log

WORDS = 4
"""Of a tensor's description: its address, its number of elements, what tells its device, type and whether it is
contiguous, and what tells its shape."""

describe: Any = _native.odc_describe
"""Writes descriptions of a list's tensors into an array, up to the first that cannot be described; returns how many."""
describe.restype = ctypes.c_size_t
describe.argtypes = (ctypes.py_object, ctypes.c_size_t, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)

take_kept: Any = _native.odc_take_kept
"""Returns, and forgets, what a callback of this thread has raised since the last time, or None."""
take_kept.restype = ctypes.py_object
take_kept.argtypes = ()
