# SPDX-License-Identifier: Apache-2.0
"""A call of several waits that can be interrupted: made again, it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Steps:
    """The steps must come in the same order each time; what a finished one returned is returned again."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._next = 0

    def begin(self) -> None:
        """The call is made, for the first time or again."""
        self._next = 0

    def run(self, step: Callable[[], Result]) -> Result:
        if self._next == len(self._results):
            self._results.append(step())
        result: Result = self._results[self._next]
        self._next += 1
        return result

    def end(self) -> None:
        """The call is done; the next is another."""
        self._results.clear()
        self._next = 0
