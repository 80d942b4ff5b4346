# SPDX-License-Identifier: Apache-2.0
"""Raises KeyboardInterrupt in the package where the handler of a signal could: between two bytecodes of which the first
is one after which Python looks for signals."""

from __future__ import annotations

import dis
import functools
import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any

import pytest

import libodc

_PACKAGE = os.path.dirname(libodc.__file__) + os.sep
needs_tables = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tables of exceptions in bytecode")

_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")


class Interruption:
    """A block that is interrupted at the `at`-th such place in it, from 0. `places`: how many it has had. `where`: of
    the interruption; empty: it had fewer."""

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self._last: dict[FrameType, int] = {}  # offsets of bytecodes
        self.places = 0
        self.where = ""

    def __enter__(self) -> Interruption:
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        sys.settrace(None)
        return kind is KeyboardInterrupt and self.where != ""

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "opcode":
            self._last.pop(frame, None)
            if event == "return" and frame.f_back is not None:
                self._last.pop(frame.f_back, None)  # a call of Python's own, behind which Python does not look
            return self._step
        before, self._last[frame] = self._last.get(frame), frame.f_lasti
        if before is not None and _looks(frame.f_code, before) and _alike(frame.f_code, before, frame.f_lasti):
            self.places += 1
            if self.places - 1 == self._at:
                sys.settrace(None)
                self._last.clear()
                self.where = f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno} +{frame.f_lasti}"
                raise KeyboardInterrupt
        return self._step


@functools.cache
def _looks(code: CodeType, offset: int) -> bool:
    return dis.opname[code.co_code[offset]].startswith(_LOOKS)


@functools.cache
def _alike(code: CodeType, before: int, now: int) -> bool:
    """Whether an exception has the same handler at both."""
    return _handler(code, before) == _handler(code, now)


@functools.cache
def _handler(code: CodeType, offset: int) -> int | None:
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        if entry.start <= offset < entry.end:
            return int(entry.target)
    return None
