# SPDX-License-Identifier: Apache-2.0
"""Handles of CUDA streams, without importing the library that made them."""

from __future__ import annotations

import sys
from typing import Any

from ._arguments import UINT64, c_integer


def stream_handle(stream: Any, device: int | None) -> int | None:
    """The handle of `stream` for C: a handle, a torch.cuda.Stream, or an object with __cuda_stream__. None is torch's
    current stream of the device if torch uses CUDA, otherwise the legacy default stream. `device` None: host memory,
    for which C takes no stream."""
    if stream is None and device is None:
        return None
    handle = _handle(stream, device)
    if type(handle).__name__ == "CUstream":  # cuda.bindings'; it has no __index__
        handle = int(handle)
    return c_integer("the handle of the stream", handle, UINT64)


def _handle(stream: Any, device: int | None) -> Any:
    """The handle according to the stream's own type."""
    if stream is None:
        assert device is not None
        return _current(device)
    if hasattr(stream, "cuda_stream"):  # torch's
        _check_device(stream, device)
        return stream.cuda_stream
    if hasattr(stream, "__cuda_stream__"):
        version, handle = stream.__cuda_stream__()
        if version != 0:
            raise ValueError(f"the stream speaks version {version} of __cuda_stream__, not 0")
        return handle
    if hasattr(stream, "__index__") and not isinstance(stream, bool):
        return stream
    raise ValueError(
        f"the stream is {type(stream).__name__}: give a handle, a torch.cuda.Stream, an object with __cuda_stream__, "
        "or None for the current stream"
    )


def _current(device: int) -> Any:
    torch = sys.modules.get("torch")
    # Before torch initializes CUDA no other stream can be current.
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return torch.cuda.current_stream(device).cuda_stream


def _check_device(stream: Any, device: int | None) -> None:
    """torch's default stream has the same handle on all devices, so C cannot tell which one it is."""
    other = getattr(getattr(stream, "device", None), "index", None)
    if device is not None and other is not None and other != device:
        raise ValueError(f"the stream is of cuda:{other}, the context's GPU is cuda:{device}")
