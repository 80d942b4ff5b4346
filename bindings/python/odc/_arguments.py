# SPDX-License-Identifier: Apache-2.0
"""What C is handed, checked: ctypes takes an integer's low bits, and C reads a string up to its first NUL."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

from .errors import ArgumentError

INT32 = 2**31 - 1
UINT64 = 2**64 - 1


def c_string(what: str, text: Any) -> bytes:
    """The words leave out the text: it may be the secret."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what} is of type {type(text).__name__}, must be a string")
    try:
        return _without_nul(what, text.encode())
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{what} cannot be encoded as UTF-8: {error.reason}, character {error.start}") from None


def c_path(what: str, path: str | os.PathLike[str]) -> bytes:
    try:
        return _without_nul(what, os.fsencode(path))
    except TypeError:
        raise ArgumentError(f"{what} is of type {type(path).__name__}, must be a path") from None


def c_integer(what: str, value: Any, most: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = -1
    if not 0 <= whole <= most:
        raise ArgumentError(f"{what} is {value!r}, must be an integer in 0..{most}")
    return whole


def c_integers(what: str, values: Sequence[Any], most: int) -> list[int]:
    try:
        listed = list(values)
    except TypeError:
        raise ArgumentError(f"{what} is {values!r}, must be a sequence of integers") from None
    return [c_integer(f"{what}[{index}]", value, most) for index, value in enumerate(listed)]


def told(error: BaseException) -> str:
    """An exception as a text of abort, which must be told whatever it says."""
    text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
    return text.decode().replace("\0", "\\x00")


def _without_nul(what: str, text: bytes) -> bytes:
    if 0 in text:
        raise ArgumentError(f"{what} has a NUL character at byte {text.index(0)}, which ends a string of C")
    return text
