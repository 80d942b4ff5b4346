# SPDX-License-Identifier: Apache-2.0
"""The example's exact sums: the same bits with every plan, on any number of ranks, and after a kill."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from options import parse_options
from scripts import run_forked

SCRIPT = Path(__file__).parents[1] / "examples" / "train" / "train.py"
PLANS = ["odc + claims", "odc + lb-mini", "odc + lb-micro", "odc + local-sort"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("train")
    (made / "corpus").mkdir()
    for number in range(60):
        (made / "corpus" / f"{number:02}.txt").write_text("To be, or not to be. " * (1 + number**4 // 40000))
    return made


def run(folder: Path, ranks: int, reduce: str, report: str, *more: str) -> subprocess.CompletedProcess[str]:
    """By forked ranks, which have torch."""
    small = ["--minibatches", "5", "--width", "32", "--blocks", "1", "--length-scale", "256"]
    words = [str(SCRIPT), "exact", "--data", "corpus", *small, "--reduce", reduce, "--report", report, *more]
    return run_forked(ranks, words, folder, 180)


def summary(folder: Path, ended: subprocess.CompletedProcess[str], report: str) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    written: dict[str, Any] = json.loads((folder / report / "summary.json").read_text())
    assert list(written["exact"]) == PLANS
    assert all(one["parameters"] in ended.stdout for one in written["exact"].values())
    return written


@pytest.mark.parametrize("reduce", ["f32", "bf16"])
def test_the_same_bits_with_every_plan_on_any_ranks_and_after_a_kill(folder: Path, reduce: str) -> None:
    alone = summary(folder, run(folder, 1, reduce, f"{reduce}.1"), f"{reduce}.1")
    exact, plain = alone["errors"]["exact"], alone["errors"]["f32 in order"]
    assert 0 < exact["rms"] < plain["rms"] and 0 < exact["largest"] <= plain["largest"]

    killed = run(folder, 3, reduce, reduce, "--kill", "3")
    assert killed.returncode != 0
    assert re.search("PeerLostError: rank 2 .* died", killed.stderr)
    ended = run(folder, 2, reduce, reduce, "--resume")
    resumed = summary(folder, ended, reduce)
    assert f"5 minibatches on 2 ranks, resumed after 2, {reduce}" in ended.stdout

    (bits,) = {(one["loss"], one["parameters"]) for of in (alone, resumed) for one in of["exact"].values()}
    assert len(bits[1]) == 16


def test_what_cannot_be_resumed_is_told(folder: Path) -> None:
    ended = run(folder, 1, "bf16", "none", "--resume")
    assert ended.returncode == 1
    assert "train.py: --resume: there is no none/checkpoint; train with --kill and this --report first" in ended.stderr


def test_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_options(["exact"], "")
    assert (options.minibatches, options.ranks, options.minibatch) == (50, 16, 1)
    with pytest.raises(SystemExit):
        parse_options(["exact", "--kill", "50"], "")
    assert "--kill 50: minibatches are numbered 0 to 49" in capsys.readouterr().err
