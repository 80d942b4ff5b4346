# SPDX-License-Identifier: Apache-2.0
"""The example's exact sums: the same bits with every plan, on one, two and three ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from options import parse_options

from libodc._command import odc_command

SCRIPT = Path(__file__).parents[1] / "examples" / "train" / "train.py"


def run(folder: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    small = ["--minibatches", "3", "--width", "32", "--blocks", "1", "--length-scale", "64", "--report", str(ranks)]
    start = [str(odc_command()), "run", "-n", str(ranks)] if ranks > 1 else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ODC_")}
    words = [*start, sys.executable, str(SCRIPT), "exact", "--data", "corpus", *small]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=180)


def test_every_plan_and_number_of_ranks_has_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for number in range(60):
        (tmp_path / "corpus" / f"{number:02}.txt").write_text("To be, or not to be. " * (1 + number**4 // 40000))
    seen = set()
    for ranks in (1, 2, 3):
        ended = run(tmp_path, ranks)
        assert ended.returncode == 0, ended.stderr
        results = json.loads((tmp_path / str(ranks) / "summary.json").read_text())["exact"]
        assert list(results) == ["odc + lb-micro", "odc + lb-mini", "odc + claims"]
        seen |= {(one["loss"], one["parameters"]) for one in results.values()}
        assert all(one["parameters"] in ended.stdout for one in results.values())
        assert f"the same bits with every plan after 3 minibatches on {ranks} rank" in ended.stdout
    assert len(seen) == 1


def test_the_options() -> None:
    options = parse_options(["exact"], "")
    assert (options.minibatches, options.ranks, options.minibatch) == (50, 24, 1)
