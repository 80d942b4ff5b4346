# SPDX-License-Identifier: Apache-2.0
"""The collectives that the training thread has begun since a minibatch's first forward: each is a barrier."""

from __future__ import annotations

import threading

from .torch_state import collectives, other_threads_communicate


class CollectiveCount:
    def __init__(self) -> None:
        self._before: int | None = None  # begun before; None: the count has not begun
        self._others_communicate = False  # other threads did: their collectives cannot be told apart
        self._threads: set[threading.Thread] = set()  # when the count began

    def begin(self) -> None:
        """Has no effect once it has begun."""
        if self._before is None:
            self._before = collectives()
            self._others_communicate = other_threads_communicate()
            self._threads = set(threading.enumerate())

    def forget(self) -> None:
        self._before = None

    def notice_threads(self) -> None:
        """One started since the begin, such as one that writes a checkpoint, may have ended by the sync."""
        if self._before is None or self._others_communicate:
            return
        if not self._threads.issuperset(threading.enumerate()):
            self._others_communicate = other_threads_communicate()

    def value(self) -> int:
        """0 where those of other threads cannot be told apart."""
        if self._before is None or self._others_communicate or other_threads_communicate():
            return 0
        return collectives() - self._before
