# SPDX-License-Identifier: Apache-2.0
"""Captures the package's log messages."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_logged() -> Iterator[list[str]]:
    """The warnings within the block."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger("libodc").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("libodc").removeHandler(handler)
