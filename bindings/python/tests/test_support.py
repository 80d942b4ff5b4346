# SPDX-License-Identifier: Apache-2.0
"""The table in docs/fsdp2.md is the one that support.py wrote, and names tests that there are."""

import subprocess
import sys
from pathlib import Path

import pytest
import support

pytest.importorskip("torch", reason="torch is not installed")
for library in ("transformers", "accelerate", "trl", "peft", "torchtitan"):
    pytest.importorskip(library, reason=f"{library} is not installed")


def test_the_readme_has_the_table() -> None:
    assert support.BEGIN + support.table() + support.END in support.PAGE.read_text(), "run tests/support.py"


def test_the_tests_are_there() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *support.tests()]
    ended = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
