# SPDX-License-Identifier: Apache-2.0
"""What train.py concludes beside other programs, from given readings of /proc/stat."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import experiment
import load
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
    assert load.verdict(gain, 0.55, 3) == f"{busy}; measured: {gain}"
    assert load.verdict(gain, 0.55, 2) == f"{busy}, 3 pairs of turns are the least; measured: {gain}"
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
        return Step(float(self.trained), 0.0, 1.0, 1.0, 1.0)

    def finish(self) -> None:
        pass


class OneRank:
    rank, size = 0, 1

    def sync(self) -> None:
        pass

    def all_reduce(self, values: list[float]) -> list[float]:
        return values


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
    monkeypatch.setattr(experiment, "ideal_cost", lambda *_: 1.0)
    monkeypatch.setattr(distributed, "all_gather_object", lambda every, mine: None)
    trainers = [FakeTrainer(COLLECTIVE), FakeTrainer(ODC_MINI)]
    runs = len(shares) - repeated
    workload: Any = SimpleNamespace(minibatches=[None] * runs)
    context: Any = OneRank()
    made = Experiment(context, trainers, workload)  # type: ignore[arg-type]
    for number in range(runs):
        made.run(number, 1, turn=number)
    made.repeat_disturbed()
    assert made.repeated == repeated and made.others == pytest.approx(others)
    assert next(readings, None) is None  # each attempt was measured
    for trainer, record in zip(trainers, made.records.values(), strict=True):
        assert trainer.trained == len(shares)
        assert record.losses() == [1.0 + number for number in range(runs)]  # of the first attempts
        assert [block.first for block in record.blocks] == list(range(runs))
