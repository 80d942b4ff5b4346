# SPDX-License-Identifier: Apache-2.0
"""attach(sums="exact"): the same bits whoever runs which microbatch, in any order, on any number of ranks, also of the
loss, of clipped gradients, and in a job that goes on from a checkpoint on another number of ranks."""

from __future__ import annotations

import hashlib
import math
import random
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsdp2_models import Case, Net, adamw, mesh_of, sample, shard_blocks, square_loss, whole_gradients, whole_parameters
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch_ranks import dist, run_torch_ranks, torch

from libodc import ArgumentError, ExactSum, PhaseError, UnsupportedError, plan
from libodc.torch.fsdp2 import Job, attach

MINIBATCHES, SAMPLES, SAVED = 8, 7, 4
SCALE = 2.0**-18  # of the loss: so small that sums in the unit of a first minibatch would be others
NORM = 0.05 * SCALE
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
LOADED = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def float_net() -> Any:
    return Net().float()


def digest(tensors: dict[str, Any]) -> str:
    text = hashlib.sha256()
    for name in sorted(tensors):
        text.update(name.encode() + tensors[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def shares(way: str, job: Job, minibatch: int) -> Iterator[int]:
    """The samples that this rank runs."""
    rank, size = job.context.rank, job.context.size
    if way == "claimed":
        while (item := job.context.claim(SAMPLES)) is not None:
            yield item
    elif way == "chance":  # so some ranks may have none
        owners = random.Random(minibatch).choices(range(size), k=SAMPLES)
        yield from (index for index, owner in enumerate(owners) if owner == rank)
    else:
        lengths = [1 + (minibatch * 5 + index * 3) % 11 for index in range(SAMPLES)]
        for microbatch in plan(lengths, size, policy=way).ranks[rank]:
            yield from microbatch


def whole(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in tensors.items() if one is not None}


def clip(job: Job, model: Any) -> Iterator[str]:
    before = whole(whole_gradients(model))
    norm = job.clip_grad_norm_(NORM)
    elements = (float(element) ** 2 for one in before.values() for element in one.double().reshape(-1))
    assert norm > NORM and norm == pytest.approx(math.sqrt(math.fsum(elements)), rel=1e-14)
    clipped = whole(whole_gradients(model))
    assert all(torch.equal(clipped[name], one * (NORM / (norm + 1e-6))) for name, one in before.items())
    yield from (digest(before), norm.hex(), digest(clipped))


def save(job: Job, model: Any, optimizer: Any, folder: Path) -> None:
    states = get_state_dict(model, optimizer, options=FULL)
    exact = job.exact_state()
    if dist.get_rank() == 0:
        torch.save((*states, exact), folder / "checkpoint")


def load(model: Any, optimizer: Any, folder: Path) -> dict[str, float]:
    parameters, state, exact = torch.load(folder / "checkpoint", weights_only=False)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state, options=LOADED)
    return exact


def train(rank: int, size: int, folder: Path, reduced: str | None, way: str, begin: int) -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, reduced)) if reduced else MixedPrecisionPolicy()
    model = Case(float_net, partial(shard_blocks, mp_policy=policy)).sharded(mesh_of(size))
    optimizer = adamw(model)
    exact = load(model, optimizer, folder) if begin else None
    seen: list[str] = []
    delays = random.Random(rank)
    with attach(model, optimizer, sums="exact", exact_state=exact) as job:
        for minibatch in range(begin, MINIBATCHES):
            losses = ExactSum()
            for index in shares(way, job, minibatch):
                time.sleep(delays.random() * 0.01)  # so that ranks add in another order each time
                loss = model(sample(minibatch, 0, index).float()).square().sum() * SCALE
                loss.backward()
                losses.add(loss)
            report = job.sync_gradients(divisor=SAMPLES, sums={"loss": losses})
            seen += [report.sums["loss"].hex(), *clip(job, model)]
            optimizer.step()
            optimizer.zero_grad()
            seen.append(digest(whole_parameters(model)))
            if way == "lb-mini" and minibatch + 1 == SAVED:
                save(job, model, optimizer, folder)
    if dist.get_rank() == 0:
        (folder / f"{way}").write_text("\n".join(seen))


@pytest.mark.parametrize(("reduced", "most"), [(None, 8), ("bfloat16", 4)])
def test_the_same_bits_on_any_number_of_ranks(tmp_path: Path, reduced: str | None, most: int) -> None:
    def lines(size: int, way: str, begin: int = 0) -> list[str]:
        run_torch_ranks(size, train, tmp_path, reduced, way, begin)
        return (tmp_path / way).read_text().split("\n")

    alone = lines(1, "lb-mini")
    assert len(alone) == len(set(alone)) == 5 * MINIBATCHES
    assert lines(2, "chance") == alone
    assert lines(3, "claimed", SAVED) == alone[5 * SAVED :]  # goes on from what one rank has saved
    assert lines(most, "lb-mini") == alone
    assert lines(1, "lb-micro", SAVED) == alone[5 * SAVED :]  # from what most ranks have saved


def refused(rank: int, size: int) -> None:
    model = Net()
    shard_blocks(model, mesh_of(size))
    with pytest.raises(ArgumentError, match="sums is 'fast': "):
        attach(model, adamw(model), sums="fast")  # type: ignore[arg-type]
    with pytest.raises((ArgumentError, UnsupportedError), match="f64"):
        attach(model, adamw(model), sums="exact")
    with pytest.raises(ArgumentError, match="exact_state is of a job with exact sums"):
        attach(model, adamw(model), exact_state={"blocks.0": 1.0})
    with attach(model, adamw(model)) as job:  # nothing is left of them
        assert job.exact_state() == {}
        square_loss(model, sample(0, rank, 0), 1.0)
        with pytest.raises(PhaseError, match="call it after sync_gradients"):
            job.clip_grad_norm_(1.0)
        job.sync_gradients(sums={"loss": ExactSum([0.5])})
        with pytest.raises(ArgumentError, match="max_norm is 0, must be above 0"):
            job.clip_grad_norm_(0)
        next(model.parameters()).grad.fill_(math.inf)
        with pytest.raises(RuntimeError, match="the norm of the gradients is inf"):
            job.clip_grad_norm_(1.0, error_if_nonfinite=True)
        assert job.clip_grad_norm_(1.0) == math.inf


def mixes(rank: int, size: int) -> None:
    model = Net().float()
    shard_blocks(model, mesh_of(size))
    with pytest.raises(ArgumentError, match=r'exact_state has nothing of FSDP group ".*"; it is of other'):
        attach(model, adamw(model), sums="exact", exact_state={"other": 1.0})
    for wrong in ("x", None, 1e300, math.nan):
        state = {"(root)": 1.0, "blocks.0": wrong, "blocks.1": 1.0}
        with pytest.raises(ArgumentError, match=re.escape(f'exact_state["blocks.0"] is {wrong!r}, must be a number')):
            attach(model, adamw(model), sums="exact", exact_state=state)
    with pytest.raises(ArgumentError, match="exact_state is 5, must be what"):
        attach(model, adamw(model), sums="exact", exact_state=5)  # type: ignore[arg-type]
    with attach(model, adamw(model), sums="exact") as job:
        square_loss(model, sample(0, rank, 0).float(), 1.0)
        with pytest.raises(ArgumentError, match=r"'loss'.* has been a number in one call and an ExactSum in another"):
            job.sync_gradients(sums={"loss": ExactSum([0.5]) if rank == 0 else 0.5})


def test_what_cannot_be_summed_exactly_is_refused() -> None:
    run_torch_ranks(2, refused)


def test_a_name_is_a_number_or_an_exact_sum() -> None:
    run_torch_ranks(2, mixes)


def clips_f64(rank: int, size: int) -> None:
    """Of sums by arrival, too; the parameters of rank 1's last slices are fewer."""
    model = Net()
    shard_blocks(model, mesh_of(size))
    with attach(model, adamw(model)) as job:
        for loss in (1.0, 2.0**300):
            square_loss(model, sample(0, rank, 0), loss)
            job.sync_gradients()
            before = whole(whole_gradients(model))
            norm = job.clip_grad_norm_(0.5)
            elements = torch.cat([one.reshape(-1) for one in before.values()])
            assert norm == pytest.approx(float(elements.div(elements.abs().max()).norm() * elements.abs().max()))
            after = whole(whole_gradients(model))
            assert all(torch.equal(after[name], one * (0.5 / (norm + 1e-6))) for name, one in before.items())
            model.zero_grad()
        job.sync_gradients()
        assert job.clip_grad_norm_(1e-9) == 0  # nobody has a gradient


def test_f64_gradients_are_clipped() -> None:
    run_torch_ranks(2, clips_f64)


def goes_on_with_a_frozen_block(rank: int, size: int) -> None:
    exact: dict[str, float] | None = None
    for _ in range(2):
        model = Net().float()
        for parameter in model.blocks[0].parameters():
            parameter.requires_grad = False
        shard_blocks(model, mesh_of(size))
        with attach(model, adamw(model), check=True, sums="exact", exact_state=exact) as job:
            square_loss(model, sample(0, rank, 0).float(), 1.0)
            job.sync_gradients()
            exact = job.exact_state()
            assert exact and not any("blocks.0" in name for name in exact)


@pytest.mark.parametrize("size", [1, 2])
def test_the_state_of_a_model_with_a_frozen_group(size: int) -> None:
    run_torch_ranks(size, goes_on_with_a_frozen_block)
