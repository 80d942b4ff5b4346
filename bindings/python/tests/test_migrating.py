# SPDX-License-Identifier: Apache-2.0
"""MIGRATING.md's plain loop, before and after, its launch line, and its table of versions."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from migrating import PAGE, after, before, block
from torch_ranks import dist, run_torch_ranks, torch

from libodc.torch import fsdp2

nn = torch.nn
fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
README = Path(__file__).parents[1] / "README.md"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.last = nn.Linear(6, 11)

    def forward(self, ids: Any) -> Any:
        x = self.first(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


def names(rank: int) -> dict[str, Any]:
    """The loop's assumptions. All microbatches have equally many tokens, as a mean of means requires."""
    generator = torch.Generator().manual_seed(rank)
    logged: list[float] = []
    return {
        "F": nn.functional,
        "clip_grad_norm_": nn.utils.clip_grad_norm_,
        "dist": dist,
        "fsdp2": fsdp2,
        "fully_shard": fully_shard,
        "load": lambda model, optimizer: None,
        "loader": torch.randint(0, 11, (3, 2, 2, 5), generator=generator),  # minibatches of microbatches of ids, labels
        "log": lambda value: logged.append(float(value)),
        "logged": logged,
        "model": Model().double(),
        "torch": torch,
    }


def compare(rank: int, size: int) -> None:
    trained = []
    for code in (before(block("Plain loop", "diff")), after(block("Plain loop", "diff"))):
        trained.append(names(rank))
        exec(code, trained[-1])
    plain, over_odc = trained
    assert over_odc["logged"] == pytest.approx(plain["logged"], rel=1e-12)
    for mine, theirs in zip(over_odc["model"].parameters(), plain["model"].parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), theirs.full_tensor(), rtol=1e-12, atol=1e-12)


def test_the_plain_loop() -> None:
    run_torch_ranks(2, compare)


PROGRAM = """
import torch.distributed as dist
from pathlib import Path
from test_migrating import names

dist.init_process_group("gloo")
names = names(dist.get_rank())
exec(Path("loop.py").read_text(), names)
Path(f"ended {dist.get_rank()} of {dist.get_world_size()}").touch()
dist.destroy_process_group()
"""


def test_the_launch_line(tmp_path: Path) -> None:
    line = block("What changes in every loop", "sh").strip()
    assert line in README.read_text()
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "loop.py").write_text(after(block("Plain loop", "diff")))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parent),
        "PET_STANDALONE": "1",  # like --standalone: a free port
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        shlex.split(line), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in tmp_path.glob("ended*")) == ["ended 0 of 2", "ended 1 of 2"]


def test_the_table_has_the_versions_that_are_installed() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d[\d.]*) \| .* \| (.*) \|$", PAGE, re.M)
    names = [name for name, _, _ in rows]
    assert names == ["torch", "Accelerate", "torchao", "transformers", "TRL", "PEFT", "torchtitan", "verl"]
    installed_by_script = (Path(__file__).parents[3] / "tests/venv.sh").read_text()
    for name, printed, tests in rows:
        wanted = "version=" if name == "torch" else f" {name.lower()}=="
        assert f"{wanted}{printed} " in installed_by_script, name
        with suppress(PackageNotFoundError):
            assert version(name.lower()).partition("+")[0] == printed, name
        for test in re.findall(r"`(.*?)`", tests):
            assert (Path(__file__).parent / test).exists(), test
