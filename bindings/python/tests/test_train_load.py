# SPDX-License-Identifier: Apache-2.0
"""What train.py concludes beside other programs, from given readings of /proc/stat, and what it shows meanwhile."""

import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import experiment
import load
import progress
from arms import COLLECTIVE, ODC_MINI
from experiment import Experiment
from torch import distributed
from trainer import Step


def test_the_share_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    readings = iter([(0, 0), (100, 200), (0, 0), (100, 200), None, (1, 2), (5, 5), (5, 5)])
    monkeypatch.setattr(load, "_ticks", lambda: next(readings))
    assert load.MachineLoad().others(60 / tick) == pytest.approx(0.2)
    assert load.MachineLoad().others(150 / tick) == 0
    assert load.MachineLoad().others(0) is None  # it cannot be read
    assert load.MachineLoad().others(0) is None  # no time has passed


def test_a_busy_machine_resolves_nothing() -> None:
    gain = "1.10 to 1.30x, median 1.20x of 3 pairs"
    assert load.verdict(gain, 0.2, 3) == load.verdict(gain, None, 3) == f"verdict: {gain}"
    busy = "verdict: not resolved: other programs used 55% of the processors"
    assert load.verdict(gain, 0.55, 3) == busy
    assert load.verdict(gain, 0.55, 2) == f"{busy}, 3 pairs of turns are the least"
    assert load.disturbed_line(0.55, 2) == ["other programs used 55% of the processors, pairs of turns repeated: 2"]
    assert load.disturbed_line(0.05, 0) == []


class FakeTrainer:
    """Its losses tell how often it has been trained; its turns take no time."""

    def __init__(self, arm: Any) -> None:
        self.arm, self.trained = arm, 0

    def microbatches(self, number: int) -> list[list[int]]:
        return []

    def train(self, microbatches: object) -> Step:
        self.trained += 1
        return Step(float(self.trained), 0.0, 1.0, 1.0, 0.0)

    def crossed(self) -> None:
        return None

    def finish(self) -> None:
        pass


class OneRank:
    rank, size = 0, 1

    def sync(self) -> None:
        pass

    def all_reduce(self, values: list[float]) -> list[float]:
        return values


class TwoRanks(OneRank):
    """The other one is idle for a quarter of the time."""

    size = 2

    def all_reduce(self, values: list[float]) -> list[float]:
        return [values[0], 0.25] if len(values) == 2 else values


def an_experiment(monkeypatch: pytest.MonkeyPatch, context: Any, trainers: list[FakeTrainer], count: int) -> Experiment:
    """With so many minibatches."""
    monkeypatch.setattr(experiment, "ideal_cost", lambda *_: 1.0)
    monkeypatch.setattr(distributed, "all_gather_object", lambda every, mine: None)
    workload: Any = SimpleNamespace(minibatches=[None] * count)
    return Experiment(context, trainers, workload, hosts=1)  # type: ignore[arg-type]


def test_progress_has_all_ranks_idle_from_the_end_of_an_arms_first_turn_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.0)
    made = an_experiment(monkeypatch, TwoRanks(), [FakeTrainer(COLLECTIVE), FakeTrainer(ODC_MINI)], 4)
    made.run(0, 1, turn=0)
    made.run(1, 1, turn=0)
    made.run(2, 2, turn=1)
    begin = r"^step \d/8(  \d:\d\d left)?  loss \d\.0000  "
    shown = [re.sub(begin, "", line) for line in capsys.readouterr().err.splitlines()]
    collective, odc = (f"({arm.name})" for arm in (COLLECTIVE, ODC_MINI))
    idle = "idle 100 % 25 %"
    warm_up = [f"warming up {collective}", f"warming up {odc}"]
    assert shown == warm_up + [f"{idle} {arm}" for arm in (collective, odc, odc, odc, collective, collective)]


@pytest.mark.parametrize(
    ("shares", "repeated", "others"),
    [
        # The first warms up. At most half of the runs are repeated, the most disturbed ones first.
        ([0.9, 0.1, 0.5, 0.1, 0.7, 0.05, 0.6], 2, (0.1 + 0.5 + 0.1 + 0.05) / 4),
        ([0.9, 0.1, 0.1, 0.2, 0.1], 0, 0.125),
        ([0.0, 0.9, 0.9, 0.9, 0.95, 0.3], 2, (0.3 + 0.9 + 0.9) / 3),
    ],
)
def test_disturbed_turns_are_repeated(
    shares: list[float], repeated: int, others: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: Iterator[float] = iter(shares)
    monkeypatch.setattr(experiment, "MachineLoad", lambda: SimpleNamespace(others=lambda own: next(readings)))
    trainers = [FakeTrainer(COLLECTIVE), FakeTrainer(ODC_MINI)]
    runs = len(shares) - repeated
    made = an_experiment(monkeypatch, OneRank(), trainers, runs)
    for number in range(runs):
        made.run(number, 1, turn=number)
    made.repeat_disturbed()
    assert made.repeated == repeated and made.others == pytest.approx(others)
    assert next(readings, None) is None  # each attempt was measured
    for trainer, record in zip(trainers, made.records.values(), strict=True):
        assert trainer.trained == len(shares)
        assert record.losses() == [1.0 + number for number in range(runs)]  # of the first attempts
        assert [block.first for block in record.blocks] == list(range(runs))
