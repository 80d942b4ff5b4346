# SPDX-License-Identifier: Apache-2.0
"""Between minibatches: evaluation, skipped steps, several optimizers and jobs, edits, detaching."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import pytest
from fsdp2_models import (
    LIMIT,
    UNEVEN,
    Case,
    Counts,
    adamw,
    assert_equal_steps,
    assert_near,
    by_one_process,
    divide_gradients,
    fsdp_modules,
    mesh_of,
    over_odc,
    run_microbatches,
    sample,
    samples,
    shard_blocks,
    square_loss,
    total,
    whole_parameters,
)
from torch import nn
from torch_ranks import dist, run_torch_ranks, torch

from libodc.torch.fsdp2 import attach

Tensor = torch.Tensor


# ---- evaluation ----


def run_and_evaluate(case: Case, model: Any, minibatch: int, counts: Counts) -> None:
    """Each rank evaluates as often as it likes, also without a microbatch after it, and between microbatches."""
    rank, alone = dist.get_rank(), case.model()
    alone.load_state_dict(whole_parameters(model))

    def evaluate(x: Tensor) -> None:
        model.eval()
        with torch.inference_mode() if minibatch == 1 else torch.no_grad():
            assert_near(model(x), alone(x), 1e-12, "the output")
        model.train()

    for _ in range(1 + (rank + minibatch) % 2):
        evaluate(sample(100, rank, minibatch))
    for x in samples(minibatch, rank, counts[rank]):
        case.microbatch(model, x, 1.0)
        evaluate(x)


def evaluated(rank: int, size: int) -> None:
    cases = [Case(), Case(shard=lambda model, mesh: shard_blocks(model, mesh, reshard_after_forward=False))]
    expected = by_one_process(cases[0], UNEVEN[size])
    for case in cases:
        assert_equal_steps(over_odc(case, mesh_of(size), UNEVEN[size], run_and_evaluate), expected)


@pytest.mark.parametrize("size", [1, 3])
def test_evaluation_between_steps(size: int) -> None:
    run_torch_ranks(size, evaluated)


# ---- rules: what a trainer does besides backward and sync ----


class Edited(Protocol):
    """What a loop that edits parameters calls of a job."""

    def publish(self) -> None: ...

    def editing(self) -> AbstractContextManager[None]: ...


class Alone:
    """In place of a job: one process."""

    def publish(self) -> None:
        pass

    def editing(self) -> AbstractContextManager[None]:
        return nullcontext()


class Rule:
    """One optimizer that steps in each minibatch. Made once over ODC and once for one process."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.optimizers = [adamw(model)]

    @property
    def attached(self) -> Any:
        """The optimizers for attach."""
        return self.optimizers

    def microbatch(self, model: Any, x: Tensor, weight: float) -> None:
        square_loss(model, x, weight)

    def end(self, minibatch: int, job: Edited) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Scaled(Rule):
    """An infinite loss on one rank in minibatch 2: the scaler skips the step without calling the optimizer."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def microbatch(self, model: Any, x: Tensor, weight: float) -> None:
        loss = model(x).square().sum() * weight
        bad = torch.equal(x, sample(2, 0, 0))
        self.scaler.scale(loss * torch.inf if bad else loss).backward()

    def end(self, minibatch: int, job: Edited) -> None:
        if all(parameter.grad is None for parameter in self.model.parameters()):
            return  # GradScaler would complain
        self.scaler.scale(torch.zeros(()))  # it must have scaled something, also on a rank without a microbatch
        scale = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizers[0])
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizers[0])
        self.scaler.update()
        self.optimizers[0].zero_grad()
        assert (self.scaler.get_scale() < scale) == (minibatch == 2)


class Skipping(Rule):
    """Skips a step and clears the gradients, by None or by zero; the next use of parameters is an evaluation, a
    microbatch, or the sync of a rank without one."""

    def end(self, minibatch: int, job: Edited) -> None:
        if minibatch in (0, 2, 4):
            self.optimizers[0].zero_grad(set_to_none=minibatch == 0)
        else:
            super().end(minibatch, job)
        if minibatch in (0, 4):
            with torch.inference_mode() if minibatch == 0 else torch.no_grad():
                self.model(sample(100, 0, minibatch))


class Rarely(Rule):
    """The second optimizer steps in every second minibatch."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        ends = [*model.first.parameters(), *model.last.parameters()]
        self.optimizers = [adamw(model.blocks), torch.optim.SGD(ends, lr=0.01, momentum=0.9)]

    def end(self, minibatch: int, job: Edited) -> None:
        self.optimizers[0].step()
        if minibatch % 2 == 1:
            self.optimizers[1].step()
        self.model.zero_grad()


class Uncleared(Rule):
    """Leaves .grad as it is: the next sync writes over it."""

    def end(self, minibatch: int, job: Edited) -> None:
        self.optimizers[0].step()
        if not fsdp_modules(self.model):
            self.optimizers[0].zero_grad()


class Wrapper:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


class Wrapped(Rule):
    """A wrapped optimizer with a schedule that replaces its step()."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.wrapper = Wrapper(self.optimizers[0])
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizers[0], 1, 0.5)

    @property
    def attached(self) -> Any:
        return self.wrapper

    def end(self, minibatch: int, job: Edited) -> None:
        self.wrapper.step()
        self.schedule.step()
        self.model.zero_grad()


class Clamped(Rule):
    """Edits parameters after the step, and once instead of the step."""

    def end(self, minibatch: int, job: Edited) -> None:
        if minibatch != 1:
            super().end(minibatch, job)
        self.model.zero_grad()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.clamp_(-0.2, 0.2)
        job.publish()


class Averaged(Rule):
    """Evaluates with averaged parameters in place of the trained ones."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.parameters = list(model.parameters())  # after an evaluation the root's are unsharded ones
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.outputs: list[Tensor] = []

    def swap(self) -> None:
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                kept = parameter.clone()
                parameter.copy_(average)
                average.copy_(kept)

    def end(self, minibatch: int, job: Edited) -> None:
        super().end(minibatch, job)
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                average.lerp_(parameter, 0.5)
        with job.editing():
            self.swap()
        with torch.no_grad():
            self.outputs.append(self.model(sample(100, 0, minibatch)))
        with job.editing():
            self.swap()


def ruled(rank: int, size: int, kind: type[Rule]) -> None:
    one, model = Case().model(), Case().sharded(mesh_of(size))
    alone, mine = kind(one), kind(model)
    minibatches = [counts for counts in [*UNEVEN[size], *UNEVEN[size]] if sum(counts) > 0 or kind is not Uncleared]
    with attach(model, mine.attached, timeout=LIMIT) as job:
        for minibatch, counts in enumerate(minibatches):
            run_microbatches(Case(microbatch=mine.microbatch), model, minibatch, counts)
            job.sync_gradients(divisor=total(counts))
            mine.end(minibatch, job)
            for r, count in enumerate(counts):
                for x in samples(minibatch, r, count):
                    alone.microbatch(one, x, 1.0)
            divide_gradients(one, total(counts))
            alone.end(minibatch, Alone())
            for name, parameter in whole_parameters(model).items():
                assert_near(parameter, one.state_dict()[name], 1e-12, f"minibatch {minibatch}: {name}")
    if isinstance(mine, Averaged) and isinstance(alone, Averaged):
        for a, b in zip(mine.outputs, alone.outputs, strict=True):
            assert_near(a, b, 1e-12, "an output of the average")


@pytest.mark.parametrize("kind", [Scaled, Skipping, Rarely])
@pytest.mark.parametrize("size", [1, 3])
def test_skipped_steps(kind: type[Rule], size: int) -> None:
    run_torch_ranks(size, ruled, kind)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", [Uncleared, Wrapped, Clamped, Averaged])
def test_rule(kind: type[Rule], size: int) -> None:
    run_torch_ranks(size, ruled, kind)
