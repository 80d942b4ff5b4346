# SPDX-License-Identifier: Apache-2.0
"""When a rank computes, without the gathers and reductions around it: each module's forward and backward is a span."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn


@dataclass(frozen=True)
class Span:
    """Backward or forward, from `begin` to `end` in seconds of time.monotonic; `excess`: on an emulated device, the
    real compute beyond the cost model's time, by which the span is longer."""

    backward: bool
    begin: float
    end: float
    excess: float = 0.0


class Meter(Protocol):
    """`computed`: seconds of all spans."""

    spans: list[Span]
    computed: float

    def begin(self, *, first: bool) -> None: ...

    def end(self, *, backward: bool) -> None: ...


@dataclass
class Stopwatch:
    """Measures this thread's spans. `computed` counts the time on a core only: another program's is none of it."""

    spans: list[Span] = field(default_factory=list)
    computed: float = 0.0

    def begin(self, *, first: bool) -> None:
        self._begin, self._cpu = time.monotonic(), time.thread_time()

    def end(self, *, backward: bool) -> None:
        self.computed += time.thread_time() - self._cpu
        self.spans.append(Span(backward, self._begin, time.monotonic()))


class _Edge(torch.autograd.Function):
    """The identity, which reports its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, passed: Callable[[], None]) -> torch.Tensor:
        ctx.passed = passed
        return x.clone()  # FSDP2 warns about views

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.passed()
        return gradient, None


def watch(modules: Iterable[nn.Module], meter: Meter) -> None:
    """`modules` in the order of forward, prepared by fully_shard: gathers and reductions stay outside the spans."""
    listed = list(modules)
    last = len(listed) - 1
    for number, module in enumerate(listed):
        module.forward = _watched(module.forward, meter, first=number == 0, last=number == last)


def _watched(compute: Callable[..., Any], meter: Meter, *, first: bool, last: bool) -> Callable[..., Any]:
    edge: Callable[..., Any] = _Edge.apply

    def forward(x: torch.Tensor, *rest: Any) -> Any:
        x = edge(x, lambda: meter.end(backward=True))
        meter.begin(first=first)
        y = compute(x, *rest)
        meter.end(backward=False)
        return edge(y, lambda: meter.begin(first=last))

    return forward
