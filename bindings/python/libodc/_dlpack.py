# SPDX-License-Identifier: Apache-2.0
"""DLPack (dlpack.h): capsules of version 0.x, which all libraries support, and the exchange tables of 1.x."""

import ctypes
from dataclasses import dataclass
from typing import Any

from ._abi import Type
from ._native import delete_managed, drop_capsule

CPU, CUDA = 1, 2
"""Device types."""

_NAME = b"dltensor"
_TABLE = b"dlpack_exchange_api"
_FLOAT, _UINT, _BFLOAT = 2, 1, 4
_CODES = {
    Type.F32: (_FLOAT, 32),
    Type.F64: (_FLOAT, 64),
    Type.F16: (_FLOAT, 16),
    Type.BF16: (_BFLOAT, 16),
    Type.BYTES: (_UINT, 8),
}
_KINDS = {0: "int", _UINT: "uint", _FLOAT: "float", _BFLOAT: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def make_capsule(owner: object, address: int, numel: int, type: Type, device: tuple[int, int]) -> Any:
    """A 1-D tensor at `address`; `owner` lives as long as its consumer. `device`: its type and number."""
    code, bits = _CODES[type]
    shape = (ctypes.c_int64 * 1)(numel)
    strides = (ctypes.c_int64 * 1)(1)
    tensor = _Tensor(address, *device, 1, code, bits, 1, shape, strides, 0)
    managed = _Managed(tensor, None, delete_managed)
    manager = ctypes.py_object((managed, shape, strides, owner))
    ctypes.pythonapi.Py_IncRef(manager)
    managed.manager = id(manager.value)
    return _new(ctypes.addressof(managed), _NAME, drop_capsule)


def describer(kind: type) -> int | None:
    """The address of the function of a class's exchange table (DLPack 1.x) that describes an object of exactly this
    class and keeps nothing; None: it has none."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if not _is_valid(id(capsule), _TABLE):
        return None
    table = _get_pointer(id(capsule), _TABLE)
    major = ctypes.c_uint32.from_address(table).value
    words = (ctypes.c_void_p * 6).from_address(table)  # version, an older table, and functions
    return words[5] if major == 1 else None


@dataclass(frozen=True)
class Seen:
    """The tensor of a capsule. `type` None: not a shard's type; `kind` names it."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: row by row
    kind: str
    type: Type | None
    itemsize: int


def read_capsule(capsule: Any) -> Seen:
    """Reads a capsule without consuming it: the memory is valid until it is dropped."""
    managed = _Managed.from_address(_get_pointer(id(capsule), _NAME))
    tensor = managed.tensor
    types = {codes: type for type, codes in _CODES.items()}
    return Seen(
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[: tensor.ndim]),
        tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        f"{_KINDS.get(tensor.code, 'type ')}{tensor.bits}" + (f"x{tensor.lanes}" if tensor.lanes != 1 else ""),
        types.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None,
        tensor.bits * tensor.lanes // 8,
    )
