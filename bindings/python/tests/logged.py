# SPDX-License-Identifier: Apache-2.0
"""Captures the package's log messages."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def lines_logged(level: int = logging.INFO) -> Iterator[list[str]]:
    """What is logged within the block."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Handler(level), logging.getLogger("libodc")
    before = logger.level
    logger.addHandler(handler)
    if not logger.isEnabledFor(level):
        logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def warnings_logged() -> AbstractContextManager[list[str]]:
    """The warnings within the block."""
    return lines_logged(logging.WARNING)
