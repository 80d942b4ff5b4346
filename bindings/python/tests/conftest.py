# SPDX-License-Identifier: Apache-2.0
"""A shell may have started the tests in the background, with Ctrl-C ignored; some of them send it. What is imported is
left out of garbage collections: else each forked rank would walk through it, and copy its pages."""

import gc
import signal
import sys

signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    if "torch_ranks" in sys.modules:
        import warm

        warm.train()
    gc.collect()
    gc.freeze()
