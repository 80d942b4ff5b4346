# SPDX-License-Identifier: Apache-2.0
"""An exception that ends this process is told to the other ranks: they end with its words, not at a deadline."""

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
    """Before whatever is there now; ours may be below it already, and then tells twice, which does no harm."""
    global _installed, _previous
    previous = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            for job in list(_jobs):
                with suppress(Error):
                    job.abort(error)
        finally:
            previous(kind, error, trace)

    sys.excepthook = tell
    _installed, _previous = tell, previous


def watch(job: Abortable) -> None:
    if sys.excepthook is not _installed:
        _install()
    _jobs.add(job)


def forget(job: Abortable) -> None:
    _jobs.discard(job)
    if not _jobs and sys.excepthook is _installed:
        sys.excepthook = _previous
