# SPDX-License-Identifier: Apache-2.0
"""MinibatchSampler.claims: each sample is run once, whoever claims it, and FSDP2 trains as one process does."""

import threading
import time
from collections.abc import Iterator
from multiprocessing import Queue
from typing import Any

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_ranks import dist, run_torch_ranks  # noqa: E402

import libodc  # noqa: E402
from libodc.torch import MinibatchSampler, fsdp2  # noqa: E402

nn = torch.nn
LENGTHS = [100 + 37 * i * i % 5000 for i in range(90)]


def sampler_of(rank: int, size: int, **options: Any) -> MinibatchSampler:
    wanted = {"tail": 0.4, "seed": 3, **options}
    return MinibatchSampler(
        lengths=LENGTHS, minibatch_size=24, max_tokens=6000, rank=rank, num_replicas=size, cost="7b", **wanted
    )


def run_epoch(context: libodc.Context, minibatches: Any, run: Any) -> None:
    """Rank 0 is slow, so that others claim more."""
    for number, microbatches in enumerate(minibatches):
        context.publish()
        for microbatch in microbatches:
            run(number, microbatch)
            time.sleep(0.004 if context.rank == 0 else 0.001)
        context.sync()


def claim_epochs(rank: int, size: int, job: str, lookahead: int, loads: bool, into: Any) -> None:
    sampler = sampler_of(rank, size, lookahead=lookahead)
    source = sampler.loader(range(len(LENGTHS)), collate_fn=list) if loads else sampler
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        context.register("w", 3)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            ran: list[tuple[int, list[int]]] = []

            def run(number: int, one: Any, ran: Any = ran) -> None:
                ran.append((number, list(one)))
                assert not loads or source.microbatch == ran[-1][1]  # although the next has been loaded

            run_epoch(context, source.claims(context), run)
            into.put((epoch, ran, sampler.state_dict()["delivered"]))
        assert abs(sum(context.speeds()) - size) < 1e-9 and context.speeds() != [1.0] * size


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("lookahead", [1, 2])
def test_each_sample_is_run_once(lookahead: int, loads: bool) -> None:
    into: Any = Queue()
    run_ranks(3, claim_epochs, lookahead, loads, into)
    seen: dict[tuple[int, int], list[int]] = {}
    for _ in range(6):
        epoch, ran, delivered = into.get(timeout=60)
        assert delivered == 4
        for number, microbatch in ran:
            assert 0 < sum(LENGTHS[i] for i in microbatch) <= 6000
            seen.setdefault((epoch, number), []).extend(microbatch)
    assert {key: len(samples) for key, samples in sorted(seen.items())} == {
        (epoch, number): 18 if number == 3 else 24 for epoch in range(2) for number in range(4)
    }
    for epoch in range(2):
        assert sorted(i for number in range(4) for i in seen[epoch, number]) == list(range(90))


class Noted(list[int]):
    """A dataset that says how many samples have been loaded."""

    def __init__(self) -> None:
        super().__init__(range(len(LENGTHS)))
        self.loaded = 0
        self.more = threading.Condition()

    def __getitem__(self, index: Any) -> Any:
        with self.more:
            self.loaded += 1
            self.more.notify_all()
        return super().__getitem__(index)


def loads_ahead(rank: int, size: int, job: str) -> None:
    dataset = Noted()
    loader = sampler_of(rank, size, tail=1.0).loader(dataset, collate_fn=list)
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        context.register("w", 3)
        ran = 0
        for microbatches in loader.claims(context):
            context.publish()
            samples = 18 if ran == 72 else 24
            end = ran + samples
            for microbatch in microbatches:
                ran += len(microbatch)
                with dataset.more:  # while this one is computed
                    assert ran == end or dataset.more.wait_for(lambda: dataset.loaded > ran, 30)  # noqa: B023
            assert ran == end
            context.sync()


def test_the_next_microbatch_is_claimed_and_loaded_while_one_is_computed() -> None:
    run_ranks(1, loads_ahead)


def repeats(rank: int, size: int, job: str) -> None:
    """What is planned comes first, the costliest first; a state goes on after the minibatch that the loop is at."""
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        sampler = sampler_of(rank, size)
        minibatches = sampler.claims(context)
        first = list(next(minibatches))
        context.sync()
        state = sampler.state_dict()
        resumed = sampler_of(rank, size)
        resumed.load_state_dict(state)
        order = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(3)).tolist()
        made = libodc.plan([LENGTHS[i] for i in order[:24]], size, max_tokens=6000, cost="7b", speeds=[1, 1], tail=0.4)
        planned = [[order[i] for i in one] for one in made.ranks[rank]]
        items = [[order[i] for i in one] for one in made.items]
        assert first[: len(planned)] == planned
        assert first[len(planned) :] == [items[i] for i in context.claims(0)]
        second = [i for one in next(resumed.claims(context)) for i in one]
        assert set(second) <= set(order[24:48])
        context.sync()
        with pytest.raises(ValueError, match="for rank 0 of 7, but this is rank"):
            sampler_of(0, 7).claims(context)
        with pytest.raises(ValueError, match="only LB-Mini"):
            sampler_of(rank, size, policy="lb-micro").claims(context)


def test_planned_microbatches_come_first() -> None:
    run_ranks(2, repeats)
    with pytest.raises(ValueError, match="tail is 2"):
        sampler_of(0, 1, tail=2)


def told_by_rank(rank: int, size: int, job: str) -> None:
    """What samples_by_rank() tells is not what claims() gives."""
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        context.register("w", 3)
        sampler = sampler_of(rank, size)
        sampler.samples_by_rank()
        for claims in (sampler.claims, sampler.loader(range(len(LENGTHS)), collate_fn=list).claims):
            with pytest.raises(ValueError, match=r"samples_by_rank\(\) was asked for epoch 0: .* any rank may get any"):
                claims(context)
        assert len(list(sampler)) == 4  # iterating gives them
        sampler.samples_by_rank()
        sampler.set_epoch(1)
        ran = take(sampler, context, 0.001)
        assert len(ran) == 4


def test_samples_by_rank_are_not_those_of_claims() -> None:
    run_ranks(2, told_by_rank)


def take(sampler: MinibatchSampler, context: libodc.Context, delay: float, repeat: Any = None) -> list[Any]:
    ran: list[list[Any]] = []
    for microbatches in sampler.claims(context, repeat=repeat):
        context.publish()
        ran.append([])
        for microbatch in microbatches:
            ran[-1].append(list(microbatch))
            time.sleep(delay)
        assert (len(context.claims()) > 0) <= (repeat is None)
        context.sync()
    return ran


def run_twice(rank: int, size: int, job: str) -> None:
    """Another rank is slow the second time, and would be given less."""
    with libodc.init(rank=rank, size=size, job=job, timeout=60) as context:
        context.register("w", 3)
        sampler = sampler_of(rank, size, lookahead=2)
        first = take(sampler, context, 0.004 if rank == 0 else 0.001)
        assert sampler.taken == first
        again = sampler_of(rank, size, lookahead=2)
        assert take(again, context, 0.004 if rank == 1 else 0.001, repeat=first) == first == again.taken
        with pytest.raises(ValueError, match="repeat has 1 minibatches; 4 are left of epoch 0"):
            next(sampler_of(rank, size, lookahead=2).claims(context, repeat=first[:1]))


def test_a_run_is_repeated() -> None:
    run_ranks(3, run_twice)


def model_of() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def loss_of(model: Any, microbatch: Iterator[int]) -> Any:
    return sum(model(torch.tensor([i % 7, i % 5, i % 3], dtype=torch.float64)).sum() for i in microbatch)


def train(rank: int, size: int) -> None:
    model = model_of()
    torch.distributed.fsdp.fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = model_of()
    sampler = sampler_of(rank, size, lookahead=2)
    with fsdp2.attach(model, optimizer, timeout=60) as job:
        for microbatches in sampler.claims(job):
            mine = []
            for microbatch in microbatches:
                loss_of(model, iter(microbatch)).backward()
                mine.append(microbatch)
            report = job.sync_gradients(divisor=24)
            assert report.microbatches[rank] == len(mine) and report.claimed[rank] == len(
                job.context.claims(report.minibatch)
            )
            assert len(report.speeds) == size and sum(report.claimed) > 0
            assert report.planned[rank] == len(mine) - report.claimed[rank]
            everyone: list[Any] = [None] * size
            dist.all_gather_object(everyone, mine)
            samples = [i for of_rank in everyone for one in of_rank for i in one]
            alone.zero_grad()
            (loss_of(alone, iter(samples)) / 24).backward()
            for parameter, other in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad.full_tensor(), other.grad, rtol=1e-11, atol=1e-12)
                other.data -= 0.1 * other.grad
            optimizer.step()
            model.zero_grad()


def test_fsdp2_trains_on_what_is_claimed() -> None:
    run_torch_ranks(2, train)
