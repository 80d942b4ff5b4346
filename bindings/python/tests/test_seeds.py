# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a microbatch are the same on every rank, and leave the process's own alone."""

import random
from pathlib import Path

import numpy
import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
from libodc.torch import MinibatchSampler, seeded  # noqa: E402

LENGTHS = [1 + 7 * i % 50 for i in range(60)]
Drawn = tuple[float, float, list[float]]


def sampler(rank: int = 0, ranks: int = 1) -> MinibatchSampler:
    return MinibatchSampler(lengths=LENGTHS, minibatch_size=20, max_tokens=60, rank=rank, num_replicas=ranks, seed=7)


def microbatches() -> list[list[int]]:
    """Those of three ranks, in all minibatches of an epoch."""
    return [one for rank in range(3) for minibatch in sampler(rank, 3) for one in minibatch]


def draw() -> Drawn:
    mask = torch.nn.functional.dropout(torch.ones(40), 0.5)
    return random.random(), float(numpy.random.rand()), mask.tolist()


def compute(rank: int, _size: int, _job: str, folder: Path) -> None:
    """Each rank computes all microbatches, in an order of its own, after drawing other numbers."""
    torch.manual_seed(rank)
    mine = microbatches()
    random.Random(rank).shuffle(mine)
    drawn = {}
    for microbatch in mine:
        draw()
        with seeded(sampler().seed_of(microbatch)):
            drawn[tuple(microbatch)] = draw()
    torch.save(drawn, folder / str(rank))


def test_masks_are_the_same_whoever_computes(tmp_path: Path) -> None:
    run_ranks(3, compute, tmp_path)
    first, *others = (torch.load(tmp_path / str(rank)) for rank in range(3))
    assert all(other == first for other in others)
    masks = [tuple(mask) for _, _, mask in first.values()]
    assert len(first) == len(microbatches()) > 10 and len(set(masks)) == len(masks)
    assert {drawn[0] for drawn in first.values()}.isdisjoint(drawn[1] for drawn in first.values())


def test_a_seed_is_of_the_samples_the_epoch_and_the_sampler() -> None:
    one = sampler()
    seeds = [one.seed_of([1, 2]), one.seed_of([2, 1]), one.seed_of([12])]
    one.set_epoch(1)
    seeds.append(one.seed_of([1, 2]))
    one.seed += 1
    seeds.append(one.seed_of([1, 2]))
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 1 << 63 for seed in seeds)
    assert sampler().seed_of([1, 2]) == seeds[0] == 3668851506667041200  # the same in every version


@pytest.mark.parametrize("raises", [False, True])
def test_the_process_goes_on_as_if_the_block_had_not_been(raises: bool) -> None:
    def begin() -> None:
        torch.manual_seed(1)
        random.seed(2)
        numpy.random.seed(3)

    begin()
    expected = [draw(), draw()]
    begin()
    taken = [draw()]
    try:
        with seeded(5):
            draw()
            if raises:
                raise KeyError
    except KeyError:
        pass
    assert [*taken, draw()] == expected


def test_recomputed_activations_have_the_same_masks() -> None:
    """Checkpointing keeps the state of the forward, also where its backward is outside the block."""
    x = torch.ones(40, requires_grad=True)
    with seeded(9):
        y = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, 0.5, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
