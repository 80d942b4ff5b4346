# SPDX-License-Identifier: Apache-2.0
"""The C ABI as odc.h declares it: enums, structs, prototypes, and the library itself. tests/test_abi.py compares every
one of them with the header. ctypes releases the GIL in every call."""

import ctypes
import enum
import os
import sys
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

WRITTEN_FOR = (0, 1, 0)  # the version of the odc.h below
NEEDED = "{0}.{1} or a later {0}.x".format(*WRITTEN_FOR)
REMEDY = "install that, or name it in ODC_LIBRARY"


class Status(enum.IntEnum):
    OK = 0
    DONE = 1
    ERROR_ARGUMENT = -1
    ERROR_PHASE = -2
    ERROR_NO_MEMORY = -3
    ERROR_UNSUPPORTED = -4
    ERROR_SYSTEM = -5
    ERROR_INTERRUPTED = -6
    ERROR_RENDEZVOUS = -7
    ERROR_INTERNAL = -8
    ERROR_PEER_LOST = -9
    ERROR_ABORTED = -10
    ERROR_TIMEOUT = -11
    ERROR_MISMATCH = -12
    ERROR_DEVICE = -13


class Type(enum.IntEnum):
    """Element types."""

    F32 = 1
    F64 = 2
    BF16 = 3
    F16 = 4
    BYTES = 5

    @property
    def itemsize(self) -> int:
        return {Type.F32: 4, Type.F64: 8, Type.BF16: 2, Type.F16: 2, Type.BYTES: 1}[self]


class Reduction(enum.IntEnum):
    SUM = 1
    MAX = 2


class Memory(enum.IntEnum):
    HOST = 1
    GPU = 2


class Summation(enum.IntEnum):
    EXACT = 1


class LogLevel(enum.IntEnum):
    ERROR = 1
    WARN = 2
    INFO = 3
    DEBUG = 4
    TRACE = 5


class Policy(enum.IntEnum):
    LOCAL_SORT = 1
    LB_MICRO = 2
    LB_MINI = 3
    SORTED_ROWS = 4


class WindowOrder(enum.IntEnum):
    EXCHANGED = 1
    SORTED = 2


ALL_GATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
INTERRUPTED = ctypes.CFUNCTYPE(c_int, c_void_p)
LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Struct(ctypes.Structure):
    """A struct whose first field is its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class odc_config(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("rank", c_int32),
        ("size", c_int32),
        ("job", c_char_p),
        ("group", c_char_p),
        ("rendezvous", c_char_p),
        ("secret", c_char_p),
        ("timeout_ms", c_int64),
        ("all_gather", ALL_GATHER),
        ("all_gather_arg", c_void_p),
        ("interrupted", INTERRUPTED),
        ("interrupted_arg", c_void_p),
        ("host", c_char_p),
        ("device", c_char_p),
        ("log", LOG),
        ("log_arg", c_void_p),
        ("log_level", c_int32),
        ("reserved", c_int32),
    )


class odc_shard_desc(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("name", c_char_p),
        ("numel", c_uint64),
        ("parameter_type", c_int32),
        ("gradient_type", c_int32),
        ("ranks", POINTER(c_int32)),
        ("slices", POINTER(c_uint64)),
        ("rank_count", c_uint64),
        ("memory", c_int32),
        ("reserved", c_int32),
        ("sum", c_int32),
        ("largest", c_float),
    )


class odc_slice(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("parameters", c_void_p),
        ("gradients", c_void_p),
        ("offset", c_uint64),
        ("numel", c_uint64),
        ("parameter_type", c_int32),
        ("accumulator_type", c_int32),
        ("memory", c_int32),
        ("reserved", c_int32),
        ("sum", c_int32),
        ("largest", c_float),
    )


class odc_stats(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("gather_calls", c_uint64),
        ("gather_bytes", c_uint64),
        ("scatter_add_calls", c_uint64),
        ("scatter_add_bytes", c_uint64),
        ("syncs", c_uint64),
        ("publish_wait_ns", c_uint64),
        ("sync_wait_ns", c_uint64),
        ("lock_wait_ns", c_uint64),
        ("slice_bytes", c_uint64),
        ("packets_sent", c_uint64),
        ("pinned_bytes", c_uint64),
        ("clamped_addends", c_uint64),
        ("sync_last_rank", c_uint64),
        ("fetched_bytes", c_uint64),
        ("served_bytes", c_uint64),
        ("sent_bytes", c_uint64),
    )


class odc_route(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("transport", c_char_p),
        ("provider", c_char_p),
        ("nic", c_char_p),
        ("peer_nic", c_char_p),
        ("why", c_char_p),
        ("why_not", c_char_p),
        ("access", c_char_p),
    )


class odc_peer_stats(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("publish_wait_ns", c_uint64),
        ("sync_late_ns", c_uint64),
        ("sync_last", c_uint64),
    )


class odc_plan_request(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("lengths", POINTER(c_uint64)),
        ("count", c_uint64),
        ("max_tokens", c_uint64),
        ("a", c_double),
        ("b", c_double),
        ("ranks", c_int32),
        ("policy", c_int32),
        ("speeds", POINTER(c_double)),
        ("tail", c_double),
    )


class odc_plan_summary(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("makespan", c_double),
        ("lower_bound", c_double),
        ("collective_makespan", c_double),
        ("items", c_uint64),
    )


class odc_window_request(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("samples", POINTER(odc_plan_request)),
        ("counts", POINTER(c_uint64)),
        ("most_moved", c_double),
        ("most_displacement", c_double),
        ("minibatches", c_int32),
        ("order", c_int32),
    )


class odc_window_summary(Struct):
    _fields_ = (
        ("struct_size", c_uint64),
        ("makespan", c_double),
        ("makespan_before", c_double),
        ("collective_makespan", c_double),
        ("collective_makespan_before", c_double),
        ("lower_bound", c_double),
        ("moved", c_double),
        ("displacement", c_double),
        ("token_variation", c_double),
        ("token_variation_before", c_double),
        ("tokens", c_double),
    )


class odc_transport(Struct):
    _fields_ = (("struct_size", c_uint64), ("name", c_char_p), ("why_not", c_char_p))


class odc_setting(Struct):
    _fields_ = (("struct_size", c_uint64), ("name", c_char_p), ("fallback", c_char_p), ("help", c_char_p))


STRUCTS: tuple[type[Struct], ...] = (
    odc_config,
    odc_shard_desc,
    odc_slice,
    odc_stats,
    odc_peer_stats,
    odc_route,
    odc_plan_request,
    odc_plan_summary,
    odc_window_request,
    odc_window_summary,
    odc_transport,
    odc_setting,
)

# Handles are opaque: odc_context * and odc_shard * are c_void_p.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "odc_init": (c_int, POINTER(odc_config), POINTER(c_void_p)),
    "odc_rank": (c_int32, c_void_p),
    "odc_size": (c_int32, c_void_p),
    "odc_minibatch": (c_uint64, c_void_p),
    "odc_shutdown": (c_int, c_void_p),
    "odc_abort": (c_int, c_void_p, c_char_p),
    "odc_destroy": (None, c_void_p),
    "odc_register_shard": (c_int, c_void_p, POINTER(odc_shard_desc), POINTER(c_void_p)),
    "odc_register_shards": (c_int, c_void_p, POINTER(odc_shard_desc), c_size_t, POINTER(c_void_p)),
    "odc_get_slice": (c_int, c_void_p, POINTER(odc_slice)),
    "odc_release_shard": (c_int, c_void_p),
    "odc_publish": (c_int, c_void_p, c_void_p),
    "odc_publish_all": (c_int, c_void_p, c_void_p),
    "odc_gather": (c_int, c_void_p, c_void_p, c_uint64, c_void_p),
    "odc_scatter_add": (c_int, c_void_p, c_void_p, c_uint64, c_void_p),
    "odc_gather_start": (c_int, c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_uint64)),
    "odc_scatter_add_start": (c_int, c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_uint64)),
    "odc_wait": (c_int, c_void_p, c_uint64),
    "odc_finish": (c_int, c_void_p, c_void_p),
    "odc_minibatch_sync": (c_int, c_void_p),
    "odc_minibatch_sync_reduce": (c_int, c_void_p, POINTER(c_double), c_size_t, c_int32),
    "odc_all_reduce": (c_int, c_void_p, POINTER(c_double), c_size_t, c_int32),
    "odc_exact_add": (c_int, POINTER(c_double), POINTER(c_double), c_size_t),
    "odc_exact_value": (c_int, POINTER(c_double), POINTER(c_double)),
    "odc_claim": (c_int, c_void_p, c_uint64, POINTER(c_uint64)),
    "odc_get_claims": (c_int, c_void_p, c_uint64, POINTER(c_uint64), c_size_t, POINTER(c_size_t)),
    "odc_report_cost": (c_int, c_void_p, c_double),
    "odc_get_speeds": (c_int, c_void_p, POINTER(c_double), c_size_t),
    "odc_get_stats": (c_int, c_void_p, POINTER(odc_stats)),
    "odc_get_peer_stats": (c_int, c_void_p, c_int32, POINTER(odc_peer_stats)),
    "odc_plan": (c_int, POINTER(odc_plan_request), POINTER(c_int32), POINTER(c_int32), POINTER(odc_plan_summary)),
    "odc_plan_window": (
        c_int,
        POINTER(odc_window_request),
        POINTER(c_int32),
        POINTER(c_int32),
        POINTER(c_int32),
        POINTER(odc_window_summary),
    ),
    "odc_plan_cost": (c_int, c_char_p, POINTER(c_double), POINTER(c_double)),
    "odc_version": (c_uint32,),
    "odc_build": (c_char_p,),
    "odc_status_string": (c_char_p, c_int32),
    "odc_last_error": (c_char_p,),
    "odc_get_transport": (c_int, c_size_t, POINTER(odc_transport)),
    "odc_get_setting": (c_int, c_size_t, POINTER(odc_setting)),
    "odc_get_topology": (c_int, c_char_p, POINTER(c_char_p), POINTER(c_char_p)),
    "odc_get_route": (c_int, c_void_p, c_int32, c_int32, POINTER(odc_route)),
}


def _folders() -> list[str]:
    """The folders of this package: two if its installation is editable."""
    return list(sys.modules[__package__].__path__)


def packaged(name: str) -> str:
    """The path of a library in this package, or its name."""
    paths = (Path(folder, name) for folder in _folders())
    return next((str(path) for path in paths if path.exists()), name)


def library_path() -> str:
    """The libodc in use: that of ODC_LIBRARY, or the one in this package, or the system's."""
    return os.environ.get("ODC_LIBRARY") or packaged("libodc.so.0")


def _version_text(version: int) -> str:
    return f"{version >> 16}.{version >> 8 & 255}.{version & 255}"


def _where(path: str) -> str:
    """The file that was loaded from this path."""
    if "/" in path:
        return path
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next((line.split(maxsplit=5)[5] for line in maps if f"/{path}" in line), path)


def _looked_for(path: str) -> str:
    """The error if there is no libodc, or none that can be loaded."""
    if os.environ.get("ODC_LIBRARY"):
        return f"ODC_LIBRARY names {path}, which cannot be loaded"
    if "/" in path:
        return f"the libodc of this package, {path}, cannot be loaded"
    search = f'LD_LIBRARY_PATH is "{os.environ.get("LD_LIBRARY_PATH", "")}"'
    folders = " or ".join(_folders())
    return f"no {path} is in {folders}, and none of the system can be loaded ({search})"


def _check_version(library: ctypes.CDLL, path: str) -> None:
    """Compatible: the same major version and no earlier minor version, as the interface only grows."""
    if not hasattr(library, "odc_version"):
        raise ImportError(f"{_where(path)} is no libodc: it has no odc_version; libodc {NEEDED} is needed; {REMEDY}")
    number = library.odc_version()
    found = (number >> 16, number >> 8 & 255)
    if found[0] != WRITTEN_FOR[0] or found[1] < WRITTEN_FOR[1]:
        raise ImportError(
            f"libodc {_version_text(number)} was loaded from {_where(path)}, but this package was written for libodc "
            f"{'.'.join(map(str, WRITTEN_FOR))} and needs {NEEDED}; {REMEDY}"
        )


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{_looked_for(path)}: {error}; libodc {NEEDED} is needed; {REMEDY}") from error
    _check_version(library, path)
    for name, (result, *arguments) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"{_where(path)} lacks {name}: it is no libodc, or an older one than this package needs, {NEEDED}; "
                f"{REMEDY}"
            ) from None
        function.restype = result
        function.argtypes = arguments
    return library


lib = _load()


def version() -> str:
    return _version_text(lib.odc_version())


def build() -> str:
    """A description of the library: version, build type, vector instructions and machine."""
    text: bytes = lib.odc_build()
    return text.decode()
