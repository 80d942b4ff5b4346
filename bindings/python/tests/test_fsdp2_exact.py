# SPDX-License-Identifier: Apache-2.0
"""attach(sums="exact"): the same bits whoever runs which microbatch, in any order, on any number of ranks."""

from __future__ import annotations

import hashlib
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsdp2_models import Case, Net, adamw, mesh_of, sample, shard_blocks, square_loss, whole_gradients, whole_parameters
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch_ranks import dist, run_torch_ranks, torch

from libodc import ArgumentError, UnsupportedError
from libodc.torch.fsdp2 import attach

MINIBATCHES, SAMPLES = 4, 7


def float_net() -> Any:
    return Net().float()


def digest(tensors: dict[str, Any]) -> str:
    text = hashlib.sha256()
    for name in sorted(tensors):
        text.update(name.encode() + tensors[name].detach().contiguous().view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def owners(minibatch: int, size: int) -> list[int]:
    """Of each sample the rank that runs it: by chance, so that some ranks may have none."""
    return random.Random(minibatch * 100 + size).choices(range(size), k=SAMPLES)


def train(rank: int, size: int, folder: Path, reduced: str | None, sums: Any) -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduced)) if reduced else MixedPrecisionPolicy()
    case = Case(float_net, partial(shard_blocks, mp_policy=policy))
    model = case.sharded(mesh_of(size))
    optimizer = adamw(model)
    seen = []
    delays = random.Random(rank)
    with attach(model, optimizer, sums=sums) as job:
        for minibatch in range(MINIBATCHES):
            mine = [index for index, owner in enumerate(owners(minibatch, size)) if owner == rank]
            for index in mine if size % 2 else mine[::-1]:
                time.sleep(delays.random() * 0.01)  # so that ranks add in another order each time
                square_loss(model, sample(minibatch, 0, index).float(), 1.0)
            job.sync_gradients(divisor=SAMPLES)
            seen.append(digest({k: v for k, v in whole_gradients(model).items() if v is not None}))
            optimizer.step()
            optimizer.zero_grad()
            seen.append(digest(whole_parameters(model)))
    if dist.get_rank() == 0:
        (folder / f"{size}").write_text("\n".join(seen))


@pytest.mark.parametrize("reduced", [None, "bfloat16"])
def test_the_same_bits_on_any_number_of_ranks(tmp_path: Path, reduced: str | None) -> None:
    for size in (2, 3, 4):
        run_torch_ranks(size, train, tmp_path, reduced, "exact")
    lines = [(tmp_path / f"{size}").read_text().split("\n") for size in (2, 3, 4)]
    assert len(lines[0]) == len(set(lines[0])) == 2 * MINIBATCHES
    assert lines[0] == lines[1] == lines[2]


def refused(rank: int, size: int) -> None:
    model = Net()
    shard_blocks(model, mesh_of(size))
    with pytest.raises(ArgumentError, match="sums is 'fast': "):
        attach(model, adamw(model), sums="fast")  # type: ignore[arg-type]
    with pytest.raises((ArgumentError, UnsupportedError), match="f64"):
        attach(model, adamw(model), sums="exact")
    with attach(model, adamw(model)) as job:  # nothing is left of them
        square_loss(model, sample(0, rank, 0), 1.0)
        job.sync_gradients()


def test_what_cannot_be_summed_exactly_is_refused() -> None:
    run_torch_ranks(2, refused)
