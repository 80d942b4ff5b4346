# SPDX-License-Identifier: Apache-2.0
"""Runs a program whose standard error is a terminal."""

import os
import pty
import signal
import subprocess
import tempfile
import threading
from typing import Any

LIMIT = 300.0  # seconds, then the program is killed


def run(command: list[str], **options: Any) -> tuple[int, bytes, bytes]:
    """Its status, its standard output, and what the terminal was sent. `options`: of subprocess.Popen."""
    terminal, stderr = pty.openpty()
    shown = b""
    with tempfile.TemporaryFile() as stdout:
        program = subprocess.Popen(command, stdout=stdout, stderr=stderr, start_new_session=True, **options)
        os.close(stderr)
        late = threading.Timer(LIMIT, os.killpg, (program.pid, signal.SIGKILL))
        late.daemon = True
        late.start()
        try:
            while text := os.read(terminal, 4096):
                shown += text
        except OSError:  # the last writer has ended
            pass
        status = program.wait()
        late.cancel()
        os.close(terminal)
        stdout.seek(0)
        return status, stdout.read(), shown
