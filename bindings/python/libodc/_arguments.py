# SPDX-License-Identifier: Apache-2.0
"""Checked arguments for C: ctypes takes an integer's low bits, and C reads a string up to its first NUL."""

from __future__ import annotations

import enum
import math
import operator
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from .errors import ArgumentError

INT32 = 2**31 - 1
UINT64 = 2**64 - 1

Enum = TypeVar("Enum", bound=enum.IntEnum)


def c_string(what: str, text: Any) -> bytes:
    """The error omits the text, which may be the secret."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what} is of type {type(text).__name__}, must be a string")
    try:
        return _without_nul(what, text.encode())
    except UnicodeEncodeError as error:
        raise _not_encoded(what, error) from None


def c_path(what: str, path: str | os.PathLike[str]) -> bytes:
    try:
        return _without_nul(what, os.fsencode(path))
    except UnicodeEncodeError as error:
        raise _not_encoded(what, error) from None
    except TypeError:
        raise ArgumentError(f"{what} is of type {type(path).__name__}, must be a path") from None


def c_integer(what: str, value: Any, most: int) -> int:
    reason = None
    try:
        whole = operator.index(value)
    except Exception as error:  # anything that its __index__ raises
        whole, reason = -1, error
    if not 0 <= whole <= most:
        raise ArgumentError(f"{what} is {_shown(value)}, must be an integer in 0..{most}") from reason
    return whole


def c_float(what: str, value: Any) -> float:
    """Of f32: ctypes makes infinities of larger ones."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except Exception:  # anything that its __float__ raises
        number = math.nan
    if not abs(number) < 2.0**128:
        raise ArgumentError(f"{what} is {_shown(value)}, must be a number below 2**128 in magnitude")
    return number


def c_integers(what: str, values: Sequence[Any], most: int) -> list[int]:
    try:
        listed = list(values)
    except TypeError:
        raise ArgumentError(f"{what} is {_shown(values)}, must be a sequence of integers") from None
    return [c_integer(f"{what}[{index}]", value, most) for index, value in enumerate(listed)]


def c_enum(what: str, value: Any, kind: type[Enum]) -> Enum:
    """Also accepts a plain integer."""
    try:
        return kind(operator.index(value))
    except Exception as error:
        names = ", ".join(one.name for one in kind)
        raise ArgumentError(f"{what} is {_shown(value)}, must be one of libodc.{kind.__name__}: {names}") from error


def told(error: BaseException) -> str:
    """The text of abort for an exception, whatever its __str__ does."""
    try:
        message = str(error)
    except Exception as another:
        message = f"without a message: asking for it raised {type(another).__name__}"
    text = f"{type(error).__name__}: {message}".encode(errors="backslashreplace")
    return text.decode().replace("\0", "\\x00")


def _shown(value: Any) -> str:
    """For error texts: a long value is cut."""
    try:
        text = repr(value)
    except Exception:  # also for an integer of thousands of digits
        return f"of type {type(value).__name__} and cannot be shown"
    return text if len(text) <= 80 else f"{text[:80]}..."


def _not_encoded(what: str, error: UnicodeEncodeError) -> ArgumentError:
    return ArgumentError(
        f"{what} cannot be encoded as {error.encoding.upper()}: {error.reason}, character {error.start}"
    )


def _without_nul(what: str, text: bytes) -> bytes:
    if 0 in text:
        raise ArgumentError(f"{what} has a NUL character at byte {text.index(0)}, which ends a string of C")
    return text
