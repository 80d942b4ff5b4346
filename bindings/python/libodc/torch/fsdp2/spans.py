# SPDX-License-Identifier: Apache-2.0
"""What a traced job shows between its communication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...tracing.trace import Trace


class Spans:
    def __init__(self) -> None:
        self._trace: Trace | None = None
        self._current = ExitStack()

    @contextmanager
    def shown_in(self, trace: Trace) -> Iterator[None]:
        self._trace = trace
        try:
            yield
        finally:
            self._current.close()
            self._trace = None

    def show(self, doing: str) -> None:
        """Until the next call; no effect without a trace."""
        self._current.close()
        if self._trace is not None:
            self._current.enter_context(self._trace.span(doing))
