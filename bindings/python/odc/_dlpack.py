# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules (dlpack.h, version 0.x: what everyone makes and takes)."""

import atexit
import ctypes
from dataclasses import dataclass
from typing import Any

from ._abi import Type

CPU, CUDA = 1, 2
"""Device types."""

_NAME = b"dltensor"
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
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter))

# What capsules refer to, until their consumer deletes them.
_alive: dict[int, tuple[Any, ...]] = {}


def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


@atexit.register
def _disarm() -> None:
    """Tensors may outlive the interpreter, whose callbacks they must not call then: they keep their memory."""
    for managed, *_ in list(_alive.values()):
        managed.deleter = _Deleter()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_alive))


def _drop(capsule: int) -> None:
    """A capsule that nobody consumed; a consumer renames it."""
    if _is_valid(capsule, _NAME):
        _alive.pop(_get_pointer(capsule, _NAME), None)


_delete_c = _Deleter(_delete)
_drop_c = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)

_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def make_capsule(owner: object, address: int, numel: int, type: Type, device: tuple[int, int]) -> Any:
    """A 1-D tensor at `address`; `owner` lives as long as its consumer. `device`: its type and number."""
    code, bits = _CODES[type]
    shape = (ctypes.c_int64 * 1)(numel)
    strides = (ctypes.c_int64 * 1)(1)
    tensor = _Tensor(address, *device, 1, code, bits, 1, shape, strides, 0)
    managed = _Managed(tensor, None, _delete_c)
    key = ctypes.addressof(managed)
    _alive[key] = (managed, shape, strides, owner)
    return _new(key, _NAME, ctypes.cast(_drop_c, ctypes.c_void_p))


@dataclass(frozen=True)
class Seen:
    """What a capsule describes. `type` None: none of a shard's; `kind` names it."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: row by row
    kind: str
    type: Type | None
    itemsize: int


def read_capsule(capsule: Any) -> Seen:
    """Of a capsule that stays its holder's: the memory is there until it is dropped."""
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
