# SPDX-License-Identifier: Apache-2.0
"""How far sums of the example's gradients, exact ones and those in f32, are from the sums in f64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from decoder import Decoder, loss_sum, pack
from schedule import WAIT_SECONDS
from torch import nn
from trainer import Recipe
from workload import Workload

import libodc

MINIBATCHES = 10
"""That are measured, of a training on one rank."""

_TYPES = {torch.float32: libodc.Type.F32, torch.bfloat16: libodc.Type.BF16}


@dataclass(frozen=True)
class Errors:
    """Of all elements of all minibatches, each relative to the largest sum of its minibatch."""

    largest: float
    rms: float


@dataclass
class _Measured:
    largest: float = 0.0
    squares: float = 0.0
    elements: int = 0

    def add(self, sums: torch.Tensor, true: torch.Tensor) -> None:
        errors = (sums.double() - true) / true.abs().max()
        self.largest = max(self.largest, float(errors.abs().max()))
        self.squares += float(errors.square().sum())
        self.elements += errors.numel()

    def errors(self) -> Errors:
        return Errors(self.largest, sqrt(self.squares / self.elements))


def measure(recipe: Recipe, workload: Workload) -> dict[str, Errors]:
    """Trains by the exact sums. Addends are of the type in which gradients are reduced; f32 adds them one by one."""
    torch.manual_seed(recipe.seed)
    model = Decoder(recipe.vocabulary, recipe.width, recipe.blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate)
    numel = sum(parameter.numel() for parameter in model.parameters())
    exact, plain = _Measured(), _Measured()
    with libodc.init(rank=0, size=1, job=f"rounding.{os.getpid()}", timeout=WAIT_SECONDS) as context:
        shard = context.register("gradients", numel, None, _TYPES[recipe.reduced], sum="exact")
        for minibatch in workload.minibatches[:MINIBATCHES]:
            context.publish()
            true, in_f32 = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel)
            for sample in minibatch.chosen:
                optimizer.zero_grad()
                loss_sum(model, pack([workload.samples[sample]], recipe.start)).backward()  # type: ignore[no-untyped-call]
                gradient = torch.cat(list(_gradients(model))).to(recipe.reduced)
                true += gradient
                in_f32 += gradient
                shard.scatter_add(gradient)
            context.sync()
            sums = torch.as_tensor(shard.slice.gradients)
            exact.add(sums, true)
            plain.add(in_f32, true)
            _put(model, sums / minibatch.tokens)
            optimizer.step()
    return {"exact": exact.errors(), "f32 in order": plain.errors()}


def _gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad.reshape(-1)


def _put(model: nn.Module, sums: torch.Tensor) -> None:
    parameters = list(model.parameters())
    for parameter, mine in zip(parameters, sums.split([one.numel() for one in parameters]), strict=True):  # type: ignore[no-untyped-call]
        parameter.grad = mine.reshape(parameter.shape).clone()
