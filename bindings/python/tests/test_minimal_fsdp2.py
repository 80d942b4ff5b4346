# SPDX-License-Identifier: Apache-2.0
"""The README's FSDP2 program is the example's file, and runs under torchrun and odc run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from libodc._command import odc_command

PROGRAM = Path(__file__).parents[1] / "examples" / "minimal_fsdp2.py"
MEMORY = Path(__file__).parents[3] / "docs/fsdp2.md"  # shows what rank 0 prints in attach
LINE = re.compile(r"(?:\[0\] )?(\d+): loss (\d\.\d+), samples by rank \[(\d+), (\d+)\], waited \d+\.\d+ s")


def test_the_readme_prints_it() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    _, program = PROGRAM.read_text().split("\n", 1)  # without the license's line
    assert f"```python\n{program}```" in readme


def test_its_head_shows_what_it_prints() -> None:
    *_, shown = PROGRAM.read_text().split('"""')[1].splitlines()
    assert LINE.fullmatch(shown)


def launcher(name: str) -> list[str]:
    if name == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = odc_command()
    assert command is not None
    return [command, "run", "-n", "2", "--", sys.executable]


@pytest.mark.parametrize("name", ["torchrun", "odc run"])
def test_it_trains(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "ODC_LOG")}
    ended = subprocess.run(
        [*launcher(name), str(PROGRAM)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stderr
    lines = [found for found in map(LINE.fullmatch, ended.stdout.splitlines()) if found]
    assert [int(line[1]) for line in lines] == list(range(12)), ended.stdout + ended.stderr
    assert all(int(line[3]) + int(line[4]) == 32 for line in lines)
    assert float(lines[-1][2]) < 0.8 * float(lines[0][2])
    assert "Warning" not in ended.stderr, ended.stderr
    (attached,) = re.findall(r"^odc: attach: .*$", MEMORY.read_text(), re.M)
    assert ended.stderr.count(attached) == 1, ended.stderr
