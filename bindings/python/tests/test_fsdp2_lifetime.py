# SPDX-License-Identifier: Apache-2.0
"""Several jobs at once, each with a rhythm of its own; attaching and detaching in the middle of a training."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    News,
    Step,
    adamw,
    assert_equal_steps,
    assert_near,
    busiest,
    by_one_process,
    divide_gradients,
    finish,
    fsdp_modules,
    mesh_of,
    run_blocked,
    samples,
    square_loss,
    total,
    whole_parameters,
)
from torch import nn
from torch_ranks import run_torch_ranks, torch

from libodc.torch.fsdp2 import Job, attach

Tensor = torch.Tensor


class Trio:
    """An actor that trains in each minibatch, a critic in every second one, and a reference that is only read."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self.actor, self.critic, self.reference = made(), made(), made()
        with torch.no_grad():
            for parameter in self.critic.parameters():
                parameter.mul_(0.5)
        self.optimizers = [adamw(self.actor), adamw(self.critic)]

    def microbatch(self, x: Tensor, minibatch: int) -> None:
        with torch.no_grad():
            target = self.reference(x)
        if minibatch % 2 == 1:
            value = self.critic(x)
            (value - x[:, :2]).square().sum().backward()
        else:
            with torch.no_grad():
                value = self.critic(x)
        ((self.actor(x) - target - 1).square().sum() + (self.actor(x) * value.detach()).sum()).backward()

    def step(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def several(rank: int, size: int) -> None:
    mesh = mesh_of(size)
    mine, alone = Trio(lambda: Case().sharded(mesh)), Trio(Case().model)
    minibatches = [*UNEVEN[size], *UNEVEN[size]]
    actor = attach(mine.actor, mine.optimizers[0], timeout=LIMIT)
    critic = attach(mine.critic, mine.optimizers[1], timeout=LIMIT)
    reference = attach(mine.reference, timeout=LIMIT)
    for minibatch, counts in enumerate(minibatches):
        news, first = News(), busiest(counts)
        if rank != first:
            news.await_from([first])
        for x in samples(minibatch, rank, counts[rank]):
            mine.microbatch(x, minibatch)
        news.tell()
        actor.sync_gradients(divisor=total(counts))
        mine.step(mine.actor, mine.optimizers[0])
        if minibatch % 2 == 1:
            critic.sync_gradients(divisor=total(counts))
            mine.step(mine.critic, mine.optimizers[1])

        for r, count in enumerate(counts):
            for x in samples(minibatch, r, count):
                alone.microbatch(x, minibatch)
        for model, optimizer, trains in zip(
            (alone.actor, alone.critic), alone.optimizers, (True, minibatch % 2 == 1), strict=True
        ):
            if trains:
                divide_gradients(model, total(counts))
                alone.step(model, optimizer)
        for a, b in ((mine.actor, alone.actor), (mine.critic, alone.critic), (mine.reference, alone.reference)):
            for name, parameter in whole_parameters(a).items():
                assert_near(parameter, b.state_dict()[name], 1e-12, f"minibatch {minibatch}: {name}")
    for job in (reference, actor, critic):
        job.close()


@pytest.mark.parametrize("size", [1, 3])
def test_several_jobs_at_once(size: int) -> None:
    run_torch_ranks(size, several)


def removed(rank: int, size: int) -> None:
    """Over ODC, then by plain FSDP2 with its own settings, then over ODC again."""
    minibatches = [*UNEVEN[size], *[(2,) * size] * 2, *UNEVEN[size]]
    over = [True] * 3 + [False] * 2 + [True] * 3
    expected = by_one_process(Case(), minibatches)
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    settings = [kept(module) for module in fsdp_modules(model)]
    steps: list[Step] = []
    job: Job | None = None
    for minibatch, counts in enumerate(minibatches):
        if over[minibatch] and job is None:
            job = attach(model, optimizer, timeout=LIMIT)
        if not over[minibatch] and job is not None:
            job.remove() if size == 3 else job.close()
            job = None
            assert [kept(module) for module in fsdp_modules(model)] == settings
        if job is not None:
            run_blocked(Case(), model, minibatch, counts)
            job.sync_gradients(divisor=total(counts))
        else:  # plain FSDP2 divides by the number of ranks
            for x in samples(minibatch, rank, counts[rank]):
                square_loss(model, x, size / total(counts))
        steps.append(finish(model, optimizer))
    assert job is not None
    job.close()
    assert_equal_steps(steps, expected)
    del job
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:odc") == 0


def hooks(parameter: Any) -> int:
    return len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())


def kept(module: Any) -> list[Any]:
    """What attach changes in FSDP2."""
    state = module._get_fsdp_state()
    return [
        (
            group._all_gather_comm,
            group._reduce_scatter_comm,
            group.gradient_divide_factor,
            group.force_sum_reduction_for_comms,
            [hooks(getattr(one, "_unsharded_param", None)) + hooks(one.sharded_param) for one in group.fsdp_params],
        )
        for group in state._fsdp_param_groups
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_removed_and_attached_again(size: int) -> None:
    run_torch_ranks(size, removed)
