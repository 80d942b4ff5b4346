# SPDX-License-Identifier: Apache-2.0
"""The backward passes of this rank that have begun and not finished."""

from __future__ import annotations

from collections.abc import Callable

from .torch_state import after_backward, current_backward


class Backwards:
    """A backward that raises (out of memory, for example) never finishes, and gradients that it has reduced stay in the
    sums. Reentrant checkpoints run one backward inside another: then the inner ones give the gradients, and the outer
    one, which may raise between them, is known by the forwards that it repeats. `finished` is called when one has."""

    def __init__(self, finished: Callable[[], None]) -> None:
        self._finished = finished
        self._repeating: set[int] = set()  # have repeated forwards and given no gradients yet
        self._open: set[int] = set()

    def note_forward(self) -> None:
        backward = current_backward()
        if backward is None:
            self._repeating.clear()  # whatever they were, they have raised and given nothing
        elif backward not in self._open | self._repeating:
            self._repeating.add(backward)
            self._close_after(backward)

    def note_gradient(self) -> None:
        backward = current_backward()
        if backward is not None and backward not in self._open | self._repeating:
            self._open.add(backward)
            self._close_after(backward)
        self._open |= self._repeating
        self._repeating.clear()

    def unfinished(self) -> bool:
        return bool(self._open)

    def forget(self) -> None:
        self._repeating.clear()
        self._open.clear()

    def _close_after(self, backward: int) -> None:
        def close() -> None:
            self._repeating.discard(backward)
            self._open.discard(backward)
            self._finished()

        after_backward(close)
