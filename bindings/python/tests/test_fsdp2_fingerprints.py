# SPDX-License-Identifier: Apache-2.0
"""The fingerprints by which edits of parameters in their slices are found."""

import random
import time
from collections.abc import Callable

import pytest
from torch_ranks import torch

from libodc.torch.fsdp2 import homes

Tensor = torch.Tensor


def flip_a_bit(values: Tensor, draw: random.Random) -> None:
    values.view(torch.uint8)[draw.randrange(values.nbytes)] ^= 1 << draw.randrange(8)


def swap_elements(values: Tensor, draw: random.Random) -> None:
    one, other = draw.sample(range(len(values)), 2)
    values[[one, other]] = values[[other, one]]


def swap_rows(values: Tensor, draw: random.Random) -> None:
    swap_elements(values[: 64 * 64].view(64, 64), draw)


def negate_two(values: Tensor, draw: random.Random) -> None:
    values[draw.sample(range(len(values)), 2)] *= -1


def negate_all(values: Tensor, draw: random.Random) -> None:
    values.neg_()


def reverse(values: Tensor, draw: random.Random) -> None:
    values.copy_(values.flip(0))


@pytest.mark.parametrize("alter", [flip_a_bit, swap_elements, swap_rows, negate_two, negate_all, reverse])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_fingerprints_differ(alter: Callable[[Tensor, random.Random], None], kind: torch.dtype) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(20):
        values = torch.rand(8192 + draw.randrange(64), generator=torch.Generator().manual_seed(draw.getrandbits(60)))
        values = (values + 1).to(kind)
        if number % 2:  # rows with equal sums
            values[: 64 * 64] = torch.eye(64, dtype=kind).view(-1)
        was, before = values.clone(), homes.fingerprint(values.view(torch.uint8))
        assert torch.equal(before, homes.fingerprint(was.view(torch.uint8)))
        alter(values, draw)
        same = torch.equal(values.view(torch.uint8), was.view(torch.uint8))
        assert torch.equal(before, homes.fingerprint(values.view(torch.uint8))) == same


def test_fingerprints_are_sums_of_sums() -> None:
    for nbytes in (8193, 8207, 8208, 70000):
        bits = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
        padded = torch.cat([bits, bits.new_zeros(16 - nbytes % 16)])
        sums = padded.view(torch.uint32).to(torch.int64).view(-1, 4)
        last = []
        for _ in range(3):
            sums = sums.cumsum(0)
            last.append(sums[-1])
        low_and_high = torch.stack(last).view(3, 2, 2).permute(2, 0, 1)
        assert torch.equal(homes.fingerprint(bits).view(torch.int64), low_and_high.reshape(-1))
