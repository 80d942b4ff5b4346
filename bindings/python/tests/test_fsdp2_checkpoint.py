# SPDX-License-Identifier: Apache-2.0
"""Saving and loading in the middle of a training, also for another number of ranks."""

import copy
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import dist, run_torch_ranks, torch  # skips where there is no torch

# isort: split
import torch.distributed.checkpoint as dcp
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Counts,
    Step,
    adamw,
    assert_equal_steps,
    assert_near,
    by_one_process,
    finish,
    gathers_checked,
    mesh_of,
    run_blocked,
    sample,
    total,
    whole_parameters,
)
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from libodc.torch.fsdp2 import Job, attach


def train(job: Job, model: Any, optimizer: Any, first: int, minibatches: list[Counts]) -> list[Step]:
    steps = []
    for minibatch, counts in enumerate(minibatches, first):
        with gathers_checked(model):
            run_blocked(Case(), model, minibatch, counts)
        job.sync_gradients(divisor=total(counts))
        steps.append(finish(model, optimizer))
    return steps


def loaded(rank: int, size: int) -> None:
    """Returns to an earlier state by state_dict and load_state_dict."""
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT) as job:
        train(job, model, optimizer, 0, UNEVEN[size][:1])
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        with torch.no_grad():
            model(sample(0, rank, 0))
        first = train(job, model, optimizer, 1, UNEVEN[size][1:])
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
        job.publish()
        again = train(job, model, optimizer, 1, UNEVEN[size][1:])
    assert_equal_steps(again, first)
    assert_equal_steps(first, by_one_process(Case(), UNEVEN[size])[1:])


@pytest.mark.parametrize("size", [1, 3])
def test_load_state_dict(size: int) -> None:
    run_torch_ranks(size, loaded)


def assigned(rank: int, size: int) -> None:
    """load_state_dict(assign=True) puts other tensors in the place of a reference model's."""
    model, other, x = Case().sharded(mesh_of(size)), Case().sharded(mesh_of(size)), sample(0, rank, 0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
        expected = Case().model()
        expected.load_state_dict(whole_parameters(other))
        with attach(model, timeout=LIMIT) as job:
            model(x)
            model.load_state_dict(other.state_dict(), assign=True)
            job.publish()
            assert_near(model(x), expected(x), 1e-12, "the output")


def test_load_state_dict_by_assignment() -> None:
    run_torch_ranks(2, assigned)


def saves(rank: int, size: int, folder: Path) -> None:
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT) as job:
        train(job, model, optimizer, 0, UNEVEN[size][:2])
        with torch.no_grad():
            model(sample(0, rank, 0))
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(parts, checkpoint_id=folder)
        train(job, model, optimizer, 2, UNEVEN[size][2:])  # goes on


def load(model: Any, optimizer: Any, folder: Path) -> None:
    # The optimizer has no state yet, so get_state_dict creates it by a step.
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(parts, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])


def resumes_before_attach(rank: int, size: int, folder: Path) -> None:
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    load(model, optimizer, folder)
    with attach(model, optimizer, timeout=LIMIT) as job:
        steps = train(job, model, optimizer, 2, UNEVEN[size])
    assert_equal_steps(steps, by_one_process(Case(), [*UNEVEN[3][:2], *UNEVEN[size]])[2:])


def resumes_after_attach(rank: int, size: int, folder: Path) -> None:
    model = Case().sharded(mesh_of(size))
    optimizer = adamw(model)
    with attach(model, optimizer, timeout=LIMIT) as job:
        if size == 1:  # right behind the first publish
            load(model, optimizer, folder)
            job.publish()
        else:
            model(sample(0, rank, 0)).sum()
            with job.editing():
                load(model, optimizer, folder)
        steps = train(job, model, optimizer, 2, UNEVEN[size])
    assert_equal_steps(steps, by_one_process(Case(), [*UNEVEN[3][:2], *UNEVEN[size]])[2:])


def test_resumption_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    run_torch_ranks(3, saves, tmp_path)
    for size, resumes in ((1, resumes_after_attach), (2, resumes_before_attach), (4, resumes_after_attach)):
        run_torch_ranks(size, resumes, tmp_path)


class SlowWriter(dcp.FileSystemWriter):
    """Its thread begins when the first forward has run, and ends after the sync."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go, self.written, self.end = threading.Event(), threading.Event(), threading.Event()

    def set_up_storage_writer(self, *arguments: Any, **named: Any) -> None:
        assert self.go.wait(LIMIT)
        super().set_up_storage_writer(*arguments, **named)

    def write_data(self, *arguments: Any) -> Any:
        self.written.set()  # after the collectives that agree on a plan
        assert self.end.wait(LIMIT)
        return super().write_data(*arguments)


def saves_meanwhile(rank: int, size: int, folder: Path) -> None:
    """DCP's thread has collectives of its own, which no rank waits for; those of the loop still cause a warning."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("libodc").addHandler(handler)
    model = Case().sharded(mesh_of(size))
    with attach(model, adamw(model), timeout=LIMIT) as job:
        writer = SlowWriter(folder)
        saved = dcp.async_save({"model": model.state_dict()}, storage_writer=writer)
        loss = model(sample(0, rank, 0)).square().sum()
        writer.go.set()
        assert writer.written.wait(LIMIT)
        loss.backward()
        job.sync_gradients(divisor=1.0)
        assert lines == []
        writer.end.set()
        saved.result()
        model.zero_grad()

        # It may begin after the forward, and end before the sync.
        loss = model(sample(1, rank, 0)).square().sum()
        writer = SlowWriter(folder / "again")
        writer.go.set()
        saved = dcp.async_save({"model": model.state_dict()}, storage_writer=writer)
        assert writer.written.wait(LIMIT)
        loss.backward()
        writer.end.set()
        saved.result()
        job.sync_gradients(divisor=1.0)
        assert lines == []
        model.zero_grad()
        loss = model(sample(1, rank, 0)).square().sum()
        dist.all_reduce(torch.ones(1))
        loss.backward()
        job.sync_gradients(divisor=1.0)
        said = f"odc: {size} collectives, on all ranks together, ran "
        assert [line.startswith(said) for line in lines] == [True] * (rank == 0)


def test_collectives_of_another_thread_are_not_warned_of(tmp_path: Path) -> None:
    run_torch_ranks(2, saves_meanwhile, tmp_path)
