# SPDX-License-Identifier: Apache-2.0
"""A rank's run of grpo.py: the warm-up, then every arm from the same parameters."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

import policy
import torch
from experiment import ExperimentError
from group import process_group
from job import join
from learner import Record
from load import MachineLoad
from progress import LiveLine
from report import Outcome, difference, report
from settings import Settings
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from ways import ARMS

import libodc


class SettingsError(ValueError):
    """The settings do not fit the number of ranks."""


def run(settings: Settings) -> int:
    """The exit status."""
    torch.set_num_threads(1)  # one rank per core
    try:
        context = join()
    except libodc.Error as error:
        print(f"grpo.py: {error}", file=sys.stderr)
        return 2
    rank = context.rank
    try:
        with context:  # exceptions reach the other ranks, too
            _check(settings, context.size)
            if rank == 0:
                settings.report.mkdir(parents=True, exist_ok=True)
            with process_group(context) as mesh:
                _compare(settings, context, mesh)
    except (SettingsError, ExperimentError, OSError) as error:
        if rank == 0:
            print(f"grpo.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, ExperimentError) else 2
    return 0


def _check(settings: Settings, ranks: int) -> None:
    for name, least in (("prompts", settings.prompts), ("answers", settings.answers)):
        if least < ranks:
            raise SettingsError(f"--{name} {least}: equal counts need at least one for each of {ranks} ranks")


def _compare(settings: Settings, context: libodc.Context, mesh: DeviceMesh) -> None:
    line, load, before_all = LiveLine(), MachineLoad(), sum(os.times()[:4])

    def show(text: str) -> None:
        if context.rank == 0:
            line.show(text)

    base = policy.warmed_up(
        settings,
        mesh,
        lambda number, loss: show(f"warm-up {number + 1}/{settings.warm_up}  loss {loss:.4f}"),
    )
    outcomes: dict[str, Outcome] = {}
    for arm in settings.arms:
        learner = ARMS[arm](settings, context, mesh, base)
        records: list[Record] = []
        before = learner.evaluate()
        begin = time.monotonic()
        for number in range(settings.rollouts):
            records.append(learner.run(number))
            show(f"{arm}: rollout {number + 1}/{settings.rollouts}  reward {records[-1].reward:.3f}")
        seconds = time.monotonic() - begin
        held_out = before, learner.evaluate()
        digest = policy.digest(learner.policy)
        learner.close()
        everyone: list[Any] = [None] * context.size
        distributed.all_gather_object(everyone, records)
        outcomes[arm] = Outcome(everyone, held_out, seconds, digest)
    own: list[Any] = [None] * context.size
    distributed.all_gather_object(own, (sum(os.times()[:4]) - before_all, platform.node()))
    if context.rank == 0:
        line.clear()
        others = load.others(sum(seconds for seconds, node in own if node == platform.node()))
        report(settings, context.size, outcomes, others)
    if (found := difference(outcomes)) is not None:
        raise ExperimentError(found)
