# SPDX-License-Identifier: Apache-2.0
"""Waits that log which ranks they wait for, and end with an error at a deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ...context import Context
from ...errors import InterruptedWaitError, MissedDeadlineError

logger = logging.getLogger("odc")

Result = TypeVar("Result")


class WaitTimer:
    """Interrupts a waiting call of this thread when a log line is due."""

    def __init__(self) -> None:
        self._here = threading.local()

    def is_due(self) -> bool:
        due: float | None = getattr(self._here, "due", None)
        return due is not None and time.monotonic() >= due

    def set(self, due: float) -> None:
        self._here.due = due

    def stop(self) -> None:
        self._here.due = None


class WaitLogger:
    """Wraps the waits of a job. `timer`: its context asks `timer.is_due` whether to interrupt a wait."""

    def __init__(self, context: Context, timer: WaitTimer, *, timeout: float, log_after: float) -> None:
        self._context = context
        self._timer = timer
        self._timeout = timeout  # seconds until a wait ends with an error
        self._log_after = log_after  # seconds between log lines

    def wait(self, call: Callable[[], Result]) -> Result:
        """Makes the call and logs, now and then, which ranks it waits for. Each log line interrupts the call, which is
        then repeated, so their common deadline is kept here."""
        begin = now = time.monotonic()
        end = begin + self._timeout
        while True:
            if now + self._log_after < end or now > begin:
                self._timer.set(min(now + self._log_after, end))
            try:
                return call()
            except InterruptedWaitError as error:
                now = time.monotonic()
                if not self._timer.is_due():
                    raise
                # The library's text has the duration of this call only; replace it.
                message = f"waiting for {now - begin:.1f} s: {str(error).partition(' s: ')[2] or error}"
                if now >= end:
                    self._context.abort(message)
                    raise MissedDeadlineError(message) from None
                logger.warning("%s", message)
            finally:
                self._timer.stop()
