# SPDX-License-Identifier: Apache-2.0
"""One arm's replica of the model, and the training of a minibatch: the loop that all arms share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from typing import cast

import torch
from arms import Arm
from decoder import Decoder, Packed, loss_sum, pack
from emulation import Device, pad
from schedule import shard
from stopwatch import Meter, Span, Stopwatch, watch
from torch.distributed.device_mesh import DeviceMesh
from traffic import crossed
from workload import Workload

from libodc.torch import fsdp2


@dataclass(frozen=True)
class Recipe:
    """Parameters shared by all arms. `start`: the token before a sample; `rate`: the learning rate; `reduced`:
    the type in which gradients are reduced."""

    vocabulary: int
    start: int
    width: int
    blocks: int
    rate: float
    seed: int
    reduced: torch.dtype


@dataclass(frozen=True)
class Step:
    """A rank's minibatch. `loss`: mean over all ranks' tokens. `begin`, `synced` and `end` are of time.monotonic.
    On a GPU `busy` is nan, and `computed`, the seconds of each microbatch's spans, is unknown: empty, like `spans`."""

    loss: float
    begin: float
    synced: float
    end: float
    busy: float
    computed: tuple[float, ...] = ()
    spans: tuple[Span, ...] = ()


def idle_share(steps: Iterable[Step], seconds: float) -> float:
    """Of the `seconds` that these steps of a rank took; the only definition, for tables and pictures."""
    busy = sum(step.busy for step in steps)
    return nan if isnan(busy) else max(0.0, 1 - busy / seconds)


class Trainer:
    """A model with its optimizer and job. Its constructor is collective; equal recipes make equal models."""

    def __init__(self, arm: Arm, recipe: Recipe, workload: Workload, mesh: DeviceMesh) -> None:
        torch.manual_seed(recipe.seed)
        self.arm = arm
        on_gpu = mesh.device_type == "cuda"
        self._where = torch.device(f"cuda:{torch.cuda.current_device()}" if on_gpu else mesh.device_type)
        self.model = Decoder(recipe.vocabulary, recipe.width, recipe.blocks).to(self._where)
        shard(self.model, self.model.blocks, mesh, recipe.reduced)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=recipe.rate)
        self._job = arm.attach(self.model, self.optimizer)
        self._rank = mesh.get_rank()
        self._workload = workload
        self._start = recipe.start
        self._meter = self._attach_meter()

    def _attach_meter(self) -> Meter | None:
        """None on a GPU, whose compute the host does not wait for."""
        if self._where.type != "cpu":
            return None
        stopwatch = Stopwatch()
        watch([*self.model.blocks, self.model.norm, self.model.output], stopwatch)
        return stopwatch

    def microbatches(self, number: int) -> Iterable[list[int]]:
        """This rank's part of a minibatch, in the order to run it."""
        return self._workload.minibatches[number].plans[self.arm.policy][self._rank]

    def train(self, microbatches: Iterable[Sequence[int]]) -> Step:
        """Runs this rank's part of a minibatch, which may be empty."""
        begin, busy_before, meter = time.monotonic(), self.busy(), self._meter
        spans_before = len(meter.spans) if meter else 0
        computed = [meter.computed] if meter else []  # until each microbatch's end
        total, learnt = torch.zeros((), dtype=torch.float64, device=self._where), 0
        for microbatch in self._job.microbatches(microbatches):
            packed = self.prepare(microbatch)
            loss = loss_sum(self.model, packed.to(self._where))
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            learnt += packed.learnt
            if meter:
                computed.append(meter.computed)
        synced = self._job.sync_gradients(weight=learnt, sums={"loss": float(total), "tokens": learnt})
        synced_at = time.monotonic()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(
            synced.sums["loss"] / synced.sums["tokens"],
            begin,
            synced_at,
            time.monotonic(),
            self.busy() - busy_before,
            tuple(after - before for before, after in pairwise(computed)),
            tuple(meter.spans[spans_before:]) if meter else (),
        )

    def prepare(self, microbatch: Sequence[int]) -> Packed:
        return pack([self._workload.samples[i] for i in microbatch], self._start)

    def busy(self) -> float:
        """Seconds for which this rank has been on a core, to train or to move bytes."""
        return time.process_time() if self._where.type == "cpu" else nan

    def crossed(self) -> int | None:
        """What this rank has read of other hosts, and sent to them, so far; None: nobody counts."""
        return crossed(self._job.context) if isinstance(self._job, fsdp2.Job) else None

    def finish(self) -> None:
        """Waits for pending work on a GPU."""
        if self._where.type == "cuda":
            torch.cuda.synchronize(self._where)

    def evaluate(self, batches: Sequence[Packed]) -> tuple[float, int]:
        """Sum of the loss, and its tokens. All ranks call it with equally many batches."""
        total, learnt = 0.0, 0
        with torch.no_grad():
            for packed in batches:
                total += float(loss_sum(self.model, packed.to(self._where)))
                learnt += packed.learnt
        return total, learnt

    def close(self) -> None:
        self._job.close()


class ClaimingTrainer(Trainer):
    """Plans each minibatch by the ranks' speeds as measured, and leaves a part to be claimed. For ODC; the minibatches
    come in their order, whatever the number."""

    def __init__(self, arm: Arm, recipe: Recipe, workload: Workload, mesh: DeviceMesh) -> None:
        super().__init__(arm, recipe, workload, mesh)
        self._claims = workload.claims(cast(fsdp2.Job, self._job))

    def microbatches(self, number: int) -> Iterable[list[int]]:
        return next(self._claims)


class EmulatedTrainer(Trainer):
    """The same on an emulated device."""

    def __init__(self, arm: Arm, recipe: Recipe, workload: Workload, mesh: DeviceMesh, device: Device) -> None:
        self.device = device
        super().__init__(arm, recipe, workload, mesh)

    def _attach_meter(self) -> Meter:
        pad(self.model.blocks, self.device)
        return self.device

    def prepare(self, microbatch: Sequence[int]) -> Packed:
        self.device.start_microbatch(self._workload.cost(microbatch))
        return super().prepare(microbatch)

    def busy(self) -> float:
        return self.device.computed

    def evaluate(self, batches: Sequence[Packed]) -> tuple[float, int]:
        self.device.start_microbatch(0)
        return super().evaluate(batches)
