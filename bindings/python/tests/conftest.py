# SPDX-License-Identifier: Apache-2.0
"""A shell may have started the tests in the background, with Ctrl-C ignored; some of them send it."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
