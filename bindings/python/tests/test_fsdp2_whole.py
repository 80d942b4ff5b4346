# SPDX-License-Identifier: Apache-2.0
"""Parameters kept whole for a while, as for generating; a reference that is refreshed from its policy."""

import re
from functools import partial
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Net,
    News,
    Step,
    adamw,
    assert_equal_steps,
    assert_near,
    by_one_process,
    finish,
    mesh_of,
    sample,
    samples,
    shard_blocks,
    square_loss,
    total,
    whole_parameters,
)
from logged import warnings_logged
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch_ranks import dist, run_torch_ranks, torch

import libodc
from libodc.torch.fsdp2 import Job, attach

RESHARDING = {
    "by default": {},
    "always": {"reshard_after_forward": True},
    "never": {"reshard_after_forward": False},
}


def gathers(job: Job) -> int:
    return job.context.stats().gather_calls


def gathers_of_two_evaluations(model: Any, job: Job) -> int:
    before = gathers(job)
    with torch.no_grad():
        for _ in range(2):
            model(sample(100, 0, 0))
    return gathers(job) - before


def generating(rank: int, size: int, options: dict[str, Any], evaluated_before: bool) -> None:
    """Each rank makes another number of forwards, of which one is the first of all, and none waits for another."""
    case = Case(shard=lambda model, mesh: shard_blocks(model, mesh, **options))
    plain, model = case.sharded(mesh_of(size)), case.sharded(mesh_of(size))
    with attach(plain, adamw(plain), timeout=LIMIT) as job:
        usual = gathers_of_two_evaluations(plain, job)
    minibatches, steps = UNEVEN[size], list[Step]()
    optimizer, alone = adamw(model), Net()
    with attach(model, optimizer, timeout=LIMIT) as job:
        if evaluated_before:
            gathers_of_two_evaluations(model, job)
        for minibatch, counts in enumerate(minibatches):
            news = News()
            alone.load_state_dict(whole_parameters(model))
            if rank != 0:
                news.await_from([0])
            with job.unsharded(), torch.no_grad():
                before = gathers(job)
                for index in range(2 * rank + minibatch):
                    x = sample(50, rank, index)
                    assert_near(model(x), alone(x), 1e-12, "the output")
                assert gathers(job) == before
                assert not any(isinstance(one, DTensor) for one in model.parameters())
            news.tell()
            assert all(isinstance(one, DTensor) for one in model.parameters())
            assert size == 1 or gathers_of_two_evaluations(model, job) == usual
            for x in samples(minibatch, rank, counts[rank]):
                case.microbatch(model, x, 1.0)
            job.sync_gradients(divisor=total(counts))
            steps.append(finish(model, optimizer))
    assert_equal_steps(steps, by_one_process(case, minibatches))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("evaluated_before", [False, True])
@pytest.mark.parametrize("resharding", RESHARDING)
def test_generating_gathers_once_and_waits_for_nobody(size: int, resharding: str, evaluated_before: bool) -> None:
    run_torch_ranks(size, generating, RESHARDING[resharding], evaluated_before)


def raising(rank: int, size: int) -> None:
    """Nor does generating count as the beginning of a minibatch, in which a collective is warned of."""
    model = Case().sharded(mesh_of(size))
    with attach(model, adamw(model), timeout=LIMIT) as job:
        with pytest.raises(KeyError), job.unsharded():
            raise KeyError("out of answers")
        assert all(isinstance(one, DTensor) for one in model.parameters())
        with job.unsharded(), torch.no_grad():
            model(sample(0, 0, 0))
        dist.barrier()  # such as one of an evaluation
        square_loss(model, sample(0, rank, 0), 1.0)
        with warnings_logged() as warnings:
            job.sync_gradients(divisor=1.0)
        assert not warnings, warnings
    with pytest.raises(libodc.PhaseError, match="closed or removed"), job.unsharded():
        pass


def test_the_parameters_are_sharded_again_after_an_exception() -> None:
    run_torch_ranks(2, raising)


def nested(rank: int, size: int) -> None:
    """The inner block's end changes nothing for the outer one, where generation may call parts of modules."""
    case = Case()
    model, reference = case.sharded(mesh_of(size)), case.sharded(mesh_of(size))
    optimizer, x = adamw(model), sample(70, 0, 0)
    with attach(model, optimizer, timeout=LIMIT) as job, attach(reference, timeout=LIMIT) as read_only:
        with job.unsharded(), torch.no_grad():
            before = gathers(job)
            with read_only.unsharded(), job.unsharded():
                expected = model(x)
            assert not any(isinstance(one, DTensor) for one in model.parameters())
            assert all(isinstance(one, DTensor) for one in reference.parameters())
            with pytest.raises(KeyError), job.unsharded():
                raise KeyError("out of answers")
            assert torch.equal(model(x), expected) and gathers(job) == before
            assert not any(isinstance(one, DTensor) for one in model.parameters())
        assert all(isinstance(one, DTensor) for one in model.parameters())
        square_loss(model, sample(0, rank, 0), 1.0)
        job.sync_gradients(divisor=1.0)
        optimizer.step()


def test_a_block_inside_another_changes_nothing() -> None:
    run_torch_ranks(2, nested)


def only_forwards(rank: int, size: int) -> None:
    """What would shard the parameters again in the block is refused there, and goes on after it."""
    case = Case()
    model, reference = case.sharded(mesh_of(size)), case.sharded(mesh_of(size))
    optimizer, x = adamw(model), sample(70, 0, 0)
    with attach(model, optimizer, timeout=LIMIT) as job, attach(reference, timeout=LIMIT) as read_only:
        with job.unsharded():
            for name, call in (
                ("sync_gradients()", job.sync_gradients),
                ("a step", optimizer.step),
                ("publish()", job.publish),
                ("publish() by editing()", lambda: job.editing().__enter__()),
                ("refresh_from()", lambda: read_only.refresh_from(job)),
                ("refresh_from()", lambda: job.refresh_from(read_only)),
                ("close()", job.close),
            ):
                with pytest.raises(libodc.PhaseError, match=f"^{re.escape(name)} within unsharded"):
                    call()
                assert not any(isinstance(one, DTensor) for one in model.parameters()), name
            with pytest.raises(libodc.PhaseError, match=r"^a backward within unsharded"):
                square_loss(model, x, 1.0)
        assert job.sync_gradients(valid=False).discarded
        square_loss(model, x, 1.0)
        job.sync_gradients(divisor=1.0)
        optimizer.step()
        read_only.refresh_from(job)


def test_a_block_is_for_forwards_only() -> None:
    run_torch_ranks(2, only_forwards)


def refreshing(rank: int, size: int) -> None:
    """After each second minibatch; meanwhile the reference stays as it was."""
    case, minibatches = Case(), [*UNEVEN[size], *UNEVEN[size]]
    policy, reference = case.sharded(mesh_of(size)), case.sharded(mesh_of(size))
    optimizer, expected, x, ahead = adamw(policy), Net(), sample(60, 0, 0), False
    with attach(policy, optimizer, timeout=LIMIT) as job, attach(reference, timeout=LIMIT) as read_only:
        for minibatch, counts in enumerate(minibatches):
            for x in samples(minibatch, rank, counts[rank]):
                case.microbatch(policy, x, 1.0)
            if counts[rank] > 0:
                with pytest.raises(libodc.PhaseError, match=r"refresh_from\(\) would lose them"):
                    job.refresh_from(read_only)
            job.sync_gradients(divisor=total(counts))
            optimizer.step()
            optimizer.zero_grad()
            ahead = ahead or sum(counts) > 0
            if minibatch % 2 == 1:
                with torch.no_grad():
                    policy(x)  # leaves its root unsharded
                read_only.refresh_from(job)
                expected.load_state_dict(whole_parameters(policy))
                ahead = False
            with torch.no_grad():
                assert torch.equal(reference(x), expected(x))
                assert torch.equal(policy(x), reference(x)) != ahead


@pytest.mark.parametrize("size", [1, 3])
def test_a_reference_is_refreshed_from_its_policy(size: int) -> None:
    run_torch_ranks(size, refreshing)


def differing(rank: int, size: int) -> None:
    mesh = mesh_of(size)
    small, wide, same = (Case(model=partial(Net, width)).sharded(mesh) for width in (13, 14, 13))
    coarse = Case(shard=lambda model, mesh: fully_shard(model, mesh=mesh)).sharded(mesh)
    jobs = [attach(model, timeout=LIMIT) for model in (small, wide, same, coarse)]
    with pytest.raises(libodc.ArgumentError, match=r'"first\.weight" \[14, 7\].* "first\.weight" \[13, 7\]'):
        jobs[0].refresh_from(jobs[1])
    with pytest.raises(libodc.ArgumentError, match="the models differ"):
        jobs[0].refresh_from(jobs[3])
    jobs[0].refresh_from(jobs[2])
    for job in jobs:
        job.close()
    with pytest.raises(libodc.PhaseError, match="closed"):
        jobs[0].refresh_from(jobs[2])


def test_other_models_are_refused() -> None:
    run_torch_ranks(2, differing)
