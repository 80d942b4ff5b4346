# SPDX-License-Identifier: Apache-2.0
"""An exception that ends this process is told to the other ranks: they end with its words, not at a deadline."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job import Job

_jobs: weakref.WeakSet[Job] = weakref.WeakSet()
_previous: Any = None


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for job in list(_jobs):
        job.abort(error)
    (_previous or sys.__excepthook__)(kind, error, trace)


def watch(job: Job) -> None:
    global _previous
    if _previous is None:  # else somebody else may have wrapped ours
        _previous = sys.excepthook
        sys.excepthook = _tell
    _jobs.add(job)


def forget(job: Job) -> None:
    global _previous
    _jobs.discard(job)
    if not _jobs and sys.excepthook is _tell:
        sys.excepthook, _previous = _previous, None
