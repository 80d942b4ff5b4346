# SPDX-License-Identifier: Apache-2.0
"""Sums and maxima that travel with a sync, by name; a rank omits names for which it has nothing."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fsdp2_models import LIMIT, Case, adamw, mesh_of, sample
from torch_ranks import run_torch_ranks, torch

import libodc
from libodc._resumable import AllReduce
from libodc.torch.fsdp2 import Job, attach

Given = list[dict[str, dict[str, float]]]  # of each rank: its sums and maxima


@contextmanager
def attached(size: int) -> Iterator[tuple[Job, Any]]:
    model = Case().sharded(mesh_of(size))
    with attach(model, adamw(model), timeout=LIMIT) as job:
        yield job, model


@contextmanager
def reductions(made: list[int], *, interrupt: int = -1) -> Iterator[None]:
    """Notes how many values each reduction of this rank has; `interrupt`: Ctrl-C comes before this one, once."""
    run = AllReduce.run
    left = [interrupt]

    def noted(reduction: AllReduce) -> list[float]:
        if left[0] == len(made):
            left[0] = -1
            raise KeyboardInterrupt
        result = run(reduction)
        made.append(len(result))
        return result

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AllReduce, "run", noted)
        yield


def natural(rank: int, size: int) -> None:
    """A loop that adds up what it has: a rank without microbatches has no name, in the very first minibatch, too."""
    with attached(size) as (job, model):
        for minibatch in range(3):
            sums: dict[str, float] = {}
            maxima: dict[str, float] = {}
            for index in range((rank + minibatch) % size):
                loss = model(sample(minibatch, rank, index)).square().sum()
                loss.backward()
                sums["loss"] = sums.get("loss", 0.0) + 1.5
                maxima["longest"] = max(maxima.get("longest", -math.inf), 10.0 * rank + index)
            made: list[int] = []
            with reductions(made):
                report = job.sync_gradients(weight=len(sums), sums=sums, maxima=maxima)
            counts = [(peer + minibatch) % size for peer in range(size)]
            assert report.sums == {"loss": 1.5 * sum(counts)}
            assert report.maxima == {"longest": max(10.0 * r + n - 1 for r, n in enumerate(counts) if n)}
            # Names are exchanged once; then sums take no reduction, and maxima one.
            assert minibatch == 0 or made == [1]
            model.zero_grad()
        made = []
        with reductions(made):
            report = job.sync_gradients()
        assert report.sums == {"loss": 0.0} and report.maxima == {"longest": -math.inf} and made == []


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_without_microbatches_gives_none(size: int) -> None:
    run_torch_ranks(size, natural)


def any_numbers(rank: int, size: int, seed: int) -> None:
    """Compared with a model: any rank passes any names, different ones in each minibatch."""
    random.seed(seed)
    names = [*"abcdefgh", "loss/lang ünïcode", 'with "quotes", and so on ' * 30]
    known: dict[str, set[str]] = {"sums": set(), "maxima": set()}
    with attached(size) as (job, model):
        for _ in range(12):
            given: Given = [
                {
                    kind: {name: random.uniform(-9, 9) for name in random.sample(names, random.randint(0, 4))}
                    for kind in known
                }
                for _ in range(size)
            ]
            report = job.sync_gradients(**given[rank])  # type: ignore[arg-type]
            for kind in known:
                known[kind].update(*(one[kind] for one in given))
            for name in known["sums"]:
                expected = 0.0
                for one in given:
                    expected += one["sums"].get(name, 0.0)
                assert report.sums.pop(name) == expected
            for name in known["maxima"]:
                assert report.maxima.pop(name) == max(one["maxima"].get(name, -math.inf) for one in given)
            assert not report.sums and not report.maxima


@pytest.mark.parametrize("size", [1, 3])
def test_any_names_on_any_rank(size: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run_torch_ranks(size, any_numbers, seed)


def interrupted(rank: int, size: int) -> None:
    """Ctrl-C ends the call at any point, and the repeated call resumes it."""
    for at in range(6):
        with attached(size) as (job, model):
            made: list[int] = []
            with reductions(made, interrupt=at if rank == 0 else -1):
                given: Any = {"sums": {"a": 1.0, "b" * 400: 2.0 + rank}, "maxima": {"c": rank}, "divisor": 2.0}
                try:
                    report = job.sync_gradients(**given)
                    assert rank != 0
                except KeyboardInterrupt:
                    assert rank == 0
                    report = job.sync_gradients(**given)
            assert report.sums == {"a": size, "b" * 400: sum(2.0 + r for r in range(size))}
            assert report.maxima == {"c": size - 1} and report.minibatch == 0
            assert len(made) > 6
            assert job.sync_gradients(sums={"a": 1.0}).sums["a"] == size


def test_an_interrupted_call_goes_on() -> None:
    run_torch_ranks(2, interrupted)


def limits(rank: int, size: int) -> None:
    with attached(size) as (job, model):
        for kind in ("sums", "maxima"):
            with pytest.raises(libodc.ArgumentError, match=f"64 {kind}; at most 63"):
                job.sync_gradients(**{kind: {str(i): 0.0 for i in range(64)}})  # type: ignore[arg-type]
            with pytest.raises(libodc.ArgumentError, match=rf"{kind}\['x'\] is 'y', must be a number"):
                job.sync_gradients(**{kind: {"x": "y"}})  # type: ignore[arg-type, dict-item]
        many = {f"{rank} {i}": 1.0 for i in range(40)}
        for kind in ("sums", "maxima"):
            with pytest.raises(libodc.ArgumentError, match=f"given 80 names of {kind} so far, at most 63 .*: .*0 7, "):
                job.sync_gradients(**{kind: many})  # type: ignore[arg-type]
        full = {str(i): torch.tensor(i + rank) for i in range(63)}
        for _ in range(2):
            report = job.sync_gradients(sums=full, maxima=full)
            assert report.sums == {str(i): 2 * i + 1 for i in range(63)}
            assert report.maxima == {str(i): i + 1 for i in range(63)}
        nan = job.sync_gradients(maxima={"0": math.nan if rank == 0 else 1.0}, sums={"0": math.inf})
        assert math.isnan(nan.maxima["0"]) and nan.sums["0"] == math.inf


def test_limits_of_what_travels() -> None:
    run_torch_ranks(2, limits)
