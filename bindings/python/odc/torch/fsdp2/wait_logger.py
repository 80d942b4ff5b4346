# SPDX-License-Identifier: Apache-2.0
"""Waits that log whom they wait for, and end with an error after a while."""

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


class Watch:
    """Interrupts a waiting call of this thread when it is due: to log whom it waits for."""

    def __init__(self) -> None:
        self._here = threading.local()

    def rings(self) -> bool:
        due: float | None = getattr(self._here, "due", None)
        return due is not None and time.monotonic() >= due

    def set(self, due: float) -> None:
        self._here.due = due

    def stop(self) -> None:
        self._here.due = None


class Patience:
    """Of the waits of a job. `watch` is what its context asks whether a wait is interrupted."""

    def __init__(self, context: Context, watch: Watch, *, timeout: float, log_after: float) -> None:
        self._context = context
        self._watch = watch
        self._timeout = timeout  # seconds until a wait ends with an error
        self._log_after = log_after  # seconds between the lines that say whom it waits for

    def wait(self, call: Callable[[], Result]) -> Result:
        """Logs, now and then, whom a waiting call waits for. Each line interrupts it, and it is called again; so the
        deadline of them all is kept here."""
        begin = now = time.monotonic()
        end = begin + self._timeout
        while True:
            if now + self._log_after < end or now > begin:
                self._watch.set(min(now + self._log_after, end))
            try:
                return call()
            except InterruptedWaitError as error:
                now = time.monotonic()
                if not self._watch.rings():
                    raise
                # What is waited for comes after how long this call has lasted.
                words = f"waiting for {now - begin:.1f} s: {str(error).partition(' s: ')[2] or error}"
                if now >= end:
                    self._context.abort(words)
                    raise MissedDeadlineError(words) from None
                logger.warning("%s", words)
            finally:
                self._watch.stop()
