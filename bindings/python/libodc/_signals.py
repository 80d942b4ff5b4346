# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while C waits. A signal handler must not raise in a callback of C's, where Python runs handlers as soon as it
can: nothing could catch the exception there. So during a call handlers only note the signal."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Deferred:
    """Wraps a call in the main thread; elsewhere Python runs no handlers. The callback runs the noted handlers."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noted: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> "Deferred":
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _NUMBERS:
                    handler = signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        signal.signal(number, self._note)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()
        self.run()

    def run(self) -> None:
        """Runs the handlers of noted signals, which may raise."""
        while self._noted:
            number, frame = self._noted.pop(0)
            self._handlers[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
