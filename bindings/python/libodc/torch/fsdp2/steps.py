# SPDX-License-Identifier: Apache-2.0
"""A call with several waits that may be interrupted: repeated, it resumes where it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Steps:
    """The steps must run in the same order each time; a finished one returns its first result again."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._next = 0

    def begin(self) -> None:
        """Begins the call, for the first time or again."""
        self._next = 0

    def run(self, step: Callable[[], Result]) -> Result:
        if self._next == len(self._results):
            self._results.append(step())
        result: Result = self._results[self._next]
        self._next += 1
        return result

    def end(self) -> None:
        """Ends the call; the next one is new."""
        self._results.clear()
        self._next = 0
