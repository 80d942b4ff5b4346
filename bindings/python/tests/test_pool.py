# SPDX-License-Identifier: Apache-2.0
"""Samples that ranks make themselves: known to all, and moved to the ranks that want them."""

import multiprocessing
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

import libodc

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch_ranks import run_torch_ranks  # noqa: E402

import libodc.torch.fsdp2  # noqa: E402
from libodc.torch import MinibatchSampler, Pool  # noqa: E402

README = Path(__file__).parents[1] / "README.md"
CODE = re.search(r"```python\n(with job\.unsharded\(\), torch\.no_grad\(\):.*?)```", README.read_text(), re.S)
FIELDS = {"tokens": torch.int64, "chosen": torch.bool, "scores": torch.float32, "half": torch.bfloat16}


def made(number: int) -> dict[str, Any]:
    """What any rank would make under this number; some fields are empty."""
    draw = torch.Generator().manual_seed(number)
    length = int(torch.randint(0, 40, (), generator=draw))
    scores = torch.randn(number % 3, generator=draw)
    return {
        "tokens": torch.randint(-(2**40), 2**40, (1 + length,), generator=draw),
        "chosen": torch.randint(0, 2, (length,), generator=draw).bool(),
        "scores": scores,
        "half": scores.bfloat16(),
    }


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one
    )


def exchanging(rank: int, size: int, job: str, seed: int) -> None:
    """Some ranks make nothing, some want nothing, and samples are wanted by several ranks."""
    draw = random.Random(seed)
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        for _ in range(4):
            context.publish()
            for _ in range(2):
                numbers = sorted(draw.sample(range(10_000), draw.choice((0, 1, 17, 40))))
                maker = {number: draw.choice((0, size - 1)) for number in numbers}
                pool = Pool(context, {n: made(n) for n in numbers if maker[n] == rank}, FIELDS)
                assert pool.numbers == numbers and len(pool) == len(numbers)
                for name, sizes in pool.sizes.items():
                    assert sizes.dtype == torch.int64
                    assert sizes.tolist() == [made(number)[name].numel() for number in numbers]
                for _ in range(2):
                    counts = [draw.randint(0, len(numbers)) if draw.random() < 0.7 else 0 for _ in range(size)]
                    wanted = [draw.sample(range(len(numbers)), count) for count in counts]
                    found = pool.fetch(wanted)
                    assert found.keys() == set(wanted[rank])
                    assert all(equal(sample, made(numbers[index])) for index, sample in found.items())
            context.sync()
            assert context.stats().slice_bytes == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_rank_gets_what_it_wants(size: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_ranks(size, exchanging, seed)


def waiting(rank: int, size: int, job: str, fetched: Any) -> None:
    """Ranks 0 and 1 have each other's samples before rank 2 fetches; no more moves than is wanted."""
    wanted = [[1], [0, 1], [0, 1, 2]]
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        context.publish()
        pool = Pool(context, {rank: {"bytes": torch.full((1000,), rank, dtype=torch.uint8)}}, {"bytes": torch.uint8})
        before = context.stats().gather_bytes
        if rank == 2:
            assert all(fetched.acquire(timeout=30) for _ in range(2))
        found = pool.fetch(wanted)
        assert [found[i]["bytes"].tolist() for i in wanted[rank]] == [[i] * 1000 for i in wanted[rank]]
        assert context.stats().gather_bytes - before == (2000 if rank == 2 else 1000)
        fetched.release()
        context.sync()


def test_only_what_is_wanted_moves_and_only_its_makers_are_waited_for() -> None:
    run_ranks(3, waiting, multiprocessing.Semaphore(0))


def writing(rank: int, size: int, job: str) -> None:
    """What is written into a fetched sample, or into what the pool was made of, is in no other fetch on any rank."""
    fields = {"tokens": torch.int64}
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        context.publish()
        mine = {rank: {"tokens": torch.full((3,), 10 + rank)}}
        pool = Pool(context, mine, fields)
        mine[rank]["tokens"].fill_(-1)
        for _ in range(2):
            for sample in pool.fetch([[0, 1], [0, 1]]).values():
                sample["tokens"].fill_(-2)
        found = pool.fetch([[0, 1], [0, 1]])
        assert [found[i]["tokens"].tolist() for i in range(2)] == [[10] * 3, [11] * 3]
        assert mine[rank]["tokens"].tolist() == [-1] * 3
        context.sync()


def test_each_fetch_gives_tensors_of_its_own() -> None:
    run_ranks(2, writing)


def between_sync_and_step(rank: int, size: int) -> None:
    """A pool there would publish: it is refused, and clipping and the step go on. After a step that is skipped, with
    gradients cleared, it is none, whoever runs a forward before."""
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    one, fields, x = {rank: {"tokens": torch.arange(2)}}, {"tokens": torch.int64}, torch.ones(1, 4)
    with libodc.torch.fsdp2.attach(model, optimizer, timeout=30) as job:
        pool = Pool(job, one, fields)
        for number in range(3):
            model(x).sum().backward()
            job.sync_gradients(divisor=1.0)
            for call in (partial(Pool, job, one, fields), partial(pool.fetch, [[0], [1]])):
                with pytest.raises(libodc.PhaseError, match=r"^a Pool between sync_gradients\(\) and optimizer\.step"):
                    call()
            assert job.clip_grad_norm_(1.0) > 0
            if number != 1:
                optimizer.step()
            optimizer.zero_grad()
            if number == 1 and rank == 0:
                model(x)
            pool = Pool(job, one, fields)
            assert len(pool) == size and pool.fetch([[1], [0]]).keys() == {1 - rank}
        with job.editing(), pytest.raises(libodc.PhaseError, match=r"^a Pool within editing"):
            Pool(job, one, fields)
    with pytest.raises(libodc.PhaseError, match=r"^a Pool: this job has been closed"):
        Pool(job, one, fields)


def test_a_pool_between_sync_and_step_is_refused() -> None:
    run_torch_ranks(2, between_sync_and_step)


def refusing(rank: int, size: int, job: str) -> None:
    one = {"tokens": torch.arange(3)}
    ints = {"tokens": torch.int64}
    with libodc.init(rank=rank, size=size, job=job, timeout=30) as context:
        context.publish()
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: Pool(context, {-1: one}, ints), "the number -1"),
            (lambda: Pool(context, {3: {}}, ints), r"sample 3 has the fields \[\], the pool \['tokens'\]"),
            (lambda: Pool(context, {3: one}, {"tokens": torch.int32}), '"tokens" of sample 3 is torch.int64'),
            (lambda: Pool(context, {3: {"tokens": torch.zeros(1, 1).long()}}, ints), r"of shape \(1, 1\)"),
        ]
        for call, words in wrong:
            with pytest.raises(libodc.ArgumentError, match=words):
                call()
        with pytest.raises(libodc.ArgumentError, match="ranks 0 and 1 both have a sample of number 7"):
            Pool(context, {7: one, 8 + rank: one}, ints)
        with pytest.raises(libodc.MismatchError, match="ranks 0 and 1 give a pool other fields"):
            Pool(context, {}, {f"tokens{rank}": torch.int64})
        pool = Pool(context, {rank: one}, ints)
        with pytest.raises(libodc.ArgumentError, match="1 lists of samples for 2 ranks"):
            pool.fetch([[]])
        with pytest.raises(libodc.ArgumentError, match="rank 1 wants sample 2, and there are 2"):
            pool.fetch([[], [2]])
        assert pool.fetch([[1], []]).keys() == ({1} if rank == 0 else set())
        context.sync()


def test_bad_arguments_are_told() -> None:
    run_ranks(2, refusing)


@pytest.mark.parametrize("lookahead", [1, 2])
def test_a_sampler_says_what_each_rank_needs(lookahead: int) -> None:
    lengths = torch.tensor([random.Random(3).randrange(1, 900) for _ in range(50)])
    options: dict[str, Any] = {"lengths": lengths, "minibatch_size": 12, "max_tokens": 1000, "lookahead": lookahead}
    samplers = [MinibatchSampler(rank=rank, num_replicas=3, **options) for rank in range(3)]
    for epoch in range(2):
        for one in samplers:
            one.set_epoch(epoch)
        told = [one.samples_by_rank() for one in samplers]
        runs = [[i for minibatch in one for microbatch in minibatch for i in microbatch] for one in samplers]
        assert told == [runs] * 3
        assert sorted(i for one in runs for i in one) == list(range(50))
    iterator = iter(samplers[0])
    first = next(iterator)
    resumed = MinibatchSampler(rank=0, num_replicas=3, **options)
    resumed.load_state_dict(samplers[0].state_dict())
    left = [i for minibatch in iterator for microbatch in minibatch for i in microbatch]
    assert resumed.samples_by_rank()[0] == left and sum(map(len, first)) + len(left) == len(runs[0])


def reader(rank: int, size: int) -> None:
    """The README's example, around a policy and answers of the reader's own."""
    torch.manual_seed(0)
    model, reference = (fully_shard(nn.Linear(4, 1)) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    trained: list[int] = []

    def loss_sum(model: Any, microbatch: list[dict[str, Any]]) -> Any:
        trained.extend(len(one["tokens"]) for one in microbatch)
        return sum(model(torch.full((1, 4), float(len(one["tokens"])))).square().sum() for one in microbatch)

    def generate(model: Any, number: int) -> dict[str, Any]:
        model(torch.ones(1, 4))
        return {"tokens": torch.arange(1 + number), "advantage": torch.ones(1)}

    with libodc.torch.fsdp2.attach(model, optimizer) as job, libodc.torch.fsdp2.attach(reference) as reading:
        x, mine = torch.ones(1, 4), range(rank, 40, 3)
        before = reference(x).item()
        names = {**globals(), **locals()}
        exec(CODE[1] if CODE else "", names)
        assert model(x).item() == reference(x).item() != before
    everyone: list[Any] = [None] * size
    torch.distributed.all_gather_object(everyone, trained)
    assert all(everyone)
    made = [1 + number for one in range(size) for number in range(one, 40, 3)]
    assert sorted(length for one in everyone for length in one) == sorted(made)


def test_the_readme_example_runs() -> None:
    run_torch_ranks(2, reader)
