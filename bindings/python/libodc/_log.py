# SPDX-License-Identifier: Apache-2.0
"""The library's log goes to logging's logger "libodc". C hands lines over on threads that are in a call, never on its
own, so no thread of the library waits for the GIL."""

import logging
import os
import sys
from contextlib import suppress

from ._abi import LogLevel

TRACE = 5  # logging has no such level

logger = logging.getLogger("libodc")

_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARN: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.TRACE: TRACE,
}


class _Printer(logging.Handler):
    """For ODC_LOG where the program has not set logging up: without a handler, logging prints warnings only."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr)


def wanted_level() -> int:
    """For odc_config.log_level. ODC_LOG, where it is set, is the logger's level, too; else the logger's is C's."""
    name = os.environ.get("ODC_LOG")
    if name:
        if name.upper() in LogLevel.__members__:
            logger.setLevel(_LEVELS[LogLevel[name.upper()]])
            if not logger.hasHandlers():
                logger.addHandler(_Printer())
        return 0  # C reads it, and refuses what is wrong
    return max(level for level in LogLevel if level is LogLevel.ERROR or logger.isEnabledFor(_LEVELS[level]))


def is_unconfigured() -> bool:
    """Neither ODC_LOG nor the program's logging says what is shown."""
    untouched = logger.getEffectiveLevel() == logging.WARNING and not logger.hasHandlers()
    return untouched and logger.isEnabledFor(logging.WARNING) and not os.environ.get("ODC_LOG")


def hand_over(level: int, line: bytes) -> None:
    """A line of C's. What a handler of logging's raises ends no call."""
    known = _LEVELS[LogLevel(level)] if level in _LEVELS else TRACE
    with suppress(Exception):
        logger.log(known, "%s", line.decode(errors="replace"))
