# SPDX-License-Identifier: Apache-2.0
"""The task: to sort digits. Its answers are long-tailed, as the numbers of digits are, and a reward needs no model."""

from __future__ import annotations

import random
from collections.abc import Sequence

SORT, END, START = 10, 11, 12  # after the digits: begins an answer, ends it, comes before a prompt
VOCABULARY = 13
LEAST, MOST = 2, 12  # digits


def draw_prompt(source: random.Random) -> list[int]:
    count = min(MOST, int(LEAST * source.paretovariate(1.0)))
    return [source.randrange(10) for _ in range(count)]


def prompts_of(seed: int, rollout: int, count: int) -> list[list[int]]:
    """The same on all ranks and in all arms."""
    source = random.Random(f"{seed} {rollout}")
    return [draw_prompt(source) for _ in range(count)]


def solution(prompt: Sequence[int]) -> list[int]:
    return [*sorted(prompt), END]


def most_tokens(prompt: Sequence[int]) -> int:
    """Of an answer, which is cut there."""
    return 2 * len(prompt) + 2


def reward(prompt: Sequence[int], answer: Sequence[int]) -> float:
    """1 for the sorted digits and nothing after them, otherwise 0."""
    return float(list(answer) == solution(prompt))
