# SPDX-License-Identifier: Apache-2.0
"""One arm's replica of the model, and the training of a minibatch: the loop that all arms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from decoder import Decoder, loss_sum, pack
from samples import Sample
from schedule import Arm, shard
from torch.distributed.device_mesh import DeviceMesh
from workload import Microbatches


@dataclass(frozen=True)
class Training:
    """What all arms have in common. `start`: the token before a sample."""

    vocabulary: int
    start: int
    width: int
    layers: int
    rate: float
    seed: int


class Trainer:
    """A model with its optimizer and job. Collective to make; equal seeds make equal models."""

    def __init__(self, arm: Arm, training: Training, samples: Sequence[Sample], mesh: DeviceMesh) -> None:
        torch.manual_seed(training.seed)
        self.arm = arm
        self.model = Decoder(training.vocabulary, training.width, training.layers)
        shard(self.model, self.model.blocks, mesh)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=training.rate)
        self._job = arm.attach(self.model, self._optimizer)
        self._samples = samples
        self._start = training.start

    def train(self, microbatches: Microbatches) -> float:
        """Runs this rank's part of a minibatch, which may be empty. Returns the mean loss of all ranks' tokens."""
        total, learnt = 0.0, 0
        for microbatch in microbatches:
            packed = pack([self._samples[i] for i in microbatch], self._start)
            loss = loss_sum(self.model, packed)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            learnt += packed.learnt
        synced = self._job.sync_gradients(tokens=learnt, sums={"loss": total, "tokens": learnt})
        self._optimizer.step()
        self._optimizer.zero_grad()
        return synced.sums["loss"] / synced.sums["tokens"]

    def close(self) -> None:
        self._job.close()
