# SPDX-License-Identifier: Apache-2.0
"""Which backward passes of this rank have begun and not finished."""

from __future__ import annotations

from .torch_state import after_backward, current_backward


class Backwards:
    """A backward that raises (out of memory, for one) never finishes, and what it has reduced stays in the sums."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def note(self) -> None:
        """From a hook that runs in a backward."""
        backward = current_backward()
        if backward is not None and backward not in self._open:
            self._open.add(backward)
            after_backward(lambda: self._open.discard(backward))

    def unfinished(self) -> bool:
        return bool(self._open)

    def forget(self) -> None:
        self._open.clear()
