# SPDX-License-Identifier: Apache-2.0
"""Emulated devices for the update: an answer takes the time of a 7B model's, by sleeping, so more ranks than there are
cores show what a schedule and a plan do. Each of the task's tokens stands for a thousand."""

from __future__ import annotations

import random

from emulation import Device
from settings import Settings
from workload import CostModel

_TOKENS = 1000  # for which one stands
LONGEST = 32
"""Tokens of an answer, with its prompt, that takes --emulate seconds."""
_COST = CostModel("7b", 1 << 30)


def device_of(settings: Settings) -> Device:
    return Device(settings.blocks, settings.emulate / _COST.of(LONGEST * _TOKENS))


def cost_of(tokens: int) -> float:
    """Of an answer with its prompt."""
    return _COST.of(tokens * _TOKENS)


def speed_of(settings: Settings, rollout: int, minibatch: int, rank: int) -> float:
    """Of a rank's device, the same in all arms; `odc replay --noise` has the same distribution. No plan knows it."""
    return 1 + settings.noise * random.Random(f"{settings.seed} {rollout} {minibatch} {rank}").uniform(-1, 1)


def planning(settings: Settings) -> tuple[int, str]:
    """By what a plan multiplies the task's tokens, and the cost model that it uses."""
    return (_TOKENS, _COST.name) if settings.emulate > 0 else (1, "linear")
