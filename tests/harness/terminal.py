# SPDX-License-Identifier: Apache-2.0
"""Runs a program whose standard error is a terminal."""

import os
import pty
import subprocess
import tempfile


def run(command: list[str]) -> tuple[int, bytes, bytes]:
    """Its status, its standard output, and what the terminal was sent."""
    terminal, stderr = pty.openpty()
    shown = b""
    with tempfile.TemporaryFile() as stdout:
        program = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        os.close(stderr)
        try:
            while text := os.read(terminal, 4096):
                shown += text
        except OSError:  # the last writer has ended
            pass
        status = program.wait()
        os.close(terminal)
        stdout.seek(0)
        return status, stdout.read(), shown
