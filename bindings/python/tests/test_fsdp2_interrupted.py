# SPDX-License-Identifier: Apache-2.0
"""Collective calls of a job that an exception has ended are resumed by repeating them: wherever it came, nothing is
done twice and nothing is left out."""

import gc
import math
import os
import random
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fsdp2_models import LIMIT, Case, Net, mesh_of, named, sample, whole_gradients, whole_parameters
from interrupting import Interruption, needs_tables
from torch import nn
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc.torch.fsdp2 import attach, bulk

CALLS = ("sync", "clip", "step", "publish")
LIVING = [("copy", "copy"), ("slice", "view")]
PLACES = 60  # of each call, drawn at random


class Loop:
    """A training loop with each collective call of a job, of which one is interrupted on rank 0 and repeated, and the
    same by one process."""

    def __init__(self, rank: int, size: int, seed: int, parameters: Any, gradients: Any) -> None:
        self.rank, self.size = rank, size
        self.model, self.alone = Case().sharded(mesh_of(size)), Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.other = torch.optim.SGD(self.alone.parameters(), lr=1e-4)
        self.job = attach(self.model, self.optimizer, timeout=LIMIT, parameters=parameters, gradients=gradients)
        self.minibatch = 0
        self._draw = random.Random(seed)
        self._places = dict.fromkeys(CALLS, 0)

    def _run(self, name: str, interrupted: str, call: Callable[[], Any]) -> Any:
        if self.rank != 0 or self.minibatch == 0:
            return call()
        if self.minibatch == 1:  # after the first, in which much is found out
            with Interruption() as counted:
                result = call()
            self._places[name] = counted.places
            return result
        if name != interrupted:
            return call()
        with Interruption(self._draw.randrange(self._places[name])) as interruption:
            return call()
        self.where = f"{name} at {interruption.where}"
        return call()

    def one(self, interrupted: str, more: bool) -> bool:
        """Runs a minibatch; returns whether rank 0 wants more."""
        run = partial(self._run, interrupted=interrupted)
        self.where = ""
        self.model(sample(self.minibatch, self.rank, 0)).square().sum().backward()
        name = f"minibatch {self.minibatch // 8 % 50}"  # new ones are told to all ranks in further reductions
        sums = {"more": float(more), name: 1.0}
        maxima = {"rank": float(self.rank)}
        sync = partial(self.job.sync_gradients, weight=2.0, sums=sums, maxima=maxima)
        report = run("sync", call=sync)
        assert report.minibatch == self.minibatch and report.microbatches == [1] * self.size, self.where
        assert report.divisor == 2.0 * self.size and report.maxima["rank"] == self.size - 1, self.where
        assert report.sums[name] == self.size, self.where
        for peer in range(self.size):
            self.alone(sample(self.minibatch, peer, 0)).square().sum().backward()
        for parameter in self.alone.parameters():
            assert parameter.grad is not None
            parameter.grad /= 2.0 * self.size
        self._compare()
        norm = run("clip", call=partial(self.job.clip_grad_norm_, 0.5))
        expected = float(nn.utils.clip_grad_norm_(self.alone.parameters(), 0.5))
        assert math.isclose(norm, expected, rel_tol=1e-6), self.where
        self._compare()
        before = [one.to_local().clone() for one in self.model.parameters()]
        run("step", call=partial(self._step, before))
        self.other.step()
        self.optimizer.zero_grad()
        self.other.zero_grad()
        for one in (self.model, self.alone):
            with torch.no_grad():
                next(iter(one.parameters())).mul_(1.01 if self.minibatch % 2 else 1 / 1.01)
        run("publish", call=self.job.publish)
        self.minibatch += 1
        return report.sums["more"] > 0

    def _step(self, before: list[torch.Tensor]) -> None:
        """An interruption behind the step itself is no reason to step again."""
        now = [one.to_local() for one in self.model.parameters()]
        if all(map(torch.equal, before, now)):
            self.optimizer.step()

    def _compare(self) -> None:
        for name, gradient in whole_gradients(self.model).items():
            torch.testing.assert_close(
                gradient, named(self.alone)[name].grad, rtol=1e-9, atol=1e-12, msg=lambda text: f"{self.where}: {text}"
            )


def interrupted_calls(rank: int, size: int, seed: int, parameters: Any, gradients: Any) -> None:
    loop = Loop(rank, size, seed, parameters, gradients)
    places = int(os.environ.get("ODC_TEST_PLACES", PLACES))
    for name in CALLS:
        while loop.one(name, more=loop.minibatch % places < places - 1):
            pass
    loop.job.close()
    for name, whole in whole_parameters(loop.model).items():
        torch.testing.assert_close(whole, named(loop.alone)[name].detach(), rtol=1e-9, atol=1e-12)


@needs_tables
@pytest.mark.parametrize(("parameters", "gradients"), LIVING)
@pytest.mark.parametrize("size", [1, 2])
def test_calls_interrupted_anywhere(size: int, parameters: str, gradients: str) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_torch_ranks(size, interrupted_calls, seed, parameters, gradients, seconds=300)


def interrupted_refreshes(rank: int, size: int, seed: int) -> None:
    """Of a reference, interrupted on rank 0; before and after each, both models are read."""
    policy, reference = Case().sharded(mesh_of(size)), Case().sharded(mesh_of(size))
    draw, x, places, where = random.Random(seed), sample(0, 0, 0), 0, ""
    with attach(policy, timeout=LIMIT) as job, attach(reference, timeout=LIMIT) as read_only, torch.no_grad():
        for number in range(22):  # as in Loop: the first two find out how many places there are
            with job.editing():
                next(iter(policy.parameters())).mul_(1.25)
            assert number == 0 or not torch.equal(policy(x), reference(x))
            if rank == 0 and number > 0:
                with Interruption(draw.randrange(places) if number > 1 else None) as interruption:
                    read_only.refresh_from(job)
                places, where = max(places, interruption.places), interruption.where
            if rank != 0 or number == 0 or where:
                read_only.refresh_from(job)
            assert torch.equal(policy(x), reference(x)), where


@needs_tables
@pytest.mark.parametrize("size", [1, 2])
def test_a_refresh_interrupted_anywhere(size: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_torch_ranks(size, interrupted_refreshes, seed)


def other_calls(rank: int, size: int, monkeypatch: Any) -> None:
    """While a call is to be resumed, others are refused, and nothing is lost by trying them."""
    model, alone = Case().sharded(mesh_of(size)), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model, optimizer, timeout=LIMIT) as job:
        model(sample(0, rank, 0)).square().sum().backward()
        with monkeypatch.context() as patched:

            def no_memory(*_: Any, **__: Any) -> Any:
                raise torch.OutOfMemoryError("says the test")

            patched.setattr(bulk.Quotients, "_loop", no_memory)
            with pytest.raises(torch.OutOfMemoryError):
                job.sync_gradients(divisor=2.0)
            if rank == 0:
                for name, call in {
                    "a step": optimizer.step,
                    "publish": job.publish,
                    "clip_grad_norm_": partial(job.clip_grad_norm_, 1.0),
                    "a forward": partial(model, sample(0, rank, 0)),
                }.items():
                    with pytest.raises(libodc.PhaseError, match=rf"{name}.*has ended sync_gradients\(\) .* repeat"):
                        call()
                with pytest.raises(libodc.ArgumentError, match="is repeated with other arguments"):
                    job.sync_gradients(divisor=3.0)
        assert job.sync_gradients(divisor=2.0).divisor == 2.0
        for peer in range(size):
            alone(sample(0, peer, 0)).square().sum().backward()
        for name, gradient in whole_gradients(model).items():
            torch.testing.assert_close(gradient, named(alone)[name].grad / 2.0, rtol=1e-9, atol=1e-12)
        optimizer.step()


def test_other_calls_wait_until_an_interrupted_one_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    run_torch_ranks(2, other_calls, monkeypatch)


def closes(rank: int, size: int) -> None:
    """Ctrl-C reaches ranks at different places of a sync, and each closes its job."""
    model = Case().sharded(mesh_of(size))
    job = attach(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout=LIMIT)
    model(sample(0, rank, 0)).square().sum().backward()
    with pytest.MonkeyPatch.context() as patched:

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        patched.setattr(*((job._exchange, "sync") if rank == 0 else (job._gradients, "fill")), interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.sync_gradients()
    job.close()


def test_close_after_an_interrupted_sync() -> None:
    run_torch_ranks(2, closes)


def kept(rank: int, size: int) -> None:
    model = Case().sharded(mesh_of(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model, optimizer, timeout=LIMIT) as job:
        model(sample(0, rank, 0)).square().sum().backward()
        job.sync_gradients()
        job.clip_grad_norm_(1e-3)
        gradients = [weakref.ref(one.grad.to_local()) for one in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert not any(one() is not None for one in gradients)


@pytest.mark.parametrize("size", [1, 2])
def test_no_gradient_is_kept_for_a_repeated_call(size: int) -> None:
    run_torch_ranks(size, kept)
