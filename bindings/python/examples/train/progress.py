# SPDX-License-Identifier: Apache-2.0
"""The progress of a run, on stderr of rank 0."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

_LINE_EVERY = 5.0  # seconds, without a terminal
_MOST_NAMED = 16  # ranks whose idle shares fit a line


class LiveLine:
    """One line of a terminal, rewritten in place; otherwise a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        if self._terminal:
            columns = os.get_terminal_size(2).columns or 80
            print(f"\r\033[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next:
            print(text, file=sys.stderr, flush=True)
            self._next = time.monotonic() + _LINE_EVERY

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class Progress:
    """Of steps with known costs: those that are left take as long for their cost as those that were counted."""

    def __init__(self, unit: str, steps: int, cost: float) -> None:
        """`unit`: what a step is called."""
        self._unit, self._steps, self._cost_left = unit, steps, cost
        self._done = 0
        self._seconds = self._cost_counted = 0.0
        self._line = LiveLine()

    def extend(self, steps: int, cost: float) -> None:
        """By steps that are repeated."""
        self._steps += steps
        self._cost_left += cost

    def step(self, cost: float, seconds: float, result: str, *, warm_up: bool) -> None:
        """`warm_up`: its time tells nothing about the others'."""
        self._done += 1
        self._cost_left -= cost
        if not warm_up:
            self._seconds += seconds
            self._cost_counted += cost
        left = ""
        if self._cost_counted > 0:
            whole = round(self._seconds / self._cost_counted * max(0.0, self._cost_left))
            left = f"  {whole // 60}:{whole % 60:02} left"
        self._line.show(f"{self._unit} {self._done}/{self._steps}{left}  {result}")

    def clear(self) -> None:
        self._line.clear()


def idle_text(shares: Sequence[float]) -> str:
    """By rank."""
    if len(shares) <= _MOST_NAMED:
        return "idle " + " ".join(f"{100 * share:.0f} %" for share in shares)
    mean = sum(shares) / len(shares)
    return f"idle {100 * min(shares):.0f} % to {100 * max(shares):.0f} %, mean {100 * mean:.0f} %"
