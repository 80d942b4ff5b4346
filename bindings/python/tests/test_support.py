# SPDX-License-Identifier: Apache-2.0
"""The table in docs/fsdp2.md is the one that support.py wrote, and names tests that there are."""

from pathlib import Path

import pytest
import support
from scripts import run_forked

pytest.importorskip("torch", reason="torch is not installed")
for library in ("transformers", "accelerate", "trl", "peft", "torchtitan"):
    pytest.importorskip(library, reason=f"{library} is not installed")


def test_the_readme_has_the_table() -> None:
    assert support.BEGIN + support.table() + support.END in support.PAGE.read_text(), "run tests/support.py"


def test_the_tests_are_there() -> None:
    command = [str(Path(pytest.__file__).with_name("__main__.py")), "-q", "--collect-only", *support.tests()]
    ended = run_forked(1, command, Path(__file__).parent, 300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
