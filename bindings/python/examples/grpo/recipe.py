# SPDX-License-Identifier: Apache-2.0
"""A rank's run of grpo.py: the warm-up, then every arm from the same parameters."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import policy
from corpus import InputError
from decoder import Decoder
from experiment import ExperimentError
from group import process_group
from job import make_report, on_all
from learner import Record
from load import MachineLoad
from outcome import Outcome, difference
from progress import LiveLine, Progress
from report import report
from settings import Settings
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from ways import ARMS, EqualLearner

import libodc


def run(settings: Settings, context: libodc.Context) -> None:
    """Collective. Raises InputError, ExperimentError."""
    on_all(context, lambda: _check(settings, context.size))
    on_all(context, lambda: make_report(settings.report, context))
    with process_group(context) as mesh:
        _compare(settings, context, mesh)


def _check(settings: Settings, ranks: int) -> None:
    if not any(issubclass(ARMS[arm], EqualLearner) for arm in settings.arms):
        return
    for name, least in (("prompts", settings.prompts), ("answers", settings.answers)):
        if least < ranks:
            raise InputError(f"--{name} {least}: equal counts need at least one for each of {ranks} ranks")


def _warmed_up(settings: Settings, context: libodc.Context, mesh: DeviceMesh) -> Decoder:
    line = LiveLine()

    def show(number: int, loss: float) -> None:
        if context.rank == 0:
            line.show(f"warm-up {number + 1}/{settings.warm_up}  loss {loss:.4f}")

    return policy.warmed_up(settings, mesh, show)


def _compare(settings: Settings, context: libodc.Context, mesh: DeviceMesh) -> None:
    load, before_all = MachineLoad(), sum(os.times()[:4])
    base = _warmed_up(settings, context, mesh)
    rollouts = len(settings.arms) * settings.rollouts
    progress = Progress("rollout", rollouts, float(rollouts))
    outcomes: dict[str, Outcome] = {}
    for arm in settings.arms:
        learner = ARMS[arm](settings, context, mesh, base)
        records: list[Record] = []
        before = learner.evaluate()
        begin = end = time.monotonic()
        for number in range(settings.rollouts):
            records.append(learner.run(number))
            last, end = end, time.monotonic()
            if context.rank == 0:
                progress.step(1.0, end - last, f"reward {records[-1].reward:.3f}  ({arm})", warm_up=number == 0)
        seconds = end - begin
        held_out = before, learner.evaluate()
        digest = policy.digest(learner.policy)
        learner.close()
        everyone: list[Any] = [None] * context.size
        distributed.all_gather_object(everyone, records)
        outcomes[arm] = Outcome(everyone, held_out, seconds, digest)
    own: list[Any] = [None] * context.size
    distributed.all_gather_object(own, (sum(os.times()[:4]) - before_all, platform.node()))
    if context.rank == 0:
        progress.clear()
        others = load.others(sum(seconds for seconds, node in own if node == platform.node()))
        report(settings, context.size, outcomes, others)
    if (found := difference(outcomes)) is not None:
        raise ExperimentError(found)
