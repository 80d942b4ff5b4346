# SPDX-License-Identifier: Apache-2.0
"""A hook on uncaught exceptions: the other ranks end with this rank's error at once, not at a deadline."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from ...errors import Error


class Abortable(Protocol):
    def abort(self, error: BaseException) -> None: ...


_jobs: weakref.WeakSet[Abortable] = weakref.WeakSet()
_installed: Callable[..., Any] | None = None
_previous: Callable[..., Any] = sys.__excepthook__


def _install() -> None:
    """Runs before the current hook. Ours may be below it already, and then aborts twice, which has no effect."""
    global _installed, _previous
    previous = sys.excepthook

    def abort_jobs(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            for job in list(_jobs):
                with suppress(Error):
                    job.abort(error)
        finally:
            previous(kind, error, trace)

    sys.excepthook = abort_jobs
    _installed, _previous = abort_jobs, previous


def add(job: Abortable) -> None:
    if sys.excepthook is not _installed:
        _install()
    _jobs.add(job)


def remove(job: Abortable) -> None:
    _jobs.discard(job)
    if not _jobs and sys.excepthook is _installed:
        sys.excepthook = _previous
