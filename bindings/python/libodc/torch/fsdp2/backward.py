# SPDX-License-Identifier: Apache-2.0
"""The backward passes of this rank that have begun and not finished."""

from __future__ import annotations

from .torch_state import after_backward, current_backward


class Backwards:
    """A backward that raises (out of memory, for example) never finishes, and gradients that it has reduced stay in the
    sums."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def note(self) -> None:
        """Called by a hook that runs in a backward."""
        backward = current_backward()
        if backward is not None and backward not in self._open:
            self._open.add(backward)
            after_backward(lambda: self._open.discard(backward))

    def unfinished(self) -> bool:
        return bool(self._open)

    def forget(self) -> None:
        self._open.clear()
