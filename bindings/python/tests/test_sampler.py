# SPDX-License-Identifier: Apache-2.0
"""MinibatchSampler against libodc.plan and torch's own permutation."""

import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import libodc

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DistributedSampler, IterableDataset  # noqa: E402

from libodc.torch import MinibatchSampler, sampler  # noqa: E402

BUDGET = 4096


def some_lengths(count: int) -> list[int]:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    return [draw.randrange(1, BUDGET + 1) for _ in range(count)]


def samplers(ranks: int, lengths: Any, **options: Any) -> list[MinibatchSampler]:
    arguments = {"lengths": lengths, "minibatch_size": 16, "max_tokens": BUDGET, **options}
    return [MinibatchSampler(rank=rank, num_replicas=ranks, **arguments) for rank in range(ranks)]


def samples_of(minibatches: tuple[list[list[int]], ...]) -> set[int]:
    """Of one minibatch: each rank's microbatches."""
    flat = [index for microbatches in minibatches for microbatch in microbatches for index in microbatch]
    assert len(flat) == len(set(flat))
    return set(flat)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [3, 64, 101])
def test_every_sample_is_run_once_as_planned(ranks: int, count: int) -> None:
    lengths = some_lengths(count)
    made = samplers(ranks, lengths, seed=5, cost="7b")
    for epoch in range(2):
        for one in made:
            one.set_epoch(epoch)
        generator = torch.Generator().manual_seed(5 + epoch)
        order = torch.randperm(count, generator=generator).tolist()
        minibatches = list(zip(*made, strict=True))
        assert len(minibatches) == len(made[0]) == -(-count // 16)
        for number, minibatch in enumerate(minibatches):
            samples = order[number * 16 : (number + 1) * 16]
            expected = libodc.plan([lengths[i] for i in samples], ranks, max_tokens=BUDGET, cost="7b").ranks
            assert list(minibatch) == [[[samples[i] for i in m] for m in rank] for rank in expected]
        assert set.union(*map(samples_of, minibatches)) == set(range(count))


def test_order_is_that_of_a_distributed_sampler_of_one_rank() -> None:
    lengths = some_lengths(48)
    (mine,) = samplers(1, lengths, minibatch_size=1, seed=3)
    theirs = DistributedSampler(lengths, num_replicas=1, rank=0, seed=3)
    for epoch in (0, 7):
        mine.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert [minibatch[0][0] for minibatch in mine] == list(theirs)
    mine.set_epoch(0)
    assert list(mine) == list(mine)


def test_the_last_minibatch_is_kept_or_left_out_and_order_without_shuffle_is_the_datasets() -> None:
    lengths = some_lengths(40)
    kept = samplers(2, lengths, shuffle=False)
    assert len(kept[0]) == 3
    assert [samples_of(m) for m in zip(*kept, strict=True)] == [set(range(16)), set(range(16, 32)), set(range(32, 40))]
    left_out = samplers(2, lengths, shuffle=False, drop_last=True)
    assert len(left_out[0]) == len(list(left_out[0])) == 2


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda x: np.array(x, np.uint16)])
def test_lengths_of_every_kind_are_copied(kind: Any) -> None:
    lengths = some_lengths(30)
    given = kind(lengths)
    (one,) = samplers(1, given)
    if kind is not tuple:
        given[0] = 1
    assert list(one) == list(samplers(1, lengths)[0])


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [None, 0])
def test_a_state_gives_exactly_the_rest_on_any_number_of_ranks(ranks: int, workers: int | None) -> None:
    lengths = some_lengths(70)
    whole = samplers(2, lengths, seed=9)
    part = samplers(2, lengths, seed=9)
    for one in whole + part:
        one.set_epoch(4)
    expected = [samples_of(minibatch) for minibatch in zip(*whole, strict=True)]

    def each(one: MinibatchSampler) -> Any:
        return one if workers is None else one.loader(range(70), collate_fn=list, num_workers=workers)

    assert [samples_of(m) for m in itertools.islice(zip(*map(each, part), strict=True), 2)] == expected[:2]
    state = part[0].state_dict()
    assert state == part[1].state_dict() and (state["epoch"], state["delivered"]) == (4, 2)
    others = samplers(ranks, lengths, max_tokens=2 * BUDGET)  # the seed comes with the state
    for one in others:
        one.load_state_dict(state)
        assert one.state_dict() == state
        one.set_epoch(one.epoch)  # as a training loop does it
    assert [samples_of(m) for m in zip(*map(each, others), strict=True)] == expected[2:]
    assert others[0].state_dict()["delivered"] == 5
    assert [samples_of(m) for m in zip(*map(each, others), strict=True)] == expected  # the epoch again, from its start
    end = others[0].state_dict()
    others[0].load_state_dict(end)
    assert list(each(others[0])) == []
    others[0].load_state_dict(state)
    others[0].set_epoch(5)
    assert len(list(each(others[0]))) == 5


def test_a_state_of_something_else_is_refused() -> None:
    lengths = some_lengths(50)
    (one,) = samplers(1, lengths)
    state = one.state_dict()
    for other, words in (
        (samplers(1, lengths[:-1]), "samples=50, this sampler has samples=49"),
        (samplers(1, [*lengths[:-1], lengths[-1] % BUDGET + 1]), "lengths, this sampler has others"),
        (samplers(1, lengths, minibatch_size=8), "minibatch_size=16, this sampler has minibatch_size=8"),
        (samplers(1, lengths, shuffle=False), "shuffle=True, this sampler has shuffle=False"),
        (samplers(1, lengths, drop_last=True), "drop_last=False, this sampler has drop_last=True"),
    ):
        with pytest.raises(ValueError, match=words):
            other[0].load_state_dict(state)
        assert other[0].state_dict()["delivered"] == 0
    with pytest.raises(ValueError, match="lacks delivered, seed, drop_last"):
        one.load_state_dict({"epoch": 1, "samples": 50, "lengths": "", "minibatch_size": 16, "shuffle": True})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"delivered": -3}, "the state's delivered is -3, must be at least 0"),
        ({"delivered": 99}, "the state has 99 minibatches delivered, an epoch has 4"),
        ({"delivered": "1"}, "the state's delivered is '1', must be an integer"),
        ({"seed": None}, "the state's seed is None, must be an integer"),
        ({"epoch": -1}, "the state's epoch is -1, must be at least 0"),
        ({"window": []}, r"minibatches of \[\] samples; after 1 that were delivered it has \[3, 3\]"),
        ({"window": [[1, 2, 3]]}, r"minibatches of \[3\] samples; after 1 that were delivered it has \[3, 3\]"),
        ({"window": [[1, 2, 3], [3, 4, 5]]}, "all of them different"),
        ({"window": [[1, 2, 3], [4, 5, 10**6]]}, "has sample 1000000, which is not in that window"),
        ({"window": [[1, 2, 3], [4, 5, "x"]]}, "must be lists of indices"),
        ({"window": 5}, "the state's window is 5, must be lists of indices"),
    ],
)
def test_a_damaged_state_is_refused(changed: dict[str, Any], words: str) -> None:
    one = MinibatchSampler(lengths=range(1, 12), minibatch_size=3, max_tokens=11, lookahead=3)
    next(iter(one))
    state = one.state_dict()
    one.load_state_dict(state)
    with pytest.raises(ValueError, match=words):
        one.load_state_dict({**state, **changed})


def test_a_window_of_another_order_is_refused() -> None:
    one = MinibatchSampler(lengths=range(1, 12), minibatch_size=3, max_tokens=11, lookahead=3, seed=7)
    state = one.state_dict()
    samples = [[i for microbatch in minibatch for i in microbatch] for minibatch in one]
    state["delivered"], state["window"] = 2, [samples[1]]  # one that has been run: the state may be edited by hand
    one.load_state_dict(state)
    state["window"] = [[*samples[1][:2], samples[3][0]]]
    with pytest.raises(ValueError, match=rf"has sample {samples[3][0]}, which is not in that window of epoch 0"):
        one.load_state_dict(state)
    with pytest.raises(ValueError, match="which is not in that window of epoch 1"):
        one.load_state_dict({**state, "epoch": 1, "window": [samples[1]]})


def test_minibatches_of_a_sorted_window_are_shuffled() -> None:
    lengths = list(range(1, 8 * 16 + 3))  # the last minibatch of the last window has 2 samples
    options: dict[str, Any] = {"lengths": lengths, "minibatch_size": 4, "max_tokens": 1000, "lookahead": 16}
    one = MinibatchSampler(**options, window_order="sorted", shuffle=False)
    costs = [max(lengths[i] for microbatch in minibatch for i in microbatch) for minibatch in one]
    first, second = costs[:16], costs[16:32]
    assert sorted(first, reverse=True) == list(range(64, 0, -4)) and len(costs) == 33
    assert first not in (sorted(first), sorted(first, reverse=True))
    assert [cost - 64 for cost in second] != first  # each window in its own order
    assert costs == [
        max(lengths[i] for microbatch in minibatch for i in microbatch)
        for minibatch in MinibatchSampler(**options, window_order=libodc.WindowOrder.SORTED, shuffle=False)
    ]
    uneven = MinibatchSampler(**{**options, "lengths": lengths[:62]}, window_order="sorted", shuffle=False)
    assert [len([i for microbatch in minibatch for i in microbatch]) for minibatch in uneven] == [4] * 15 + [2]


def test_an_abandoned_iteration_no_longer_counts() -> None:
    (one,) = samplers(1, some_lengths(64))
    abandoned = iter(one)
    next(abandoned)
    one.set_epoch(1)
    next(abandoned)
    assert (one.state_dict()["epoch"], one.state_dict()["delivered"]) == (1, 0)
    abandoned, begun_again = iter(one), iter(one)
    next(begun_again)
    next(abandoned)
    assert one.state_dict()["delivered"] == 1


@pytest.mark.parametrize("lookahead", [1, 2])
def test_what_samples_by_rank_tells_is_planned_once(lookahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(function: Any) -> Any:
        return lambda *args, **options: (calls.append(function), function(*args, **options))[1]

    lengths = some_lengths(64)
    one, untold, other = (samplers(3, lengths, lookahead=lookahead)[1] for _ in range(3))
    for name in ("plan", "plan_window"):
        monkeypatch.setattr(sampler, name, counted(getattr(sampler, name)))
    plans = len(one) // lookahead

    told = one.samples_by_rank()
    assert one.samples_by_rank() == told and len(calls) == plans
    ran = list(one)
    assert len(calls) == plans
    assert [i for minibatch in ran for microbatch in minibatch for i in microbatch] == told[1]
    assert list(one) == ran == list(untold)  # again from the beginning, now planned as it runs

    calls.clear()
    assert one.samples_by_rank() == told
    assert list(one.loader(range(64), collate_fn=list)) == ran and len(calls) == plans

    one.samples_by_rank()
    left = iter(one)
    assert next(left) == ran[0]
    one.samples_by_rank()
    for each in (one, untold):  # what was told was of another epoch
        each.set_epoch(1)
    assert list(one) == list(untold) != ran
    assert list(left) == ran[1:]

    begun = iter(other)
    next(begun)
    one.samples_by_rank()
    one.load_state_dict(other.state_dict())
    assert list(one) == list(begun)


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 70

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index * index])


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_the_loader_gives_collated_microbatches(options: dict[str, Any]) -> None:
    lengths = some_lengths(70)
    # 70 = 4 * 16 + 6 samples over 8 ranks: in the last minibatch two have none.
    for one in samplers(8, lengths)[::7]:
        loader = one.loader(Squares(), **options)
        assert len(loader) == 5
        for epoch in range(2):
            one.set_epoch(epoch)
            expected = [[torch.tensor([[i, i * i] for i in m]) for m in minibatch] for minibatch in one]
            for number, (got, wanted) in enumerate(zip(loader, expected, strict=True)):
                assert len(got) == len(wanted) and all(map(torch.equal, got, wanted))
                assert one.state_dict()["delivered"] == number + 1


class Batched(Squares):
    def __getitems__(self, indices: list[int]) -> list[str]:
        return [f"{i} of {len(indices)}" for i in indices]


def test_empty_minibatches_and_datasets_that_fetch_many_at_once() -> None:
    made = samplers(4, [1] * 70, minibatch_size=2, shuffle=False)
    minibatches = list(zip(*(one.loader(Batched(), collate_fn="+".join, num_workers=1) for one in made), strict=True))
    assert all(sum(m == [] for m in minibatch) == 2 for minibatch in minibatches) and len(minibatches) == 35
    assert sorted(m for minibatch in minibatches for m in minibatch)[-1] == ["9 of 1"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lengths": [5, 0, 7]}, "sample 1 has 0 tokens; each needs at least one: leave it out"),
        ({"tail": "x"}, "tail is 'x', must be a number"),
        ({"most_moved": "a"}, "most_moved is 'a', must be a number"),
        ({"most_displacement": None}, "most_displacement is None, must be a number"),
        ({"lengths": [5, 6, 70]}, "sample 2 has 70 tokens, more than max_tokens=64; cut it"),
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": [[1, 2]]}, r"shape \(1, 2\); it must be 1-D"),
        ({"lengths": [1.5]}, "must be integers"),
        ({"lengths": np.array([True])}, "must be integers"),
        ({"lengths": "abc"}, "must be a sequence of integers"),
        ({"minibatch_size": 0}, "minibatch_size is 0, must be at least 1"),
        ({"minibatch_size": 2.5}, "minibatch_size is 2.5, must be an integer"),
        ({"max_tokens": 0}, "max_tokens is 0, must be at least 1"),
        ({"rank": 2, "num_replicas": 2}, r"rank is 2, must be in 0\.\.1: num_replicas is 2"),
        ({"rank": 1}, r"rank is 1, must be in 0\.\.0: num_replicas is 1"),
        ({"rank": -1}, "rank is -1, must be at least 0"),
        ({"policy": "best"}, "none of local-sort, lb-micro, lb-mini, sorted-rows"),
        ({"cost": "70b"}, "no cost model"),
        ({"policy": "lb-micro", "num_replicas": 4}, "LB-Micro cannot give each of 4 ranks a microbatch of 2"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MinibatchSampler(**{"lengths": [5, 6, 7, 8], "minibatch_size": 2, "max_tokens": 64, **given})


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter([1, 2, 3])


def test_bad_datasets_options_and_minibatches_are_refused() -> None:
    one = MinibatchSampler(lengths=[1, 1, 1], minibatch_size=3, max_tokens=1)
    with pytest.raises(ValueError, match="the dataset has 2 samples, the sampler 3 lengths"):
        one.loader([1, 2])
    with pytest.raises(ValueError, match="batch_size, shuffle: the MinibatchSampler decides that"):
        one.loader([1, 2, 3], shuffle=True, batch_size=2)
    with pytest.raises(ValueError, match="has no indices"):
        one.loader(Stream())
    with pytest.raises(ValueError, match="epoch is '1', must be an integer"):
        one.set_epoch("1")  # type: ignore[arg-type]
    one = MinibatchSampler(
        lengths=[64] * 5, minibatch_size=5, max_tokens=64, num_replicas=2, policy="lb-micro", shuffle=False
    )
    with pytest.raises(ValueError, match=r"minibatch 0 of epoch 0 cannot be planned: .*LB-Micro cannot divide"):
        list(one)


def has_a_process_group(rank: int, size: int, job: str, store: str) -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(store, size), rank=rank, world_size=2
    )
    one = MinibatchSampler(lengths=[1], minibatch_size=1, max_tokens=1)
    assert (one.rank, one.num_replicas) == (rank, size)
    torch.distributed.barrier()  # the other may still be connecting
    torch.distributed.destroy_process_group()


def test_rank_comes_from_torch_distributed(tmp_path: Path) -> None:
    run_ranks(2, has_a_process_group, str(tmp_path / "store"))


def test_torch_is_imported_by_odc_torch_only() -> None:
    code = "import sys, libodc; assert 'torch' not in sys.modules; sys.modules['torch'] = None; import libodc.torch"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert (
        "ImportError: libodc.torch needs PyTorch 2.9 or later, which is not installed; pip install 'libodc[torch]'"
        in result.stderr
    )
