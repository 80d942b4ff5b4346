# SPDX-License-Identifier: Apache-2.0
"""The pictures' axes and idle shares, the tables' gains, and the words of the progress line."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
import load
from arms import COLLECTIVE, COLLECTIVE_ROWS, FSDP, ODC_CLAIMS, ODC_FLAT, ODC_MICRO, ODC_MINI
from experiment import ArmRecord, Block
from figures import ArmFigures, Gain, arm_figures, arms_table, gains_table
from matplotlib.figure import Figure
from matplotlib.text import Text
from pictures import Pictures, robust_top
from progress import idle_text
from stopwatch import Span
from trainer import Step


def test_outliers_do_not_squeeze_the_others() -> None:
    assert robust_top([3, 2, 4, 3, 5, 90, 2, 3]) == 1.25 * 5
    assert robust_top([3, 2, 4, 3, 5, 2, 3]) == 5
    assert robust_top([22] * 8 + [4] * 16) == 22  # a third is no outlier
    assert robust_top([1, 1, 1, 1, 9]) == 1.25
    assert robust_top([1, 9]) == 9
    assert robust_top([0, 0, 0, 0, 9]) == 9


def test_idle_shares_of_many_ranks_fit_a_line() -> None:
    assert idle_text([0.12, 0.03, 0.09, 0]) == "idle 12 % 3 % 9 % 0 %"
    assert idle_text([0.5] * 16 + [0.1, 0.0]) == "idle 0 % to 50 %, mean 45 %"


def test_table_and_timeline_have_the_same_idle_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*busy: float) -> ArmRecord:
        """Of one minibatch of 10 s. Ranks are on a core, and compute for 1 s of that."""
        spans = (Span(False, 3.0, 4.0),)
        steps = [[Step(2.0, 1.0, 10.5, 11.0, seconds, (1.0,), spans)] for seconds in busy]
        return ArmRecord([Block(0, 1, 10.0)], steps, [5.0, 4.0])

    records = {COLLECTIVE: record(5.0, 2.5), ODC_MINI: record(9.0, 8.0)}
    workload: Any = SimpleNamespace(minibatches=[SimpleNamespace(samples=4, tokens=40)])
    figures = [arm_figures(arm, one, workload, range(1)) for arm, one in records.items()]
    assert [figure.rank_idle for figure in figures] == [pytest.approx([0.5, 0.75]), pytest.approx([0.1, 0.2])]
    table = arms_table("arm", figures, records, 0, "verdict: 1.50x")

    words: list[str] = []

    def collect(figure: Figure, *_: object, **__: object) -> None:
        words.extend(text.get_text() for text in figure.findobj(Text))

    monkeypatch.setattr(Figure, "savefig", collect)
    Pictures(tmp_path, "title").timeline(records, range(1), idle="elsewhere")
    assert [word for word in words if word.endswith("%") and word[0].isdigit() and "," not in word] == [
        *("50 %", "75 %"),
        *("10 %", "20 %"),
    ]
    for row, share, mean in zip(table[1:], ("62.5%", "15.0%"), ("62 %", "15 %"), strict=True):
        assert f" {share} " in row and any(word.endswith(f"mean idle {mean}") for word in words)


def test_tables_have_no_gain_that_the_verdict_refuses() -> None:
    seconds = {COLLECTIVE: 15.0, ODC_MINI: 10.0}
    figures = [ArmFigures(arm, took, 1.0, 1.0, None, []) for arm, took in seconds.items()]
    records = {arm: ArmRecord([], [[Step(2.0, 0.0, 1.0, 1.0, 1.0)]], [5.0, 4.0]) for arm in seconds}
    gain = Gain("schedule", COLLECTIVE, ODC_MINI, [1.5, 1.4, 1.6])
    resolved, refused = load.verdict(str(gain), 0.1, 3), load.verdict(str(gain), 0.5, 3)
    assert [row.split()[4] for row in arms_table("arm", figures, records, 0, resolved)[1:]] == ["1.00x", "1.50x"]
    assert [row.split()[4] for row in arms_table("arm", figures, records, 0, refused)[1:]] == ["-", "-"]
    assert gains_table([gain], resolved)[-1].endswith("1.500x  1.400 to 1.600") and gains_table([gain], refused) == []


def test_pictures_carry_the_verdict_and_no_gain_that_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []
    filled: set[bool] = set()

    def collect(figure: Figure, *_: object, **__: object) -> None:
        words.extend(text.get_text() for text in figure.findobj(Text))
        bars = (bar for container in figure.axes[0].containers for bar in container)
        filled.update(bar.get_facecolor()[3] > 0 and bar.get_hatch() is None for bar in bars)

    monkeypatch.setattr(Figure, "savefig", collect)
    gain = Gain("schedule", COLLECTIVE, ODC_MINI, [1.5, 1.2, 1.3, 1.3, 1.3, 1.2, 9.0])
    for verdict, shown in (("verdict: 1.20 to 1.50x", True), ("verdict: not resolved: other programs", False)):
        words.clear()
        filled.clear()
        Pictures(tmp_path, "title", verdict).gains([gain])
        assert filled == {shown} and ("not resolved" in words) != shown
        assert f"title\n{verdict}" in words and ("1.30x" in words) == shown
        assert ("> 9.00x" in words) == shown


def test_a_gain_in_the_summary_has_the_reason_why_the_verdict_refuses_it() -> None:
    gain = Gain("schedule", COLLECTIVE, ODC_MINI, [1.5, 1.2, 1.3])
    for others, why in ((0.1, None), (0.5, "other programs used 50% of the processors")):
        written = gain.summary(load.verdict(str(gain), others, 3))
        assert (written["median"], written["resolved"], written["why_not_resolved"]) == (1.3, why is None, why)


def test_a_gain_has_its_spread() -> None:
    assert str(Gain("schedule", COLLECTIVE, ODC_MINI, [1.5, 1.2, 1.3])) == "1.20 to 1.50x, median 1.30x of 3 pairs"


@pytest.mark.parametrize("page", ["README.md", "bindings/python/examples/train/README.md"])
def test_pages_show_tables_as_printed(page: str) -> None:
    """Their columns and arms, and gains only beside a verdict that has them."""
    arms = {arm.name for arm in (FSDP, COLLECTIVE, COLLECTIVE_ROWS, ODC_MICRO, ODC_MINI, ODC_CLAIMS, ODC_FLAT)}
    header = re.split("  +", arms_table("", [], {}, 0, "")[0])[1:]
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```$", (Path(__file__).parents[3] / page).read_text(), re.S | re.M)
    tables = [
        (load.resolved(block), [re.split("  +", row) for row in part.splitlines()])
        for block in blocks
        for part in block.split("\n\n")
        if "tokens/s" in part or part.startswith("gain of ")
    ]
    assert any(columns[1:] == header for _, (columns, *_) in tables)
    for resolved, (columns, *rows) in tables:
        if columns[0].startswith("gain of "):
            assert resolved
            continue
        assert columns[1:] == header and rows
        for row in rows:
            assert row[0] in arms and len(row) == 1 + len(header) and (row[2] != "-") == resolved, row
